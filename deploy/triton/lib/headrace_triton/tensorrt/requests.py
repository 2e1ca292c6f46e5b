"""The tensors of `tensorrt_llm`: from a request to a job, and what cannot be honoured.

Whatever the engine cannot do is refused with the tensor's name, never ignored.
"""

from __future__ import annotations

from typing import Any

from headrace_triton.engines import Loaded
from headrace_triton.grammars import grammar_for_guide
from headrace_triton.jobs import EngineError, Job
from headrace_triton.tensors import flag, scalar, string
from headrace_triton.words import unpack_words

__all__ = ["job_from_tensors"]

_REQUIRED = ("input_ids", "input_lengths", "request_output_len")
# Read here, or a switch of what is returned.
_HONOURED = frozenset(
    {
        *_REQUIRED,
        "end_id",
        "pad_id",
        "stop_words_list",
        "bad_words_list",
        "embedding_bias",
        "temperature",
        "runtime_top_k",
        "runtime_top_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
        "seed",
        "return_log_probs",
        "return_perf_metrics",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "exclude_input_in_output",
        "stop",
        "streaming",
        "guided_decoding_guide_type",
        "guided_decoding_guide",
    }
)
# Values that change nothing; any other is refused, as is every tensor that is neither here nor above.
_NEUTRAL = {
    "beam_width": (1,),
    "num_return_sequences": (1,),
    "len_penalty": (0.0, 1.0),
    "early_stopping": (True, False),
    "beam_search_diversity_rate": (0.0,),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "skip_cross_attn_blocks": (False,),
}
_END_DISABLED = -1


def job_from_tensors(arrays: dict[str, Any], loaded: Loaded) -> Job:
    """Return the job; EngineError names the first tensor that is wrong or cannot be honoured."""
    _check_support(arrays)
    vocabulary = loaded.vocabulary
    prompt = arrays["input_ids"].reshape(-1)[: scalar(arrays, "input_lengths")].tolist()
    size = len(vocabulary.pieces)
    if not all(0 <= token < size for token in prompt):
        raise EngineError(f"'input_ids' must be in 0..{size - 1}")
    if not prompt:
        raise EngineError("'input_ids' must not be empty")
    limit = scalar(arrays, "request_output_len")
    if limit < 1:
        raise EngineError(f"'request_output_len' must be at least 1, got {limit}")
    end_id = scalar(arrays, "end_id", vocabulary.eos_id)
    if end_id not in (_END_DISABLED, vocabulary.eos_id):
        raise EngineError(
            f"'end_id' = {end_id} is not supported; the model ends with {vocabulary.eos_id}, -1 disables it"
        )
    top_k, top_p = scalar(arrays, "runtime_top_k", 0), scalar(arrays, "runtime_top_p", 0.0)
    temperature = _positive(arrays, "temperature", 1.0)
    words = unpack_words(_rows(arrays, "stop_words_list"))
    kind = string(arrays, "guided_decoding_guide_type")
    return Job(
        prompt_ids=prompt,
        max_tokens=limit,
        # TensorRT-LLM takes the likeliest token where neither of the two is given.
        temperature=temperature if top_k or top_p else 0.0,
        top_k=top_k,
        top_p=top_p or 1.0,
        seed=scalar(arrays, "seed", 0),
        repetition_penalty=_positive(arrays, "repetition_penalty", 1.0),
        presence_penalty=scalar(arrays, "presence_penalty", 0.0),
        frequency_penalty=scalar(arrays, "frequency_penalty", 0.0),
        min_tokens=min(scalar(arrays, "min_tokens", 0), limit),
        ignores_eos=end_id == _END_DISABLED,
        # A word of one token is that token, which may be a control token without bytes.
        stop_ids=frozenset(word[0] for word in words if len(word) == 1),
        stop_words=[text for word in words if len(word) > 1 and (text := vocabulary.decode(word))],
        banned_ids=_banned(arrays, loaded),
        logit_bias=_biases(arrays, loaded),
        grammar=grammar_for_guide(kind, string(arrays, "guided_decoding_guide")) if kind else "",
        logprobs=0 if flag(arrays, "return_log_probs") else None,
    )


def _check_support(arrays: dict[str, Any]) -> None:
    for name in _REQUIRED:
        if name not in arrays:
            raise EngineError(f"input '{name}' is required")
    for name in sorted(arrays.keys() - _HONOURED):
        neutral = _NEUTRAL.get(name)
        if neutral is None:
            raise EngineError(f"'{name}' is not supported by this engine")
        value = scalar(arrays, name)
        if value not in neutral:
            raise EngineError(f"'{name}' = {value} is not supported by this engine; {neutral[0]} is")


def _banned(arrays: dict[str, Any], loaded: Loaded) -> frozenset[int]:
    words = unpack_words(_rows(arrays, "bad_words_list"))
    if words and not loaded.engine.takes_biases:
        raise EngineError("'bad_words_list' is not supported by the scripted engine")
    for word in words:
        if len(word) > 1:
            text = loaded.vocabulary.decode(word).decode("utf-8", "replace")
            raise EngineError(f"'bad_words_list': {text!r} is {len(word)} tokens; words of one token are supported")
    return frozenset(word[0] for word in words)


def _biases(arrays: dict[str, Any], loaded: Loaded) -> dict[int, float]:
    array = arrays.get("embedding_bias")
    if array is None:
        return {}
    row = array.reshape(-1)
    size = len(loaded.vocabulary.pieces)
    if row.size != size:
        raise EngineError(f"'embedding_bias' must have one value for each of the {size} tokens, it has {row.size}")
    biases = {int(token): float(row[token]) for token in row.nonzero()[0]}
    if biases and not loaded.engine.takes_biases:
        raise EngineError("'embedding_bias' is not supported by the scripted engine")
    return biases


def _rows(arrays: dict[str, Any], name: str) -> list[list[int]]:
    array = arrays.get(name)
    return [[], []] if array is None else array.reshape(2, -1).tolist()


def _positive(arrays: dict[str, Any], name: str, default: float) -> float:
    value = scalar(arrays, name, default)
    if not value > 0:
        raise EngineError(f"'{name}' must be greater than 0, got {value}")
    return float(value)
