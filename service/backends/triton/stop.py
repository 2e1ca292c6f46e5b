"""Stops generations inside an ensemble, from outside it.

Triton does not pass a cancel or a deadline on to the engine step of an
ensemble. What reaches it is a second request to the engine model with the same
id and `stop` set. Whichever of the two comes first hits: a step that has not
begun when the stream is cancelled is never started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import add_input, neutral_values

__all__ = ["Stopper"]

_log = logging.getLogger(__name__)

_STOP: Final = "stop"
# A stop reaches one instance; with several, that many are sent at once.
_MOST_INSTANCES: Final = 8


class Stopper:
    """Sends stop requests in tasks of its own, so that a caller that leaves never waits for them."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, stub: Any, engine: ModelFacts | None, request_id: str, on_done: Callable[[], None]) -> None:
        """Ask `engine` to stop `request_id` and return at once; `on_done` is called when it was tried.

        Close the request's own stream first. Without an engine that takes a stop
        only `on_done` is called.
        """
        if engine is None or _STOP not in engine.inputs:
            on_done()
            return
        task = asyncio.create_task(self._send(stub, engine, request_id), name=f"triton-stop-{request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: on_done())

    async def wait(self) -> None:
        """Wait for the stops under way; each is bounded by the timeout."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _send(self, stub: Any, engine: ModelFacts, request_id: str) -> None:
        request = stop_request(engine, request_id)
        count = min(engine.instances, _MOST_INSTANCES)
        try:
            async with asyncio.timeout(self._timeout_s):
                async for message in stub.ModelStreamInfer(_repeat(request, count), timeout=self._timeout_s):
                    if message.error_message:
                        _log.warning("the engine refused to stop %s: %s", request_id, message.error_message)
            _log.debug("stop of %s was sent", request_id)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            _log.warning("the stop of %s did not reach the engine: %s", request_id, _first_line(error))


def stop_request(engine: ModelFacts, request_id: str) -> Any:
    """Return the stop request: the required inputs are checked by Triton and carry nothing."""
    request = service_pb2.ModelInferRequest(model_name=engine.name, id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name in sorted(engine.required - {_STOP}):
        spec = engine.inputs[name]
        add_input(request, spec, neutral_values(spec))
    add_input(request, engine.inputs[_STOP], [True])
    return request


async def _repeat(request: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield request


def _first_line(error: BaseException) -> str:
    return str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error or "timeout").split("\n", 1)[0]
