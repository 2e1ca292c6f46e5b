"""The order in which events may be told, and their numbers.

A guard against our own mistakes: a stream that would break the contract ends
with an error instead of reaching a client that trusts it.
"""

from __future__ import annotations

from service.core.events import ChoiceFinished, Completed, Delta, Event, Queued, Started

__all__ = ["EventSequence"]


class EventSequence:
    """Numbers the events of one generation from 1 without gaps.

    `queued* started (delta | choice_finished)* completed`; no delta of a choice
    after its end; `completed` only when every choice has ended.
    """

    __slots__ = ("_choices", "_is_completed", "_is_started", "_open", "number")

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._open: set[int] = set()
        self._is_started = False
        self._is_completed = False
        self.number = 0

    def next(self, event: Event) -> int:
        """Return the number of `event`. Raises ValueError if it may not come now."""
        if type(event) is Delta:
            if event.choice not in self._open:
                raise ValueError(f"delta of choice {event.choice}, which is not open")
        elif self._is_completed:
            raise ValueError(f"{type(event).__name__} after completed")
        elif isinstance(event, Started):
            if self._is_started:
                raise ValueError("started a second time")
            self._is_started = True
            self._open = set(range(self._choices))
        elif isinstance(event, ChoiceFinished):
            if event.choice not in self._open:
                raise ValueError(f"end of choice {event.choice}, which is not open")
            self._open.remove(event.choice)
        elif isinstance(event, Completed):
            if not self._is_started or self._open:
                raise ValueError("completed while choices are open")
            self._is_completed = True
        elif isinstance(event, Queued) and self._is_started:
            raise ValueError("queued after started")
        self.number += 1
        return self.number
