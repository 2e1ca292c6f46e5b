"""Opens what a model needs: its vocabulary, its tokenizer and its engine."""

from __future__ import annotations

from dataclasses import dataclass

from .gguf import read_metadata
from .jobs import Engine
from .llamacpp import LlamaEngine, model_path, open_server
from .scripted import ScriptedEngine
from .settings import Settings
from .tokenizers import ByteTokenizer, LlamaTokenizer, Tokenizer
from .vocabulary import Vocabulary, byte_vocabulary, vocabulary_from_metadata

__all__ = ["Loaded", "open_engine", "open_tokenizer", "open_vocabulary"]


@dataclass(frozen=True)
class Loaded:
    """A loaded model; the tokenizer reads from the engine's own server."""

    vocabulary: Vocabulary
    tokenizer: Tokenizer
    engine: Engine
    context_tokens: int


def open_vocabulary(settings: Settings) -> Vocabulary:
    """Return the vocabulary of the model file; its weights are not touched."""
    if settings.engine == "scripted":
        return byte_vocabulary()
    return vocabulary_from_metadata(read_metadata(model_path(settings)))


def open_tokenizer(settings: Settings, vocabulary: Vocabulary) -> Tokenizer:
    """Return a tokenizer with a small server of its own."""
    if settings.engine == "scripted":
        return ByteTokenizer(vocabulary)
    return LlamaTokenizer(open_server(settings, for_tokenizer=True), vocabulary)


def open_engine(settings: Settings) -> Loaded:
    """Return the engine with its vocabulary and tokenizer."""
    vocabulary = open_vocabulary(settings)
    if settings.engine == "scripted":
        return Loaded(vocabulary, ByteTokenizer(vocabulary), ScriptedEngine(settings), settings.context_tokens)
    engine = LlamaEngine(settings, vocabulary)
    return Loaded(vocabulary, LlamaTokenizer(engine.server, vocabulary), engine, settings.context_tokens)
