"""One `ModelStreamInfer` call that carries one request, with its silence limits.

Knows the protocol of the stream, and nothing of what is in the tensors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc

from service.backends.triton.faults import fault_from_status, fault_from_text, fault_of_stream
from service.core.errors import ServiceError

__all__ = ["InferStream"]

# The status is right behind the final response; a server that holds it back is not waited for.
_DRAIN_S: Final = 0.1


class InferStream:
    """Sends one request, half-closes at once and reads the responses.

    A client that does not half-close keeps the stream, and a stopping server,
    alive until the deadline. The end is the final flag: a stream that closes
    before it has failed, whatever its status says.
    """

    __slots__ = ("_call", "_cause", "_gap_s", "_has_output", "_heard_s", "_loop", "_timer", "_wait_s", "is_final")

    def __init__(
        self,
        stub: Any,
        request: Any,
        *,
        timeout_s: float,
        metadata: Sequence[tuple[str, str]] = (),
        first_timeout_s: float | None = None,
        gap_timeout_s: float | None = None,
    ) -> None:
        self._call = stub.ModelStreamInfer(_once(request), timeout=timeout_s, metadata=tuple(metadata))
        self._loop = asyncio.get_running_loop()
        self._cause: ServiceError | None = None
        self._has_output = False
        self.is_final = False
        self._gap_s = gap_timeout_s
        self._wait_s = first_timeout_s
        self._heard_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        if first_timeout_s is not None:
            self._timer = self._loop.call_later(first_timeout_s, self._on_timer)

    async def next(self) -> Any:
        """Return the next `ModelInferResponse`; after it `is_final` says whether it was the last.

        Raises `ServiceError` for every failure, in-band or not. Cancelling the
        wait cancels the call.
        """
        try:
            message = await self._call.read()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._cause is not None and (task is None or not task.cancelling()):
                raise self._cause from None
            raise
        except grpc.aio.AioRpcError as error:
            raise self._cause or fault_from_status(error, has_output=self._has_output) from None
        if message is grpc.aio.EOF:
            raise fault_of_stream("the stream ended without the final flag")
        if message.error_message:
            raise fault_from_text(message.error_message, has_output=self._has_output)
        response = message.infer_response
        self.is_final = response.parameters["triton_final_response"].bool_param
        self._heard_s = self._loop.time()
        if not self._has_output:
            self._has_output = True
            self._wait_s = self._gap_s
            if self._timer is not None or self._gap_s is not None:
                self._rearm(self._gap_s)
        return response

    async def drain(self) -> None:
        """Take the status that follows the final response, so that the stream ends and is not reset.

        Bounded and without failure: the generation is complete already.
        """
        self._rearm(None)
        try:
            async with asyncio.timeout(_DRAIN_S):
                while await self._call.read() is not grpc.aio.EOF:
                    pass
        except (grpc.aio.AioRpcError, TimeoutError):
            pass

    def abort(self, cause: ServiceError) -> None:
        """Cancel the call; a reader that waits gets `cause`."""
        self._cause = cause
        self._call.cancel()

    def close(self) -> None:
        """Cancel the call if it still runs. Idempotent, never waits."""
        self._rearm(None)
        self._call.cancel()

    def _rearm(self, delay_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay_s is None else self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        """Look once per limit whether anything came since: nothing is armed per response."""
        self._timer = None
        if self._wait_s is None:
            return
        silence_s = self._loop.time() - self._heard_s
        if silence_s >= self._wait_s:
            where = "between responses" if self._has_output else "before the first response"
            self.abort(fault_of_stream(f"silent for {silence_s:.1f} s {where}"))
        else:
            self._rearm(self._wait_s - silence_s)


async def _once(request: Any) -> AsyncIterator[Any]:
    yield request
