"""What is kept of a generation for whoever pays for it: the seam of limits and ledger.

An account is opened once for every generation that is about to run, before it
takes a place in the line, and closed once, whatever its end is. Calls that only
join a generation have none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.core.events import FinishReason, Timing, Usage
from service.core.identity import Identity
from service.core.request import Chat, GenerationRequest, Priority, TokenIds

__all__ = ["Account", "Accounts", "Closing", "NoAccounts", "Opening", "closing_unrun", "estimated_prompt_tokens"]

_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A generation that is about to run.

    `prompt_tokens` is an estimate; `max_output_tokens` is what was asked for of one
    choice, None if that was left to the model. `received_at_s` is Unix time.
    """

    generation_id: str
    request_id: str
    identity: Identity
    model: str
    priority: Priority
    choices: int
    prompt_tokens: int
    max_output_tokens: int | None
    end_user: str
    received_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """How it ended. `usage` has what the engine has told, with the output so far; `outcome` is that of the request log.

    `reason` names the failure, None where there was none. `finish_reasons` are those of its choices.
    """

    usage: Usage
    timing: Timing
    outcome: str
    reason: str | None
    finish_reasons: Sequence[FinishReason]
    ended_at_s: float  # Unix time


class Account(Protocol):
    """One generation's account."""

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """Metadata for the caller that tells where its limits stand; names are lower case. Read once, after opening."""
        ...

    async def close(self, closing: Closing) -> None:
        """Settle and write down; once. Never raises, and returns within a second or so even if a store does not answer.

        It is awaited before the caller is told its status, so that what a caller
        has seen the end of is on record.
        """
        ...


class Accounts(Protocol):
    """Opens accounts."""

    async def open(self, opening: Opening) -> Account:
        """Return the account of a generation. ServiceError (RATE_LIMITED, QUOTA_EXHAUSTED) if it must not run."""
        ...

    def max_output_tokens(self, identity: Identity, model: str) -> int | None:
        """Return the most tokens that a caller gets in one choice of a model; None for no limit but the model's."""
        ...


class NoAccounts:
    """Nothing is limited and nothing is kept. It is its own account."""

    headers: Sequence[tuple[str, str]] = ()

    async def open(self, opening: Opening) -> Account:  # noqa: ARG002 - of the protocol
        """Return itself."""
        return self

    def max_output_tokens(self, identity: Identity, model: str) -> int | None:  # noqa: ARG002 - of the protocol
        """Return None."""
        return None

    async def close(self, closing: Closing) -> None:
        """Do nothing."""


def closing_unrun(received_at_s: float, outcome: str, reason: str | None) -> Closing:
    """Return how a generation ended that never ran: no tokens, and all of its time waited."""
    now_s = time.time()
    total_s = max(now_s - received_at_s, 0.0)
    return Closing(
        usage=Usage(prompt_tokens=0, cached_prompt_tokens=0, output_tokens=0, reasoning_tokens=0),
        timing=Timing(
            queue_s=total_s, prefill_s=None, ttft_s=None, decode_s=None, total_s=total_s, output_tokens_per_s=0.0
        ),
        outcome=outcome,
        reason=reason,
        finish_reasons=(),
        ended_at_s=now_s,
    )


def estimated_prompt_tokens(request: GenerationRequest) -> int:
    """Return about how many tokens the prompt has: exact for token ids, else a quarter of its characters."""
    given = request.input
    if isinstance(given, TokenIds):
        return len(given.ids)
    chars = sum(len(message.content) for message in given.messages) if isinstance(given, Chat) else len(given.text)
    return max(1, -(-chars // _CHARS_PER_TOKEN))
