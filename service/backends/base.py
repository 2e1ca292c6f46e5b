"""The seam between the service and an engine.

A backend turns one `EngineRequest` into an async iterator of engine items. It
knows nothing of gRPC servers, HTTP, OpenAI, chat templates, stop-string
matching or UTF-8 assembly: those are done once, above it, for every engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from service.backends.tokenizer import EngineTokenizer
from service.core.deadline import Deadline
from service.core.events import TokenLogprob
from service.core.request import Constraint, Sampling

__all__ = [
    "NEUTRAL",
    "Backend",
    "BackendInfo",
    "EngineFinish",
    "EngineFinished",
    "EngineItem",
    "EngineOutput",
    "EngineRequest",
    "EngineStarted",
    "EngineStop",
    "Feature",
    "Health",
    "StopOutcome",
]


class Feature(Enum):
    """What a backend can do beyond streaming text for a prompt.

    The value names the request field; a request that uses a field whose
    feature is missing is refused with CAPABILITY_UNSUPPORTED.
    """

    TOKEN_INPUT = "tokens"
    TEMPERATURE = "sampling.temperature"
    TOP_P = "sampling.top_p"
    TOP_K = "sampling.top_k"
    MIN_P = "sampling.min_p"
    FREQUENCY_PENALTY = "sampling.frequency_penalty"
    PRESENCE_PENALTY = "sampling.presence_penalty"
    REPETITION_PENALTY = "sampling.repetition_penalty"
    SEED = "sampling.seed"
    MIN_OUTPUT_TOKENS = "sampling.min_output_tokens"
    BAD_WORDS = "sampling.bad_words"
    LOGIT_BIAS = "sampling.logit_bias"
    IGNORE_EOS = "sampling.ignore_eos"
    # Generated token ids come with each output (also needed to stop on a token id).
    TOKEN_IDS = "output.token_ids"
    LOGPROBS = "output.logprobs"
    TOP_LOGPROBS = "output.top_logprobs"
    JSON_OBJECT = "constraint.json_object"
    JSON_SCHEMA = "constraint.json_schema"
    REGEX = "constraint.regex"
    GRAMMAR = "constraint.grammar"
    CHOICE = "constraint.choice"


# What changes nothing: asking for it needs no feature.
NEUTRAL: Final[Mapping[Feature, float]] = {
    Feature.TOP_P: 1,
    Feature.TOP_K: 0,
    Feature.MIN_P: 0,
    Feature.FREQUENCY_PENALTY: 0,
    Feature.PRESENCE_PENALTY: 0,
    Feature.REPETITION_PENALTY: 1,
    Feature.MIN_OUTPUT_TOKENS: 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One run of the engine: one choice.

    `prompt` is text or token ids. `add_special_tokens` is False when the text
    comes from a chat template that wrote them itself. `sampling` is complete
    where the engine needs it: `max_output_tokens` and `seed` are never None.
    `stop_sequences` is a hint: the engine may stop there, and the service
    matches them itself anyway. `stop_token_ids` are matched above as well.
    `logprobs` is None (off) or the number of alternatives, 0 to 20. `marks` are
    texts that a reader above looks for: where they are control tokens, which an
    engine leaves out, they have to be in the output; an engine that cannot show
    them ignores it.
    `trace_headers` go to the engine as they are (W3C traceparent).
    """

    request_id: str
    prompt: str | tuple[int, ...]
    sampling: Sampling
    deadline: Deadline
    add_special_tokens: bool = True
    stop_sequences: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    logprobs: int | None = None
    token_ids: bool = False
    marks: tuple[str, ...] = ()
    trace_headers: Mapping[str, str] = field(default_factory=dict)


class EngineStarted(NamedTuple):
    """The engine took the request. At most once, before any output; optional.

    `queue_s` is how long the engine itself let the request wait, by its own clock.
    """

    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    queue_s: float | None = None


