"""One `ModelStreamInfer` call that carries one request, with its silence limits.

Knows the protocol of the stream, and nothing of what is in the tensors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from service.backends.triton.channel import InferOpener
from service.backends.triton.faults import fault_from_status, fault_from_text, fault_of_stream
from service.core.errors import ServiceError

__all__ = ["InferStream"]

# How many responses are handed out at once: one stream's backlog must not hold up the others.
_MOST_AT_ONCE: Final = 64
# The status is right behind the final response; a server that holds it back is not waited for.
_DRAIN_S: Final = 0.1


class InferStream:
    """Sends one request, half-closes at once and reads the responses.

    A client that does not half-close keeps the stream, and a stopping server,
    alive until the deadline. The end is the final flag: a stream that closes
    before it has failed, whatever its status says.
    """

    __slots__ = (
        "_call",
        "_cause",
        "_fault",
        "_gap_s",
        "_loop",
        "_since_s",
        "_timer",
        "_wait_s",
        "has_output",
        "is_final",
    )

    def __init__(
        self,
        opener: InferOpener,
        message: Any,
        *,
        timeout_s: float,
        metadata: Sequence[tuple[str, str]] = (),
        first_timeout_s: float | None = None,
        gap_timeout_s: float | None = None,
    ) -> None:
        self._call = opener.open(message, timeout_s=timeout_s, metadata=metadata)
        self._loop = asyncio.get_running_loop()
        self._cause: ServiceError | None = None
        self._fault: ServiceError | None = None  # came behind responses that were handed out
        self.has_output = False
        self.is_final = False
        self._gap_s = gap_timeout_s
        self._wait_s = first_timeout_s
        # Since when a response is waited for; None while those that came are still with their reader.
        self._since_s: float | None = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        if first_timeout_s is not None:
            self._timer = self._loop.call_later(first_timeout_s, self._on_timer)

    async def take(self) -> list[Any]:
        """Return the `ModelInferResponse`s that have arrived, in order: at least one, at most 64.

        Waits for the first and for no second one. Afterwards `is_final` says
        whether the last of them was the stream's last. Raises `ServiceError` for
        every failure, in-band or not, once the responses before it were
        returned. Cancelling the wait cancels the call.
        """
        if self._fault is not None:
            raise self._cause or self._fault
        self._since_s = self._loop.time() if self.has_output else self._since_s
        try:
            messages = await self._call.take(_MOST_AT_ONCE)
        except grpc.aio.AioRpcError as error:
            raise self._cause or fault_from_status(error, has_output=self.has_output) from None
        if not messages:
            raise self._cause or fault_of_stream("the stream ended without the final flag")
        self._since_s = None
        responses: list[Any] = []
        for message in messages:
            if message.error_message:
                self._fault = fault_from_text(message.error_message, has_output=self.has_output or bool(responses))
                break
            response = message.infer_response
            responses.append(response)
            if response.parameters["triton_final_response"].bool_param:
                self.is_final = True
                break
        if not responses:
            assert self._fault is not None, "the first message is a response or an error"
            raise self._fault
        if not self.has_output:
            self.has_output = True
            self._wait_s = self._gap_s
            if self._timer is not None or self._gap_s is not None:
                self._rearm(self._gap_s)
        return responses

    async def drain(self) -> None:
        """Take the status that follows the final response, so that the stream ends and is not reset.

        Bounded and without failure: the generation is complete already.
        """
        self._rearm(None)
        try:
            async with asyncio.timeout(_DRAIN_S):
                while await self._call.take(_MOST_AT_ONCE):
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
        silence_s = 0.0 if self._since_s is None else self._loop.time() - self._since_s
        if silence_s >= self._wait_s:
            where = "between responses" if self.has_output else "before the first response"
            self.abort(fault_of_stream(f"silent for {silence_s:.1f} s {where}"))
        else:
            self._rearm(self._wait_s - silence_s)
