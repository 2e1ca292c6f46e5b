"""Joining a retained generation again after the connection to it was lost.

It owns which failures are a lost connection, and how long to try. It must not
know grpc's calls: whoever makes a stream says how a call is opened again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

import grpc

from headrace._reader import EventReader
from headrace.errors import HeadraceError

__all__ = ["Reopen", "Resumption", "is_lost"]

# Opens a call for the events behind the number of the last one that came, with a timeout in seconds. The id is None
# before the first event; None is returned where the generation cannot be found again.
Reopen = Callable[[str | None, int, float], EventReader | None]

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
# Where no event has come, nobody may be there at all: some 3 s, enough for a service that starts anew.
TRIES_BEFORE_ANYTHING: Final = 5
# What the transport says; a server that is asked says why, in a reason.
LOST: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}
)


def is_lost(error: HeadraceError) -> bool:
    """Return whether the connection was lost, rather than the generation."""
    return not error.reason and error.status in LOST


class Resumption:
    """The tries of one stream, within what is left of its timeout.

    Pauses grow from 0.1 s to 2 s, each shortened by lot, and begin anew when an
    event has come. While none has, there are no more than a few tries.
    """

    __slots__ = ("_ends_s", "_reopen", "_tries")

    def __init__(self, reopen: Reopen, timeout_s: float) -> None:
        self._reopen = reopen
        self._ends_s = time.monotonic() + timeout_s
        self._tries = 0

    def progressed(self) -> None:
        """Note that an event has come."""
        self._tries = 0

    async def again(self, lost: HeadraceError, generation_id: str | None, after: int) -> EventReader:
        """Return a new call for the events behind `after`, after a pause. Raises `lost` if there is none to be had."""
        try:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._tries) * random.uniform(0.5, 1.0)  # noqa: S311 - a pause
            self._tries += 1
            left_s = self._ends_s - time.monotonic() - pause_s
            if left_s <= 0 or (generation_id is None and self._tries > TRIES_BEFORE_ANYTHING):
                raise lost
            await asyncio.sleep(pause_s)
            reader = self._reopen(generation_id, after, left_s)
            if reader is None:
                raise lost
            return reader
        finally:
            del lost  # its traceback has this frame
