"""postprocessing: token ids to the exact bytes of the tokens.

A STRING tensor carries bytes, so a character that is split over responses
arrives in pieces and is whole again once they are joined.
"""

import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lib"))

from headrace_triton.gguf import read_metadata
from headrace_triton.llamacpp import model_path
from headrace_triton.settings import load_settings
from headrace_triton.vocabulary import byte_vocabulary, vocabulary_from_metadata


class TritonPythonModel:
    """Stateless; one instance, because two would deliver out of order."""

    def initialize(self, args):
        """Read the vocabulary from the model file; the weights are not touched."""
        settings = load_settings(args)
        if settings.engine == "scripted":
            self._vocabulary = byte_vocabulary()
        else:
            self._vocabulary = vocabulary_from_metadata(read_metadata(model_path(settings)))

    def execute(self, requests):
        """Answer every request with OUTPUT [batch, beams]."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
            lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
            texts = np.empty(lengths.shape, dtype=np.object_)
            for place in np.ndindex(*lengths.shape):
                texts[place] = self._vocabulary.decode(tokens[place][: lengths[place]].tolist())
            return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT", texts)])
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"postprocessing failed: {error}"))
