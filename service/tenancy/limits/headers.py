"""The headers that tell a caller where its limits stand, with the names and in the writing of the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from service.tenancy.limits.windows import Ask, Limit, State

__all__ = ["duration_text", "headers_of"]

_NAMES: Final = ((Limit.REQUESTS, "requests"), (Limit.TOKENS, "tokens"))


def headers_of(asks: Sequence[Ask], states: Sequence[State]) -> tuple[tuple[str, str], ...]:
    """Return the headers for the limits of a minute; where two hold, those of the one that has less left."""
    return tuple(_headers(asks, states))


def _headers(asks: Sequence[Ask], states: Sequence[State]) -> Iterator[tuple[str, str]]:
    for limit, name in _NAMES:
        found = [(ask, state) for ask, state in zip(asks, states, strict=True) if ask.limit is limit]
        if found:
            ask, state = min(found, key=lambda pair: pair[0].most - pair[1].used)
            yield f"x-ratelimit-limit-{name}", str(ask.most)
            yield f"x-ratelimit-remaining-{name}", str(max(0, ask.most - state.used))
            yield f"x-ratelimit-reset-{name}", duration_text(state.reset_ms)


def duration_text(duration_ms: int) -> str:
    """Return a duration as OpenAI writes it, which is Go's way: `20ms`, `1s`, `7.66s`, `6m0s`, `1h0m0s`, `0s`."""
    if 0 < duration_ms < 1000:
        return f"{duration_ms}ms"
    seconds, ms = divmod(max(duration_ms, 0), 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{ms:03d}".rstrip("0").rstrip(".") if ms else str(seconds)
    if hours:
        return f"{hours}h{minutes}m{text}s"
    return f"{minutes}m{text}s" if minutes else f"{text}s"