# Tuples, not frozen dataclasses, because one is built per token.
class EngineOutput(NamedTuple):
    """What the engine generated since the last item.

    `data` are the bytes of the new text, split anywhere, also inside a
    character; may be empty. `tokens` is how many tokens stand behind it, or
    None when the engine does not say. `token_ids` and `logprobs` only if asked for.
    """

    data: bytes
    tokens: int | None = 1
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class EngineFinish(Enum):
    """Why the engine ended. UNKNOWN: its contract does not say."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT_LENGTH = "context_length"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinished:
    """Last item of a run. An iterator that ends without it has failed.

    Counts are None where the engine does not report them. The three `*_s` are
    the engine's own clock, as differences, for the span only.
    """

    reason: EngineFinish
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    engine_queue_s: float | None = None
    engine_prefill_s: float | None = None
    engine_decode_s: float | None = None


EngineItem = EngineStarted | EngineOutput | EngineFinished


class StopOutcome(Enum):
    """How far the cancel of a running generation went.

    ACKNOWLEDGED: the engine said that it took it. LEFT_TO_ENGINE: the engine
    looks for closed streams by itself, and does not say when. UNREACHABLE: nothing
    reaches it, it runs to its end. FAILED: it was asked, and did not answer.
    """

    ACKNOWLEDGED = "acknowledged"
    LEFT_TO_ENGINE = "left_to_engine"
    UNREACHABLE = "unreachable"
    FAILED = "failed"


class EngineStop(NamedTuple):
    """What became of a generation that was left before its end.

    `contract` names the engine's interface. `stop_s`: from the cancel to the
    engine's answer; None without one. `wasted_tokens`: at most how many tokens
    the engine made, or will make, for nobody.
    """

    contract: str
    outcome: StopOutcome
    stop_s: float | None
    wasted_tokens: int


class Health(Enum):
    """Whether the engine takes work now."""

    LOADING = "loading"
    READY = "ready"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """Facts about the engine, valid once `start` has returned.

    `provider` is the OTel `gen_ai.provider.name`. `server_address` and
    `server_port` are None for an engine in this process. `fingerprint` changes
    when the engine's configuration does. `chat_template` and `bos_text` come
    from the model file, if it has them. `max_running` is how many generations the
    engine runs at once, those of all its servers together; None where it does not
    say. What comes beyond it waits, and had better wait where its place in the
    line and its deadline are known.
    """

    provider: str
    features: frozenset[Feature]
    fingerprint: str
    max_context_tokens: int | None = None
    vocab_size: int | None = None
    chat_template: str | None = None
    bos_text: str = ""
    eos_text: str = ""
    # Texts that the engine reads as control tokens wherever they stand in a prompt.
    control_texts: tuple[str, ...] = ()
    # No token stands for more of a text; None if the engine does not say.
    longest_token_bytes: int | None = None
    server_address: str | None = None
    server_port: int | None = None
    max_running: int | None = None


class Backend(Protocol):
    """An engine that serves one model."""

    async def start(self) -> None:
        """Load or connect. Idempotent; called once before anything else.

        A backend whose engine is remote and unreachable returns normally and
        reports UNAVAILABLE from `health` until it is there. Raises
        `ServiceError` only for what waiting cannot mend (a missing file, a
        model that fits no contract).
        """
        ...

    async def close(self) -> None:
        """Release everything. Running generations are cancelled."""
        ...

    @property
    def info(self) -> BackendInfo:
        """Facts about the engine."""
        ...

    async def health(self, timeout_s: float) -> Health:
        """Return whether the engine really generates, within `timeout_s`. Never raises."""
        ...

    async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
        """Return the prompt's length in tokens, or None if the engine does not count.

        Raises BACKEND_UNAVAILABLE if it does, but not now, and may raise
        CONTEXT_LENGTH_EXCEEDED for a prompt that does not fit its own window.
        """
        ...

    @property
    def tokenizer(self) -> EngineTokenizer | None:
        """The engine's own tokenizer; None if it keeps it to itself."""
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        """Run one generation.

        Yields at most one `EngineStarted`, any number of `EngineOutput`, and
        exactly one `EngineFinished`. Raises `ServiceError` with
        BACKEND_UNAVAILABLE, BACKEND_ERROR or DEADLINE_IN_DECODE, and before any
        output also INVALID_FIELD, CONTEXT_LENGTH_EXCEEDED or CAPABILITY_UNSUPPORTED.

        Cancelling the task that awaits the next item, and `aclose()`, stop the
        engine's work and return only when the stop has been asked for. The
        engine gets the remaining time of `request.deadline`.
        """
        ...
