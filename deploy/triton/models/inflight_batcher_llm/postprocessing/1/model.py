"""postprocessing: token ids to the exact bytes of the tokens, or to text as the original does it.

A STRING tensor carries bytes, so a character that is split over responses
arrives in pieces and is whole again once they are joined.
"""

import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "lib"))

from headrace_triton.engines import open_vocabulary
from headrace_triton.settings import load_settings
from headrace_triton.texts import decode_alone


class TritonPythonModel:
    """Stateless; one instance, because two would deliver out of order."""

    def initialize(self, args):
        """Read the vocabulary from the model file; the weights are not touched."""
        settings = load_settings(args)
        self._vocabulary = open_vocabulary(settings)
        self._decodes_alone = settings.postprocessing == "text"

    def execute(self, requests):
        """Answer every request with OUTPUT, one string per beam."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
            lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
            texts = [self._text(tokens[place][: lengths[place]].tolist()) for place in np.ndindex(*lengths.shape)]
            return pb_utils.InferenceResponse(
                output_tensors=[pb_utils.Tensor("OUTPUT", np.array(texts, dtype=np.object_))]
            )
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"postprocessing failed: {error}"))

    def _text(self, ids):
        if self._decodes_alone:
            return decode_alone(self._vocabulary, ids).encode()
        return self._vocabulary.decode(ids)
