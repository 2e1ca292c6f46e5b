"""The bounds of one model's admission, and what is taken where nobody sets them. Knows nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from service.core.request import Priority

__all__ = ["DEFAULT_BATCH_TURN", "DEFAULT_WAITING", "AdmissionLimits", "default_reserved", "reserved_problem"]

DEFAULT_WAITING: Final = 256
DEFAULT_BATCH_TURN: Final = 8

# An eighth of the slots, and none where that would leave batch hardly any.
_RESERVED_SHARE: Final = 8
_LEAST_TO_RESERVE: Final = 4


def default_reserved(running: int) -> int:
    """Return how many of `running` slots batch leaves free where nobody says."""
    return max(1, running // _RESERVED_SHARE) if running >= _LEAST_TO_RESERVE else 0


def reserved_problem(reserved: int, running: int) -> str | None:
    """Return what is wrong with so many reserved slots; None if nothing is."""
    if reserved < running:
        return None
    return f"must be less than the {running} slots that there are, so that batch has one, got {reserved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Bounds of one model.

    running: slots; a request takes one per choice.
    reserved: slots that batch leaves free for interactive requests.
    waiting, waiting_batch: requests in the line of each class; 0 lets none wait.
    batch_turn: of so many slots that are granted while batch waits, one goes to
        batch, even though interactive requests wait too.
    refuses_hopeless: refuse at once what cannot have a token before its deadline.
    """

    running: int
    reserved: int = 0
    waiting: int = DEFAULT_WAITING
    waiting_batch: int = DEFAULT_WAITING
    batch_turn: int = DEFAULT_BATCH_TURN
    refuses_hopeless: bool = True

    def __post_init__(self) -> None:
        least = (("running", 1), ("reserved", 0), ("waiting", 0), ("waiting_batch", 0), ("batch_turn", 2))
        problems = [
            f"{name} must be at least {bound}, got {getattr(self, name)}"
            for name, bound in least
            if getattr(self, name) < bound
        ]
        if self.running >= 1 and (problem := reserved_problem(self.reserved, self.running)):
            problems.append(f"reserved {problem}")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def running_batch(self) -> int:
        """Slots that batch may use."""
        return self.running - self.reserved

    def running_of(self, priority: Priority) -> int:
        """Return how many slots a class may use."""
        return self.running_batch if priority is Priority.BATCH else self.running

    def waiting_of(self, priority: Priority) -> int:
        """Return how many requests of a class may wait."""
        return self.waiting_batch if priority is Priority.BATCH else self.waiting

    def places_of(self, priority: Priority, share: float | None) -> int:
        """Return how many of them may be of one tenant: that part of the line, and one at least where any may wait."""
        places = self.waiting_of(priority)
        return places if share is None else min(places, max(1, int(places * share)))
