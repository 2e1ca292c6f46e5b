"""The tensors of the LLM API model: from a request to a job, and what cannot be honoured."""

from __future__ import annotations

from typing import Any

from headrace_triton.engines import Loaded
from headrace_triton.jobs import EngineError, Job
from headrace_triton.tensors import flag, scalar, string

__all__ = ["job_from_tensors"]

_PREFIX = "sampling_param_"
# The LLM API's own default.
_MAX_TOKENS = 32
_REFUSED = ("image_url", "lora_id", "lora_name", "lora_path", "lora_ckpt_source")


def job_from_tensors(arrays: dict[str, Any], loaded: Loaded) -> Job:
    """Return the job; EngineError names the first tensor that is wrong or cannot be honoured."""
    for name in _REFUSED:
        if name in arrays:
            raise EngineError(f"'{name}' is not supported by this engine")
    if "text_input" not in arrays:
        raise EngineError("text_input is missing from the request")
    best_of = scalar(arrays, f"{_PREFIX}best_of", 1)
    if best_of != 1:
        raise EngineError(f"'{_PREFIX}best_of' = {best_of} is not supported by this engine; 1 is")
    limit = scalar(arrays, f"{_PREFIX}max_tokens", _MAX_TOKENS)
    if limit < 1:
        raise EngineError(f"'{_PREFIX}max_tokens' must be at least 1, got {limit}")
    prompt = loaded.tokenizer.prompt_ids(string(arrays, "text_input"))
    if not prompt:
        raise EngineError("text_input is empty")
    return Job(
        prompt_ids=prompt,
        max_tokens=limit,
        temperature=_temperature(arrays),
        top_k=scalar(arrays, f"{_PREFIX}top_k", 0),
        top_p=scalar(arrays, f"{_PREFIX}top_p", 1.0) or 1.0,
        seed=scalar(arrays, f"{_PREFIX}seed", 0),
        presence_penalty=scalar(arrays, f"{_PREFIX}presence_penalty", 0.0),
        frequency_penalty=scalar(arrays, f"{_PREFIX}frequency_penalty", 0.0),
        stop_words=_stop_words(arrays),
        logprobs=0 if flag(arrays, "return_cumulative_logprob") else None,
    )


def _temperature(arrays: dict[str, Any]) -> float:
    """Return 0 where the parameters ask for the likeliest token: none of the three, or one that leaves no choice."""
    temperature, top_k, top_p = (scalar(arrays, _PREFIX + name) for name in ("temperature", "top_k", "top_p"))
    if temperature is not None and temperature < 0:
        raise EngineError(f"'{_PREFIX}temperature' must be at least 0, got {temperature}")
    is_greedy = (temperature is None and top_k is None and top_p is None) or top_k == 1 or top_p == 0
    return 0.0 if is_greedy else (1.0 if temperature is None else float(temperature))


def _stop_words(arrays: dict[str, Any]) -> list[bytes]:
    name = f"{_PREFIX}stop"
    array = arrays.get(name)
    words = [] if array is None else [word for word in array.reshape(-1) if word]
    for word in words:
        try:
            word.decode()
        except UnicodeDecodeError:
            raise EngineError(f"'{name}' is not valid UTF-8") from None
    return words
