"""One running generation: its responses, its counts and its end. What the contracts have in common."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils

from .engines import Loaded
from .events import EventLog
from .jobs import Engine, EngineError, Job, NoOutputError, ProcessDiedError, Step, ThreadDiedError
from .stopping import StopRule

__all__ = ["FINAL", "Part", "Run", "Times"]

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


@dataclass
class Part:
    """Tokens of one response, with what belongs to each of them."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Sequence[tuple[int, float]]] = field(default_factory=list)

    def extend(self, other: Part) -> None:
        """Append another part."""
        self.ids += other.ids
        self.logprobs += other.logprobs
        self.alternatives += other.alternatives


class Times:
    """When a request arrived, was begun and had its tokens: nanoseconds of the monotonic clock."""

    def __init__(self) -> None:
        self.arrival_ns = self.last_ns = time.monotonic_ns()
        self.scheduled_ns = self.first_ns = 0

    def on_tokens(self, prompt_s: float) -> None:
        """Take the time of a response whose engine says how long the prompt took."""
        self.last_ns = time.monotonic_ns()
        if not self.first_ns:
            self.first_ns = self.last_ns
            self.scheduled_ns = max(self.arrival_ns, self.first_ns - int(prompt_s * 1e9))

    def by_name(self) -> dict[str, int]:
        """Return them under the names of the contracts' tensors."""
        return {
            "arrival_time_ns": self.arrival_ns,
            "first_scheduled_time_ns": self.scheduled_ns,
            "first_token_time_ns": self.first_ns,
            "last_token_time_ns": self.last_ns,
        }


class Run:
    """Lives from `execute` to the final response, which is sent in every case.

    The final flag rides on the last content where that is known to be the last.
    Contracts implement `_content`, and what they send besides it.
    """

    # Whether a thread looks for the client's cancel; otherwise every output does.
    is_polled: ClassVar[bool] = True
    # Whether there is a last content even without new tokens, because it says how it ended.
    has_last_content: ClassVar[bool] = True

    def __init__(self, request: Any, sender: Any, loaded: Loaded, log: EventLog, job: Job, *, streams: bool) -> None:
        self.request_id: str = request.request_id()
        self._sender = sender
        self._job = job
        self._streams = streams
        self._log = log
        self._rule = StopRule(loaded.vocabulary, job.max_tokens, job.stop_words, job.stop_ids, job.min_tokens)
        self._times = Times()
        # A request that does not stream is answered once, with everything.
        self._whole = Part()
        self._finish_reason = ""
        self._interruption = ""
        self._separates_final = False
        self._is_over = False
        # Guards the moment of the final flag: afterwards the sender must not be asked for a cancel.
        self._end = threading.Lock()

    @staticmethod
    def error(message: str) -> Any:
        """Return the response that carries an error."""
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))

    def interrupt(self, reason: str) -> None:
        """Ask the generation to end, from any thread; seen at the next token or tick."""
        self._interruption = self._interruption or reason

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled a request that still runs; from any thread."""
        with self._end:
            return not self._is_over and bool(self._sender.is_cancelled())

    def carry_out(self, engine: Engine) -> None:
        """Generate and send; never raises, and sends the final flag but for a scripted death."""
        self._log.write("start", self.request_id, max_tokens=self._job.max_tokens)
        error: str | None = None
        try:
            if not self._interruption:
                self._separates_final = engine.separates_final(self._job)
                engine.generate(self._job, self._on_step)
            last = self._last()
        except ThreadDiedError:
            self._log_end("thread_died")
            return
        except ProcessDiedError:
            self._log_end("process_died")
            os.kill(os.getpid(), signal.SIGKILL)
        except NoOutputError:
            last = None
        except EngineError as failure:
            error = str(failure)
        except Exception as failure:  # a thread that dies silently leaves the client waiting for ever
            error = f"the engine failed: {failure}"
        self._log_end(error or self._interruption or "end")
        if not self._is_over:
            try:
                self._finish(last if error is None else self.error(error))
            except Exception as failure:
                pb_utils.Logger.log_error(f"request {self.request_id}: the final response was not sent: {failure}")

    def _content(self, part: Part, *, is_last: bool) -> Any:
        """Return the response for new tokens (or all of them, where the request does not stream)."""
        raise NotImplementedError

    def _interrupted(self) -> Any | None:
        """Return what is sent with the final flag after an interruption, None for nothing."""
        return None

    def _log_end(self, reason: str) -> None:
        self._log.write("end", self.request_id, tokens=self._rule.count, reason=reason)

    def _on_step(self, step: Step | None) -> bool:
        if step is not None and not self.is_polled and self.is_cancelled():
            self.interrupt("cancel_seen")
        if self._interruption or self._is_over:
            return True
        if step is None:
            return False
        if step.error:
            self._sender.send(self.error(step.error))
        ids, is_last = self._rule.take(step.ids) if step.is_counted else (list(step.ids), False)
        is_last = is_last or step.is_last
        if is_last:
            self._finish_reason = "stop" if step.is_last or self._rule.is_stopped else "length"
        if ids:
            self._log.write("tokens", self.request_id, n=self._rule.count)
            self._times.on_tokens(step.prompt_s)
        part = Part(ids, list(step.logprobs[: len(ids)]), list(step.alternatives[: len(ids)]))
        if not self._streams:
            self._whole.extend(part)
        elif is_last and (ids or self.has_last_content):
            self._finish(self._content(part, is_last=True))
        elif ids:
            self._sender.send(self._content(part, is_last=False))
        return is_last

    def _last(self) -> Any | None:
        """Return what is sent with the final flag, if that is still to come."""
        if self._is_over:
            return None
        if self._interruption:
            return self._interrupted()
        if not self._finish_reason:  # the window is full
            self._finish_reason = "length"
        part = Part() if self._streams else self._whole
        return self._content(part, is_last=True) if part.ids or self.has_last_content else None

    def _finish(self, response: Any | None) -> None:
        with self._end:
            self._is_over = True
        if response is None:
            self._sender.send(flags=FINAL)
        elif self._separates_final:
            self._sender.send(response)
            self._sender.send(flags=FINAL)
        else:
            # Error and final flag in one message: apart, they can crash servers before 2.68.
            self._sender.send(response, flags=FINAL)
