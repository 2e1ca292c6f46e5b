"""What is written of a generation: records, and the fields of a row. Pure.

Never prompts, outputs or credentials.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

from service.core.account import Closing, Opening

__all__ = ["INTERRUPTED", "SCHEMA_VERSION", "Begun", "Ended", "Record", "Value", "begun_fields", "ended_fields", "utc"]

SCHEMA_VERSION: Final = 1
# The outcome of a generation whose end nobody has recorded: its process is gone, or the record was lost.
INTERRUPTED: Final = "interrupted"

Value = str | int | float | datetime | None


class Begun(NamedTuple):
    """A generation runs from now on."""

    opening: Opening


class Ended(NamedTuple):
    """A generation has ended, or was refused and never ran."""

    opening: Opening
    closing: Closing


Record = Begun | Ended


def begun_fields(opening: Opening, process_id: str) -> dict[str, Value]:
    """Return what is known at the beginning."""
    return {
        "generation_id": opening.generation_id,
        "request_id": _clean(opening.request_id),
        "process_id": process_id,
        "tenant": _clean(opening.identity.tenant),
        "subject": _clean(opening.identity.subject),
        "end_user": _clean(opening.end_user),
        "model": _clean(opening.model),
        "priority": opening.priority.value,
        "choices": opening.choices,
        "received_at": utc(opening.received_at_s),
    }


def ended_fields(record: Ended, process_id: str) -> dict[str, Value]:
    """Return the whole row; None is unknown, never zero."""
    closing = record.closing
    usage, timing = closing.usage, closing.timing
    return begun_fields(record.opening, process_id) | {
        "ended_at": utc(closing.ended_at_s),
        "outcome": closing.outcome,
        "reason": closing.reason,
        "finish_reasons": ",".join(reason.name.lower() for reason in closing.finish_reasons),
        "prompt_tokens": usage.prompt_tokens,
        "cached_prompt_tokens": usage.cached_prompt_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "queue_s": _micro(timing.queue_s),
        "ttft_s": _micro(timing.ttft_s),
        "total_s": _micro(timing.total_s),
    }


def utc(unix_s: float) -> datetime:
    """Return a moment of Unix time, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC)


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _clean(text: str) -> str:
    # PostgreSQL takes no NUL in a text, and no encoder takes half a surrogate pair.
    return text.replace("\x00", "�").encode("utf-8", "replace").decode()
