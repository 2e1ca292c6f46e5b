"""TensorRT-LLM's token-level `tensorrt_llm`: token ids in, token ids out, by the service's own tokenizer.

The engine itself, without Triton's models around it: a cancel reaches it, ids and
exact bytes are known. What those models would have added is added here: the end
of sequence, the words as ids, the dense bias.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tritonclient.grpc import service_pb2

from service.backends.base import EngineRequest, Feature
from service.backends.triton.contracts.contract import ContractSettings, Tokenizer
from service.backends.triton.contracts.demands import refuse
from service.backends.triton.contracts.inflight import (
    TOKEN_FIELDS,
    add_outputs,
    add_shared,
    lora_problems,
    shared_features,
)
from service.backends.triton.contracts.raw_reader import IDS, LENGTH, RawReader
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input
from service.core.errors import Violation, invalid

__all__ = ["RawContract", "word_rows"]

_REQUIRED: Final = ("input_ids", "input_lengths", "request_output_len")
# Always sent, or where the model wants them.
_SENT: Final = frozenset({*_REQUIRED, "streaming", "end_id", "pad_id"})
_END: Final = "end_id"
_PAD: Final = "pad_id"
_STOP_WORDS: Final = "stop_words_list"
_BAD_WORDS: Final = "bad_words_list"
_BIAS: Final = "embedding_bias"
# No token has it: nothing ends the generation but its limit.
_NO_END: Final = -1
# The end is a value of every request here, not only of one that ignores it.
_FIELDS: Final = tuple(field for field in TOKEN_FIELDS if field.feature is not Feature.IGNORE_EOS)


class RawContract:
    """Asks the token-level model and reads it."""

    name = "raw"
    takes_ids = True

    def __init__(self, settings: ContractSettings) -> None:
        self._settings = settings

    def problems(self, facts: ModelFacts) -> list[str]:
        """Return why a model cannot be served."""
        problems = [f"input {name} is missing" for name in (*_REQUIRED, "streaming") if name not in facts.inputs]
        problems += [f"output {name} is missing" for name in (IDS, LENGTH) if name not in facts.outputs]
        problems += [f"input {name} is required and unknown" for name in sorted(facts.required - _SENT)]
        if not facts.is_decoupled:
            problems.append("model_transaction_policy.decoupled is off, and the model streams only with it")
        if self._settings.tokenizer is None:
            problems.append("it takes token ids, and no tokenizer is configured: set it to the model's tokenizer.json")
        return problems + lora_problems(facts, self._settings.lora_task_id)

    def features(self, facts: ModelFacts) -> frozenset[Feature]:
        """Return the features behind the model's inputs; token ids go in and out in any case."""
        features = shared_features(_FIELDS, facts) | {Feature.TOKEN_INPUT, Feature.TOKEN_IDS}
        if _END in facts.inputs:
            features.add(Feature.IGNORE_EOS)
        if _BIAS in facts.inputs:
            features.add(Feature.LOGIT_BIAS)
        if _BAD_WORDS in facts.inputs:
            features.add(Feature.BAD_WORDS)
        return frozenset(features)

    def request(self, request: EngineRequest, facts: ModelFacts) -> Any:
        """Return the request: every required tensor, and of the others those that the model lists.

        Raises `ServiceError` for what the model has no tensor for, and for texts without tokens.
        """
        refuse(request, self.features(facts))
        message = service_pb2.ModelInferRequest(model_name=facts.name, id=request.request_id)
        ids = self._ids(request)

        def add(name: str, values: Sequence[Any]) -> None:
            add_input(message, facts.inputs[name], values)

        add("input_ids", ids)
        add("input_lengths", [len(ids)])
        add("request_output_len", [request.sampling.max_output_tokens])
        add("streaming", [True])
        self._add_end(message, request, facts)
        add_shared(message, _FIELDS, request, facts, lora_task_id=self._settings.lora_task_id)
        if _STOP_WORDS in facts.inputs:
            _add_words(message, facts, _STOP_WORDS, list(self._stop_words(request)))
        if request.sampling.bad_words:
            _add_words(message, facts, _BAD_WORDS, self._bad_words(request))
        if request.sampling.logit_bias:
            self._add_bias(message, request, facts)
        add_outputs(message, (IDS, LENGTH), request, facts)
        return message

    def reader(self, request: EngineRequest, facts: ModelFacts) -> RawReader:  # noqa: ARG002 - part of the seam
        """Return the reader of one generation."""
        return RawReader(
            self._tokenizer.piece_with(request.marks),
            prompt_tokens=len(self._ids(request)),
            max_output_tokens=request.sampling.max_output_tokens or 0,
            max_context_tokens=self._settings.max_context_tokens,
            end_ids=frozenset() if request.sampling.ignore_eos else self._end_ids,
            token_ids=request.token_ids,
            logprobs=request.logprobs is not None,
        )

    @property
    def _tokenizer(self) -> Tokenizer:
        assert self._settings.tokenizer is not None  # else it is a problem of every model
        return self._settings.tokenizer

    def _ids(self, request: EngineRequest) -> tuple[int, ...]:
        assert not isinstance(request.prompt, str), "encoded before, as `takes_ids` says"
        if not request.prompt:
            raise invalid([Violation("prompt", "has no tokens")])
        return request.prompt

    @property
    def _end_ids(self) -> frozenset[int]:
        return frozenset(self._settings.end_ids) or self._tokenizer.eos_ids

    def _end_id(self) -> int | None:
        """Return the token that ends a text. A model's other ends, of a turn, came later and have higher ids."""
        return self._settings.end_ids[0] if self._settings.end_ids else min(self._end_ids, default=None)

    def _add_end(self, message: Any, request: EngineRequest, facts: ModelFacts) -> None:
        """Append the end of sequence: without it the engine knows none."""
        end_id = self._end_id()
        if request.sampling.ignore_eos:
            add_input(message, facts.inputs[_END], [_NO_END])
        elif _END in facts.inputs and (end_id is not None or _END in facts.required):
            add_input(message, facts.inputs[_END], [_NO_END if end_id is None else end_id])
        if _PAD in facts.required:
            # It fills up the shorter ones of a batch, and there is one only.
            add_input(message, facts.inputs[_PAD], [end_id or 0])

    def _stop_words(self, request: EngineRequest) -> Iterator[Sequence[int]]:
        """Return where the engine may stop by itself: other ends, stop tokens, and stop strings as ids.

        A string is cut into tokens in more than one way, so that most are found
        above only. One whose ids spell something else is left out: the engine
        would stop where the string is not.
        """
        if not request.sampling.ignore_eos:
            yield from ((end_id,) for end_id in sorted(self._end_ids - {self._end_id()}))
        yield from ((token_id,) for token_id in request.stop_token_ids)
        for text in request.stop_sequences:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            pieces = [self._tokenizer.piece(token_id) for token_id in ids]
            # A control token in it has no bytes, and is meant as it is.
            if ids and (b"" in pieces or text.encode() in b"".join(pieces)):
                yield ids

    def _bad_words(self, request: EngineRequest) -> list[Sequence[int]]:
        """Return the words as the tokenizer spells them; raises `ServiceError` for one without tokens."""
        words = [self._tokenizer.encode(text, add_special_tokens=False) for text in request.sampling.bad_words]
        empty = [place for place, ids in enumerate(words) if not ids]
        if empty:
            raise invalid([Violation(f"sampling.bad_words[{place}]", "has no tokens") for place in empty])
        return [*words]

    def _add_bias(self, message: Any, request: EngineRequest, facts: ModelFacts) -> None:
        """Append the bias as the model takes it: one number for each token of the vocabulary."""
        declared = facts.inputs[_BIAS].dims[-1]
        size = declared if declared > 0 else self._tokenizer.vocab_size
        data = bytearray(4 * size)
        for token_id, bias in request.sampling.logit_bias.items():
            if token_id >= size:
                raise invalid([Violation(f"sampling.logit_bias[{token_id}]", f"the token id must be below {size}")])
            struct.pack_into("<f", data, 4 * token_id, bias)
        _add_tensor(message, facts, _BIAS, (size,), bytes(data))


def word_rows(words: Iterable[Sequence[int]]) -> list[int]:
    """Return the two rows of a word list, one after the other.

    The first has the ids of all words in a row, filled up with 0, the second
    where each word ends, filled up with -1. A word has at least one id.
    """
    ids: list[int] = []
    ends: list[int] = []
    for word in words:
        ids += word
        ends.append(len(ids))
    return [*ids, *ends, *[-1] * (len(ids) - len(ends))]


def _add_words(message: Any, facts: ModelFacts, name: str, words: Sequence[Sequence[int]]) -> None:
    """Append a word list; nothing for no words, as a tensor must not be empty."""
    if words:
        rows = word_rows(words)
        _add_tensor(message, facts, name, (2, len(rows) // 2), struct.pack(f"<{len(rows)}i", *rows))


def _add_tensor(message: Any, facts: ModelFacts, name: str, shape: tuple[int, ...], data: bytes) -> None:
    spec = facts.inputs[name]
    lead = (1,) if spec.is_batched else ()
    message.inputs.add(name=name, datatype=spec.datatype, shape=(*lead, *shape))
    message.raw_input_contents.append(data)
