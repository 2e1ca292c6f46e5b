"""What a generation tells its reader, in the order in which it may be told.

`queued* started (delta | choice_finished)* completed`; a failure is an exception,
never an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

__all__ = [
    "ChoiceFinished",
    "Completed",
    "Delta",
    "Event",
    "FinishReason",
    "Queued",
    "Started",
    "Timing",
    "TokenLogprob",
    "ToolCallPiece",
    "TopLogprob",
    "Usage",
]


class FinishReason(Enum):
    """Why a choice ended. The values are those of `headrace.v1.FinishReason`."""

    STOP = 1
    LENGTH = 2
    CONTEXT_LENGTH = 3
    TOOL_CALLS = 4
    TIME_LIMIT = 6
    CANCELLED = 7


class TopLogprob(NamedTuple):
    """An alternative token: natural-log probability and exact bytes."""

    token_id: int
    logprob: float
    raw: bytes


class TokenLogprob(NamedTuple):
    """A generated token: natural-log probability, exact bytes, alternatives best first.

    `token_id` is -1 where the engine does not tell it.
    """

    token_id: int
    logprob: float
    raw: bytes
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts over all choices. None is unknown, never zero."""

    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    # Of the output; None also where reasoning is not told apart.
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time went, in seconds. None: that point was never reached."""

    queue_s: float
    prefill_s: float | None
    ttft_s: float | None
    decode_s: float | None
    total_s: float
    # (output tokens - choices) / decode_s; 0 when it cannot be computed.
    output_tokens_per_s: float


class Queued(NamedTuple):
    """The request waits: how many of its class are in front, and how long that may take if anything is known."""

    ahead: int
    estimated_wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine answered for the first time."""

    prompt_tokens: int | None
    seed: int


class ToolCallPiece(NamedTuple):
    """A piece of a tool call: the call's number within its choice from 0, and the next fragment of its arguments.

    `id` and `name` are set in a call's first piece and empty in the others.
    """

    number: int
    id: str
    name: str
    arguments: str


# A tuple, not a frozen dataclass: one is built per token, and a frozen
# dataclass costs three times as much (object.__setattr__ per field).
class Delta(NamedTuple):
    """New output of one choice: valid UTF-8, and what stands behind it if asked for.

    At most one of `text`, `reasoning` and `call` is set. `is_mark`: none is, and the
    tokens are those of marks around reasoning and calls, which no text shows.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    call: ToolCallPiece | None = None
    is_mark: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFinished:
    """One choice ended. At most one of the two matches is set."""

    choice: int
    reason: FinishReason
    stop_sequence: str | None = None
    stop_token_id: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Every choice ended."""

    usage: Usage
    timing: Timing


Event = Queued | Started | Delta | ChoiceFinished | Completed
