"""`sampling_parameters`, the JSON text of vLLM's contract: from its keys to a job.

Keys that cannot be honoured are refused by name, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from headrace_triton.engines import Loaded
from headrace_triton.grammars import grammar_for_choice, grammar_for_gbnf, grammar_for_json, grammar_for_regex
from headrace_triton.jobs import EngineError, Job

__all__ = ["job_from_parameters", "read_parameters"]

# vLLM's own default.
_MAX_TOKENS = 16
# Keys whose value may only be what changes nothing here.
_NEUTRAL = {
    "n": (1,),
    "best_of": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "detokenize": (True,),
}


def read_parameters(text: str) -> dict[str, Any]:
    """Return the keys that are set; EngineError where the text is no JSON object."""
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise EngineError(f"sampling_parameters is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise EngineError("sampling_parameters must be a JSON object")
    return {key: value for key, value in values.items() if value is not None}


def job_from_parameters(prompt: str, values: Mapping[str, Any], loaded: Loaded) -> tuple[Job, bool]:
    """Return the job and whether a stop word stays in the text.

    EngineError names the first key that is wrong or cannot be honoured.
    """
    for key, value in values.items():
        if key in _NEUTRAL:
            if value not in _NEUTRAL[key]:
                raise EngineError(f"{key} = {value!r} is not supported by this engine; {_NEUTRAL[key][0]!r} is")
        elif key not in _KEYS:
            raise EngineError(f"the sampling parameter {key!r} is not supported by this engine")
    ids = loaded.tokenizer.prompt_ids(prompt)
    if not ids:
        raise EngineError("text_input is empty")
    number = _Numbers(values)
    limit = number.whole("max_tokens", _MAX_TOKENS, least=1)
    job = Job(
        prompt_ids=ids,
        max_tokens=limit,
        temperature=number.real("temperature", 1.0, least=0.0),
        # -1 and 0 are off.
        top_k=max(0, number.whole("top_k", 0, least=-1)),
        top_p=number.real("top_p", 1.0, least=0.0) or 1.0,
        min_p=number.real("min_p", 0.0, least=0.0),
        seed=number.whole("seed", -1, least=0) if "seed" in values else None,
        repetition_penalty=number.real("repetition_penalty", 1.0, least=0.0) or 1.0,
        presence_penalty=number.real("presence_penalty", 0.0),
        frequency_penalty=number.real("frequency_penalty", 0.0),
        min_tokens=min(number.whole("min_tokens", 0, least=0), limit),
        ignores_eos=_boolean(values, "ignore_eos"),
        stop_words=[word.encode() for word in _strings(values, "stop")],
        stop_ids=frozenset(_ids(values.get("stop_token_ids", []), "stop_token_ids", loaded)),
        banned_ids=_banned(values, loaded),
        logit_bias=_biases(values, loaded),
        grammar=_grammar(values),
        logprobs=number.whole("logprobs", 0, least=0) if "logprobs" in values else None,
    )
    return job, _boolean(values, "include_stop_str_in_output")


class _Numbers:
    """Numbers of the object. Text that is a number counts as one: vLLM's backend converts it too."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def whole(self, key: str, default: int, *, least: int) -> int:
        """Return an integer."""
        return int(self._read(key, default, int, "an integer", least))

    def real(self, key: str, default: float, *, least: float | None = None) -> float:
        """Return a number."""
        return float(self._read(key, default, float, "a number", least))

    def _read(self, key: str, default: Any, kind: Callable[[Any], Any], what: str, least: float | None) -> Any:
        given = self._values.get(key, default)
        try:
            value = kind(given)
        except (TypeError, ValueError, OverflowError):
            raise EngineError(f"{key} must be {what}, got {given!r}") from None
        if isinstance(given, bool) or value != value or (isinstance(given, float) and value != given):
            raise EngineError(f"{key} must be {what}, got {given!r}")
        if least is not None and value < least:
            raise EngineError(f"{key} must be at least {least}, got {given!r}")
        return value


def _boolean(values: Mapping[str, Any], key: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise EngineError(f"{key} must be true or false, got {value!r}")
    return value


def _strings(values: Mapping[str, Any], key: str) -> list[str]:
    value = values.get(key, [])
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise EngineError(f"{key} must be a text or a list of texts, none of them empty")
    return words


def _ids(value: Any, key: str, loaded: Loaded) -> list[int]:
    size = len(loaded.vocabulary.pieces)
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < size for token in value):
        raise EngineError(f"{key} must have token ids in 0..{size - 1} only")
    return value


def _banned(values: Mapping[str, Any], loaded: Loaded) -> frozenset[int]:
    words = _strings(values, "bad_words")
    if words and not loaded.engine.takes_biases:
        raise EngineError("bad_words is not supported by the scripted engine")
    banned = set()
    for word in words:
        ids = loaded.tokenizer.word_ids(word.encode())
        if len(ids) > 1:
            raise EngineError(f"bad_words: {word!r} is {len(ids)} tokens; words of one token are supported")
        banned.add(ids[0])
    return frozenset(banned)


def _biases(values: Mapping[str, Any], loaded: Loaded) -> dict[int, float]:
    value = values.get("logit_bias", {})
    if not isinstance(value, dict):
        raise EngineError("logit_bias must be an object of token ids and numbers")
    if value and not loaded.engine.takes_biases:
        raise EngineError("logit_bias is not supported by the scripted engine")
    try:
        biases = {int(token): float(bias) for token, bias in value.items()}
    except (TypeError, ValueError):
        raise EngineError("logit_bias must be an object of token ids and numbers") from None
    _ids(list(biases), "logit_bias", loaded)
    return biases


def _grammar(values: Mapping[str, Any]) -> str:
    text = values.get("structured_outputs")
    if text is None:
        return ""
    try:
        options = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise EngineError(f"structured_outputs must be JSON text: {error}") from None
    if not isinstance(options, dict):
        raise EngineError("structured_outputs must be the JSON text of an object")
    options = {key: value for key, value in options.items() if value is not None}
    if len(options) != 1 or not options.keys() <= _CONSTRAINTS.keys():
        raise EngineError(f"structured_outputs must have exactly one of {', '.join(_CONSTRAINTS)}")
    ((key, value),) = options.items()
    return _CONSTRAINTS[key](value)


def _json(value: Any) -> str:
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise EngineError(f"structured_outputs.json is not JSON: {error}") from None
    return grammar_for_json(schema, "structured_outputs.json")


def _json_object(value: Any) -> str:
    if value is not True:
        raise EngineError("structured_outputs.json_object must be true")
    return grammar_for_json({"type": "object"}, "structured_outputs.json_object")


def _choice(value: Any) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise EngineError("structured_outputs.choice must be a list of texts")
    return grammar_for_choice(value, "structured_outputs.choice")


def _text(key: str, compile_: Callable[[str, str], str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise EngineError(f"structured_outputs.{key} must be a text")
        return compile_(value, f"structured_outputs.{key}")

    return read


_CONSTRAINTS: dict[str, Callable[[Any], str]] = {
    "json": _json,
    "json_object": _json_object,
    "choice": _choice,
    "regex": _text("regex", grammar_for_regex),
    "grammar": _text("grammar", grammar_for_gbnf),
}
_KEYS = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "bad_words",
        "logit_bias",
        "logprobs",
        "structured_outputs",
    }
)
