"""Text to token ids: llama.cpp's own tokenizer, or one id per byte for the scripted engine."""

from __future__ import annotations

import http.client
import json
from typing import Any, Protocol
from urllib.parse import urlsplit

from .jobs import EngineError
from .vocabulary import Vocabulary

__all__ = ["ByteTokenizer", "LlamaTokenizer", "Tokenizer"]

_TIMEOUT_S = 10.0


class Tokenizer(Protocol):
    """What the models need of a tokenizer. Not for several threads at once."""

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids of a prompt, with the beginning of sequence that the model wants."""
        ...

    def word_ids(self, word: bytes) -> list[int]:
        """Return ids whose bytes are exactly `word`; raises ValueError where there are none."""
        ...


class ByteTokenizer:
    """The scripted engine's: a token is a byte."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def prompt_ids(self, text: str) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode())

    def word_ids(self, word: bytes) -> list[int]:
        """Return the bytes of the word."""
        return self._vocabulary.ids_of(word, len(word))


class LlamaTokenizer:
    """llama.cpp's tokenizer, through the loopback port that its server opens."""

    def __init__(self, server: Any, vocabulary: Vocabulary) -> None:
        # Held: the port lives as long as the server.
        self._server = server
        self._vocabulary = vocabulary
        self._address = urlsplit(server.listening_address).netloc
        self._connection: http.client.HTTPConnection | None = None

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids of a prompt, which starts with one beginning of sequence at most."""
        ids = self._ids(text, add_special=True)
        # A chat template may have written the beginning of sequence itself.
        if len(ids) > 1 and ids[0] == ids[1] == self._vocabulary.bos_id:
            return ids[1:]
        return ids

    def word_ids(self, word: bytes) -> list[int]:
        """Return the ids of a word, spelled in bytes where the tokenizer would put a space in front."""
        try:
            text = word.decode()
        except UnicodeDecodeError:
            raise EngineError(f"the word {word!r} is not valid UTF-8") from None
        ids = self._ids(text, add_special=False)
        if self._vocabulary.decode(ids) == word:
            return ids
        return self._vocabulary.ids_of(word, len(word))

    def _ids(self, text: str, *, add_special: bool) -> list[int]:
        body = json.dumps({"content": text, "add_special": add_special, "parse_special": True})
        for is_last in (False, True):
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)
                self._connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
                response = self._connection.getresponse()
                answer = json.loads(response.read())
                if response.status != 200:
                    raise EngineError(f"the tokenizer refused the text: {answer.get('error', answer)}")
                return list(answer["tokens"])
            except (http.client.HTTPException, OSError):
                # The server closes a kept connection after a while: once more on a new one.
                self._connection = None
                if is_last:
                    raise
        raise AssertionError("unreachable")
