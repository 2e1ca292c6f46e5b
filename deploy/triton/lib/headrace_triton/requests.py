"""The tensors of `tensorrt_llm`: from a request to a job, and what cannot be honoured.

Whatever the engine cannot do is refused with the tensor's name, never ignored.
"""

from __future__ import annotations

from typing import Any

from .grammars import grammar_for_guide
from .jobs import EngineError, Job
from .tensors import flag, scalar, string
from .vocabulary import Vocabulary
from .words import unpack_words

__all__ = ["job_from_tensors"]

# Values that change nothing; any other is refused.
_NEUTRAL = {"beam_width": (1,), "num_return_sequences": (1,), "len_penalty": (0.0, 1.0)}
_END_DISABLED = -1


def job_from_tensors(arrays: dict[str, Any], vocabulary: Vocabulary) -> Job:
    """Return the job; EngineError names the first tensor that is wrong or cannot be honoured."""
    for name in ("input_ids", "input_lengths", "request_output_len"):
        if name not in arrays:
            raise EngineError(f"input '{name}' is required")
    for name, neutral in _NEUTRAL.items():
        value = scalar(arrays, name, neutral[0])
        if value not in neutral:
            raise EngineError(f"'{name}' = {value} is not supported by this engine; {neutral[0]} is")
    prompt = arrays["input_ids"].reshape(-1)[: scalar(arrays, "input_lengths")].tolist()
    limit = scalar(arrays, "request_output_len")
    if limit < 1:
        raise EngineError(f"'request_output_len' must be at least 1, got {limit}")
    end_id = scalar(arrays, "end_id", vocabulary.eos_id)
    if end_id not in (_END_DISABLED, vocabulary.eos_id):
        raise EngineError(
            f"'end_id' = {end_id} is not supported; the model ends with {vocabulary.eos_id}, -1 disables it"
        )
    if unpack_words(_rows(arrays, "bad_words_list")):
        raise EngineError("'bad_words_list' is not supported by this engine")
    kind = string(arrays, "guided_decoding_guide_type")
    return Job(
        prompt_ids=prompt,
        max_tokens=limit,
        temperature=_positive(arrays, "temperature"),
        top_k=scalar(arrays, "runtime_top_k"),
        top_p=scalar(arrays, "runtime_top_p"),
        seed=scalar(arrays, "seed"),
        repetition_penalty=_positive(arrays, "repetition_penalty"),
        presence_penalty=scalar(arrays, "presence_penalty"),
        frequency_penalty=scalar(arrays, "frequency_penalty"),
        min_tokens=min(scalar(arrays, "min_tokens", 0), limit),
        ignores_eos=end_id == _END_DISABLED,
        stop_words=[vocabulary.decode(word) for word in unpack_words(_rows(arrays, "stop_words_list"))],
        grammar=grammar_for_guide(kind, string(arrays, "guided_decoding_guide")) if kind else "",
        logprobs=flag(arrays, "return_log_probs"),
    )


def _rows(arrays: dict[str, Any], name: str) -> list[list[int]]:
    array = arrays.get(name)
    return [[], []] if array is None else array.reshape(2, -1).tolist()


def _positive(arrays: dict[str, Any], name: str) -> Any:
    value = scalar(arrays, name)
    if value is not None and not value > 0:
        raise EngineError(f"'{name}' must be greater than 0, got {value}")
    return value
