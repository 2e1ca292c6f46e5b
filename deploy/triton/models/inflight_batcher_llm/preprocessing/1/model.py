"""preprocessing: text to token ids, with llama.cpp's own tokenizer."""

import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "lib"))

from headrace_triton.engines import open_tokenizer, open_vocabulary
from headrace_triton.jobs import EngineError
from headrace_triton.settings import load_settings
from headrace_triton.tensors import inputs_by_name, scalar, string, tensor
from headrace_triton.words import pack_words

# Tensors that nothing behind this model could honour, by the name that the caller knows.
_REFUSED = {
    "DECODER_QUERY": "decoder_text_input",
    "IMAGE_BYTES": "image_bytes_input",
    "IMAGE_URL": "image_url_input",
    "VIDEO_BYTES": "video_bytes_input",
    "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
}


class TritonPythonModel:
    """Stateless; one request at a time."""

    def initialize(self, args):
        """Load the tokenizer, or the byte vocabulary of the scripted engine."""
        settings = load_settings(args)
        self._vocabulary = open_vocabulary(settings)
        self._tokenizer = open_tokenizer(settings, self._vocabulary)

    def execute(self, requests):
        """Answer every request: its ids and word lists, or an error."""
        return [self._answer(request) for request in requests]

    def finalize(self):
        """Release the tokenizer."""
        self._tokenizer = None

    def _answer(self, request):
        try:
            return pb_utils.InferenceResponse(output_tensors=self._outputs(inputs_by_name(request)))
        except Exception as error:
            message = str(error) if isinstance(error, EngineError) else f"preprocessing failed: {error}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))

    def _outputs(self, arrays):
        for name, known_as in _REFUSED.items():
            if name in arrays:
                raise EngineError(f"'{known_as}' is not supported by this engine")
        ids = self._tokenizer.prompt_ids(string(arrays, "QUERY"))
        if not ids:
            raise EngineError("text_input is empty")
        eos = -1 if self._vocabulary.eos_id is None else self._vocabulary.eos_id
        outputs = [
            tensor("INPUT_ID", [ids], np.int32),
            tensor("REQUEST_INPUT_LEN", [[len(ids)]], np.int32),
            tensor("REQUEST_OUTPUT_LEN", [[scalar(arrays, "REQUEST_OUTPUT_LEN")]], np.int32),
            tensor("BAD_WORDS_IDS", [self._words(arrays, "BAD_WORDS_DICT")], np.int32),
            tensor("STOP_WORDS_IDS", [self._words(arrays, "STOP_WORDS_DICT")], np.int32),
            tensor("OUT_END_ID", [[scalar(arrays, "END_ID", eos)]], np.int32),
            tensor("OUT_PAD_ID", [[scalar(arrays, "PAD_ID", eos)]], np.int32),
        ]
        bias = self._bias(arrays)
        if bias is not None:
            outputs.append(tensor("EMBEDDING_BIAS", [bias], np.float32))
        return outputs

    def _words(self, arrays, name):
        array = arrays.get(name)
        words = [] if array is None else [word for word in array.reshape(-1) if word]
        return pack_words([self._tokenizer.word_ids(word) for word in words])

    def _bias(self, arrays):
        """Return one value per token: the weight of every word that it is part of."""
        if "EMBEDDING_BIAS_WORDS" not in arrays and "EMBEDDING_BIAS_WEIGHTS" not in arrays:
            return None
        words = arrays.get("EMBEDDING_BIAS_WORDS", np.array([])).reshape(-1)
        weights = arrays.get("EMBEDDING_BIAS_WEIGHTS", np.array([])).reshape(-1)
        if len(words) != len(weights):
            raise EngineError("'embedding_bias_words' and 'embedding_bias_weights' must be equally many")
        bias = np.zeros(len(self._vocabulary.pieces), np.float32)
        for word, weight in zip(words, weights, strict=True):
            for token in self._tokenizer.word_ids(word):
                bias[token] += weight
        return bias
