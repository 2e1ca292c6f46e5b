"""preprocessing: text to token ids, with llama.cpp's own tokenizer."""

import http.client
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lib"))

from headrace_triton.gguf import read_metadata
from headrace_triton.jobs import EngineError
from headrace_triton.llamacpp import model_path, open_server
from headrace_triton.settings import load_settings
from headrace_triton.tensors import inputs_by_name, scalar, string, tensor
from headrace_triton.vocabulary import byte_vocabulary, vocabulary_from_metadata
from headrace_triton.words import pack_words


class TritonPythonModel:
    """Stateless; one request at a time."""

    def initialize(self, args):
        """Load the tokenizer, or the byte vocabulary of the scripted engine."""
        settings = load_settings(args)
        if settings.engine == "scripted":
            self._vocabulary = byte_vocabulary()
            self._tokenizer = None
        else:
            self._vocabulary = vocabulary_from_metadata(read_metadata(model_path(settings)))
            self._tokenizer = _Tokenizer(settings)

    def execute(self, requests):
        """Answer every request: its ids and word lists, or an error."""
        return [self._answer(request) for request in requests]

    def finalize(self):
        """Release the tokenizer."""
        self._tokenizer = None

    def _answer(self, request):
        try:
            arrays = inputs_by_name(request)
            ids = self._prompt_ids(string(arrays, "QUERY"))
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
            return pb_utils.InferenceResponse(output_tensors=outputs)
        except Exception as error:
            message = str(error) if isinstance(error, EngineError) else f"preprocessing failed: {error}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))

    def _prompt_ids(self, text):
        if self._tokenizer is None:
            return list(text.encode())
        ids = self._tokenizer.ids(text, add_special=True)
        # A chat template may have written the beginning of sequence itself.
        if len(ids) > 1 and ids[0] == ids[1] == self._vocabulary.bos_id:
            return ids[1:]
        return ids

    def _words(self, arrays, name):
        array = arrays.get(name)
        words = [] if array is None else [word for word in array.reshape(-1) if word]
        return pack_words([self._word_ids(word) for word in words])

    def _word_ids(self, word):
        if self._tokenizer is not None:
            ids = self._tokenizer.ids(word.decode("utf-8"), add_special=False)
            # Some tokenizers put a space in front: then the word is spelled in bytes.
            if self._vocabulary.decode(ids) == word:
                return ids
        return self._vocabulary.ids_of(word, len(word))


class _Tokenizer:
    """llama.cpp's tokenizer, through the loopback port that its server opens."""

    def __init__(self, settings):
        self._server = open_server(settings, for_tokenizer=True)
        self._address = urlsplit(self._server.listening_address).netloc
        self._connection = None

    def ids(self, text, *, add_special):
        body = json.dumps({"content": text, "add_special": add_special, "parse_special": True})
        for is_last in (False, True):
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(self._address, timeout=10)
                self._connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
                response = self._connection.getresponse()
                answer = json.loads(response.read())
                if response.status != 200:
                    raise EngineError(f"the tokenizer refused the text: {answer.get('error', answer)}")
                return answer["tokens"]
            except (http.client.HTTPException, OSError):
                # The server closes a kept connection after a while: once more on a new one.
                self._connection = None
                if is_last:
                    raise
        raise AssertionError("unreachable")
