"""The generations of one model: a bounded number at once, a bounded number that wait, and how they are ended."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from .jobs import Engine, EngineError
from .runs import Run
from .settings import Settings

__all__ = ["Generations"]


class Generations:
    """Runs every generation in a thread of its own, so that `execute` returns at once."""

    def __init__(self, engine: Engine, settings: Settings, *, polls_cancel: bool) -> None:
        self._engine = engine
        self._capacity = settings.slots + settings.max_queue_size
        self._period_s = settings.cancellation_check_period_ms / 1000
        self._pool = ThreadPoolExecutor(settings.slots, thread_name_prefix="generation")
        self._lock = threading.Lock()
        self._futures: dict[Run, Future[None]] = {}
        self._is_closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="cancellation", daemon=True) if polls_cancel else None
        if self._poller is not None:
            self._poller.start()

    def start(self, run: Run) -> None:
        """Begin a generation or let it wait; EngineError where the line is full."""
        with self._lock:
            if len(self._futures) >= self._capacity:
                raise EngineError(f"[request id: {run.request_id}] Exceeds maximum queue size")
            self._futures[run] = self._pool.submit(self._carry_out, run)

    def stop(self, request_id: str) -> int:
        """Ask every generation with this id to end, at once, and return how many there were."""
        return self._end([run for run in self._running() if run.request_id == request_id], "stop_seen")

    def close(self) -> None:
        """End every generation and wait for its thread."""
        self._is_closing.set()
        self._end(self._running(), "unloaded")
        self._pool.shutdown(wait=True)
        if self._poller is not None:
            self._poller.join()

    def _running(self) -> list[Run]:
        with self._lock:
            return list(self._futures)

    def _end(self, runs: list[Run], reason: str) -> int:
        for run in runs:
            run.interrupt(reason)
            if self._leaves_line(run):
                run.carry_out(self._engine)
        return len(runs)

    def _leaves_line(self, run: Run) -> bool:
        """Return whether the run still waited for a thread: then its place is free now, and not when one is."""
        with self._lock:
            future = self._futures.get(run)
            if future is None or not future.cancel():
                return False
            del self._futures[run]
            return True

    def _poll(self) -> None:
        while not self._is_closing.wait(self._period_s):
            self._end([run for run in self._running() if run.is_cancelled()], "cancel_seen")

    def _carry_out(self, run: Run) -> None:
        try:
            run.carry_out(self._engine)
        finally:
            with self._lock:
                del self._futures[run]
