"""Keep the traces that matter although the sampler drops them: decided when a request ends.

A sampler decides before anything is known, so that at ten percent nine of ten slow
requests are lost. Here the spans of what it drops wait in memory until the local root of
their trace has ended (the span whose parent is in another process, or nowhere), and are
kept after all if that root is marked with `headrace.sampling.keep` or has failed.

Bounded: so many requests wait, with so many spans each, and so many are kept a second;
what has no room is lost, and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from runtime.otel.span import RecordedSpan, Request

__all__ = ["Tail"]

# In an outage every request fails, and the first hundreds of them say it all.
_MAX_KEPT_PER_S: Final = 50.0
_BURST_S: Final = 10.0
# A request has fewer than ten spans; with several prompts a few for each.
_MAX_SPANS: Final = 128
_MAX_REQUESTS: Final = 8192


class Tail:
    """The requests that are not sampled. `count` is told once for each: kept, dropped or lost. Thread-safe."""

    def __init__(
        self,
        count: Callable[[str], None],
        *,
        max_requests: int = _MAX_REQUESTS,
        max_spans: int = _MAX_SPANS,
        max_kept_per_s: float = _MAX_KEPT_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._max_requests = max_requests
        self._max_spans = max_spans
        self._per_s = max_kept_per_s
        self._clock = clock
        self._allowed = max_kept_per_s * _BURST_S
        self._allowed_at_s = clock()
        self._lock = Lock()
        # In the order in which they began.
        self._waiting: dict[Request, None] = {}

    @property
    def waiting(self) -> int:
        """Requests whose end is awaited."""
        return len(self._waiting)

    def begun(self, request: Request) -> None:
        """Note that a request has begun which is not sampled."""
        lost = False
        with self._lock:
            self._waiting[request] = None
            if len(self._waiting) > self._max_requests:
                # The oldest: a stream that runs for long is one that the others must not wait for.
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                oldest.is_kept, lost = False, True
                oldest.ended.clear()
        if lost:
            self._count("lost")

    def ended(self, span: RecordedSpan) -> Sequence[RecordedSpan]:
        """Return what is to be exported now that a span of an undecided request has ended."""
        request = span.request
        with self._lock:
            if request.is_kept is not None:
                return [span] if request.is_kept else ()
            if span.is_root or len(request.ended) < self._max_spans - 1:
                request.ended.append(span)
            if not span.is_root:
                return ()
            self._waiting.pop(request, None)
            request.is_kept = span.is_notable and self._may_keep()
            ended, request.ended = request.ended, []
        self._count("kept" if request.is_kept else "lost" if span.is_notable else "dropped")
        return ended if request.is_kept else ()

    def forget(self) -> None:
        """Await nothing any more."""
        with self._lock:
            self._waiting.clear()

    def _may_keep(self) -> bool:
        now_s = self._clock()
        grown = self._allowed + (now_s - self._allowed_at_s) * self._per_s
        self._allowed, self._allowed_at_s = min(grown, self._per_s * _BURST_S), now_s
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
