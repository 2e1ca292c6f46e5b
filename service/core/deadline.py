"""A point in time by which work has to end, on one monotonic clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Deadline"]


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment on `time.monotonic()`."""

    at_s: float

    @classmethod
    def after(cls, timeout_s: float, now_s: float | None = None) -> Deadline:
        """Return the deadline that passes in `timeout_s` seconds."""
        return cls((time.monotonic() if now_s is None else now_s) + timeout_s)

    def remaining_s(self, now_s: float | None = None) -> float:
        """Return the seconds left; 0 once it has passed."""
        return max(0.0, self.at_s - (time.monotonic() if now_s is None else now_s))
