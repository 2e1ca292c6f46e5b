"""Stops generations that were left, and says how far that went.

Closing the stream is enough where the called model generates itself: it looks
for closed streams every now and then. Triton does not pass a cancel or a
deadline on to the engine step of an ensemble; what reaches it is a second
request to the engine model with the same id and `stop` set. Whichever of the
two comes first hits: a step that has not begun when the stream is cancelled is
never started. A token-level engine is sent one too: it hits sooner than the
next look. The engine below a BLS model knows the request by
another id, unless that model was written to pass it on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from service.backends.base import EngineStop, StopOutcome
from service.backends.triton.channel import InferOpener
from service.backends.triton.description import Described
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import UNWRITABLE, add_input, neutral_values

__all__ = ["CANARY_PREFIX", "LeftRun", "Stopper", "stop_request"]

_log = logging.getLogger(__name__)

# Ids of health checks.
CANARY_PREFIX: Final = "canary-"
_STOP: Final = "stop"
# A stop reaches one instance; with several, that many are sent at once.
_MOST_INSTANCES: Final = 8
# How often an engine looks for closed streams, by its own parameter, and without one.
_LOOK_EVERY: Final = "cancellation_check_period_ms"
_LOOK_EVERY_MS: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRun:
    """A generation that was left: its tokens until then, the most it could make, and its pace (None: unknown)."""

    request_id: str
    output_tokens: int
    max_output_tokens: int
    token_gap_s: float | None


class Stopper:
    """Sends stop requests in tasks of its own, so that a caller that leaves never waits for them."""

    def __init__(self, timeout_s: float, on_stop: Callable[[EngineStop], None]) -> None:
        self._timeout_s = timeout_s
        self._on_stop = on_stop
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, opener: InferOpener, described: Described, run: LeftRun, on_done: Callable[[], None]) -> None:
        """Stop the engine's work for `run` and return at once; `on_done` is called when it was tried.

        Close the request's own stream first.
        """
        contract, engine = described.contract.name, described.engine
        if engine is None or not _takes_stop(described):
            is_looked_for = contract in ("raw", "llmapi", "vllm")
            outcome = StopOutcome.LEFT_TO_ENGINE if is_looked_for else StopOutcome.UNREACHABLE
            self._report(described, run, outcome, None)
            on_done()
            return
        task = asyncio.create_task(self._send(opener, described, engine, run), name=f"triton-stop-{run.request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: on_done())

    async def wait(self) -> None:
        """Wait for the stops under way; each is bounded by the timeout."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _send(self, opener: InferOpener, described: Described, engine: ModelFacts, run: LeftRun) -> None:
        try:
            request = stop_request(engine, run.request_id)
        except UNWRITABLE as error:
            _log.warning("no stop can be written for %s: %r", engine.name, error)
            self._report(described, run, StopOutcome.FAILED, None)
            return
        count = min(engine.instances, _MOST_INSTANCES)
        begun_s = time.monotonic()
        answers = await asyncio.gather(*(self._ask(opener, request) for _ in range(count)))
        refusals = [answer for answer in answers if answer]
        for refusal in refusals:
            # A health check that failed says so itself.
            level = logging.DEBUG if run.request_id.startswith(CANARY_PREFIX) else logging.WARNING
            _log.log(level, "the stop of %s did not reach the engine: %s", run.request_id, refusal)
        outcome = StopOutcome.FAILED if refusals else StopOutcome.ACKNOWLEDGED
        self._report(described, run, outcome, time.monotonic() - begun_s)

    async def _ask(self, opener: InferOpener, request: Any) -> str:
        """Send one stop, on the connection of the request itself and behind its cancel; return why it failed, or ""."""
        call = opener.open(request, timeout_s=self._timeout_s, metadata=())
        try:
            async with asyncio.timeout(self._timeout_s):
                while messages := await call.take(_MOST_INSTANCES):
                    for message in messages:
                        if message.error_message:
                            return _first_line(message.error_message)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
            return _first_line(details or "no answer in time")
        finally:
            call.cancel()
        return ""

    def _report(self, described: Described, run: LeftRun, outcome: StopOutcome, took_s: float | None) -> None:
        stop_s = took_s if outcome is StopOutcome.ACKNOWLEDGED else None
        rest = max(0, run.max_output_tokens - run.output_tokens)
        wait_s = stop_s
        if outcome is StopOutcome.LEFT_TO_ENGINE:
            wait_s = _looks_every_s(described)
        wasted = rest if wait_s is None else min(rest, _tokens_within(wait_s, run.token_gap_s))
        self._on_stop(
            EngineStop(contract=described.contract.name, outcome=outcome, stop_s=stop_s, wasted_tokens=wasted)
        )


def stop_request(engine: ModelFacts, request_id: str) -> Any:
    """Return the stop request: the required inputs are checked by Triton and carry nothing."""
    request = service_pb2.ModelInferRequest(model_name=engine.name, id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name in sorted(engine.required - {_STOP}):
        spec = engine.inputs[name]
        add_input(request, spec, neutral_values(spec))
    add_input(request, engine.inputs[_STOP], [True])
    return request


def _takes_stop(described: Described) -> bool:
    if described.engine is None or _STOP not in described.engine.inputs:
        return False
    if described.contract.name == "llmapi":
        # It looks for the closed stream by itself. A stop in addition came sooner and, in one run of
        # four with a thousand cancels each, took the whole of a 2.51 server down with it.
        return False
    if described.contract.name == "bls":
        return described.passes_id_on
    return True


def _looks_every_s(described: Described) -> float:
    """Return how long a closed stream may stay unseen; vLLM's backend looks at every output."""
    if described.contract.name == "vllm" or described.engine is None:
        return 0.0
    try:
        return float(described.engine.parameters.get(_LOOK_EVERY, _LOOK_EVERY_MS)) / 1000
    except ValueError:
        return _LOOK_EVERY_MS / 1000


def _tokens_within(wait_s: float, gap_s: float | None) -> int:
    """Return how many tokens an engine of this pace makes in `wait_s`, and the one that it is at."""
    return 1 + (math.ceil(wait_s / gap_s) if gap_s else 0)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
