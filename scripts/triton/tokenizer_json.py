"""Tokenizers as Hugging Face's tokenizer.json has them: from the metadata of a GGUF, or one token per byte.

Pure. What llama.cpp does with the same metadata is the measure: the same text
has the same ids. Merges are not written in a SentencePiece GGUF: there any two
neighbours whose text together is a token may be joined, the highest score first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizer_keys import check

__all__ = ["byte_document", "document_from_metadata"]

Document = dict[str, Any]

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE = "▁"
_END_TEXT = "<eos>"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tokenizer.ggml.pre -> how a text is cut before it is merged, as a pattern; None is GPT-2's own.
_CUTS = {"gpt-2": None, "llama-bpe": _WORDS % "{1,3}", "qwen2": _WORDS % ""}
_TAKES_WHOLE_WORDS = frozenset({"llama-bpe"})


def byte_document() -> Document:
    """Return the tokenizer of the scripted engine: each byte is its own id, 256 ends the sequence."""
    vocabulary = {_character(byte): byte for byte in range(256)} | {_END_TEXT: 256}
    return _document(
        model=_bpe(vocabulary, []),
        added=[_added(256, _END_TEXT, is_special=True)],
        pre_tokenizer=_byte_level(cuts_words=False),
        decoder=_byte_level(cuts_words=False),
    )


def document_from_metadata(metadata: Mapping[str, Any]) -> Document:
    """Return the tokenizer of a GGUF.

    `metadata` has strings as bytes, as `headrace_triton.gguf` reads them.
    Raises ValueError for a tokenizer that cannot be written as such a file, and
    for a key that is missing or damaged.
    """
    check(metadata)
    kind = metadata["tokenizer.ggml.model"].decode()
    texts = [text.decode() for text in metadata["tokenizer.ggml.tokens"]]
    vocabulary = {text: number for number, text in enumerate(texts)}
    if len(vocabulary) != len(texts):
        raise ValueError("two tokens of the vocabulary have the same text")
    return _sentencepiece(metadata, texts, vocabulary) if kind == "llama" else _gpt2(metadata, texts, vocabulary)


def _sentencepiece(metadata: Mapping[str, Any], texts: Sequence[str], vocabulary: dict[str, int]) -> Document:
    types = metadata["tokenizer.ggml.token_type"]
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    model = _bpe(vocabulary, _merges(texts, types, metadata["tokenizer.ggml.scores"]))
    model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": None if unknown is None else texts[unknown]}
    steps: list[Document] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": _SPACE})
    decoders: list[Document] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if len(steps) > 1:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _document(
        model=model,
        added=_special(texts, types),
        normalizer={"type": "Sequence", "normalizers": steps},
        post_processor=_frame(metadata, texts, adds_bos=True),
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _gpt2(metadata: Mapping[str, Any], texts: Sequence[str], vocabulary: dict[str, int]) -> Document:
    name = metadata.get("tokenizer.ggml.pre", b"").decode()
    if name not in _CUTS:
        raise ValueError(f"tokenizer.ggml.pre is {name!r}, which is not supported; {', '.join(_CUTS)} are")
    model = _bpe(vocabulary, [merge.decode().split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]])
    model["ignore_merges"] = name in _TAKES_WHOLE_WORDS
    pattern = _CUTS[name]
    pre_tokenizer = _byte_level(cuts_words=pattern is None)
    if pattern is not None:
        cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [cut, pre_tokenizer]}
    return _document(
        model=model,
        added=_special(texts, metadata["tokenizer.ggml.token_type"]),
        pre_tokenizer=pre_tokenizer,
        post_processor=_frame(metadata, texts, adds_bos=name == "llama-bpe"),
        decoder=_byte_level(cuts_words=pattern is None),
    )


def _merges(texts: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[list[str]]:
    """Return every pair of tokens whose texts together are a token, the best first.

    Tokens with a meaning of their own take no part: a text that spells one must
    not become it.
    """
    places = [
        place for place, kind in enumerate(types) if kind not in (_UNKNOWN, _CONTROL, _BYTE) and len(texts[place]) > 1
    ]
    parts = {text for text, kind in zip(texts, types, strict=True) if kind not in (_UNKNOWN, _CONTROL, _BYTE)}
    places.sort(key=lambda place: -scores[place])
    return [
        [text[:at], text[at:]]
        for text in map(texts.__getitem__, places)
        for at in range(1, len(text))
        if text[:at] in parts and text[at:] in parts
    ]


def _frame(metadata: Mapping[str, Any], texts: Sequence[str], *, adds_bos: bool) -> Document | None:
    """Return the step that puts the start before a text, and the end behind it, where the model wants them."""
    keys = []
    if metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        keys.append("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_eos_token", False):
        keys.append("tokenizer.ggml.eos_token_id")
    if not keys:
        return None
    names = {key: texts[metadata[key]] for key in keys}
    first = [{"SpecialToken": {"id": names[key], "type_id": 0}} for key in keys if "bos" in key]
    last = [{"SpecialToken": {"id": names[key], "type_id": 0}} for key in keys if "eos" in key]

    def text(name: str) -> Document:
        return {"Sequence": {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [*first, text("A"), *last],
        "pair": [*first, text("A"), text("B"), *last],
        "special_tokens": {name: {"id": name, "ids": [metadata[key]], "tokens": [name]} for key, name in names.items()},
    }


def _special(texts: Sequence[str], types: Sequence[int]) -> list[Document]:
    """Return the tokens that are found in a text before anything else is done with it."""
    return [
        _added(number, texts[number], is_special=kind != _USER_DEFINED)
        for number, kind in enumerate(types)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _added(number: int, text: str, *, is_special: bool) -> Document:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": text, **flags, "special": is_special}


def _bpe(vocabulary: dict[str, int], merges: list[list[str]]) -> Document:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _byte_level(*, cuts_words: bool) -> Document:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": cuts_words}


def _document(
    *,
    model: Document,
    added: list[Document],
    decoder: Document,
    normalizer: Document | None = None,
    pre_tokenizer: Document | None = None,
    post_processor: Document | None = None,
) -> Document:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def _character(byte: int) -> str:
    """Return the character of GPT-2's table for a byte: itself if it is printable, else one from U+0100 on."""
    if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
        return chr(byte)
    # 33 bytes stand before the printable ones of ASCII, 34 between these and Latin-1's, one is 0xAD.
    return chr(0x100 + (byte if byte < 0x21 else byte - 0x7F + 0x21 if byte < 0xA1 else 67))
