"""Keeps what is known about the server and the two models, and reads it again when it may have changed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import grpc

from service.backends.triton.facts import ModelFacts, ServerFacts, read_model, read_server
from service.backends.triton.faults import fault_from_status, fault_of_stream
from service.core.errors import ServiceError

__all__ = ["Described", "Description"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One consistent reading. `engine` and `tokenizer` are None where no such model is loaded."""

    server: ServerFacts
    model: ModelFacts
    engine: ModelFacts | None
    tokenizer: ModelFacts | None


class Description:
    """Reads the description at the first need and after a fault that may mean a change."""

    def __init__(self, stub: Any, model: str, engine_model: str, tokenizer_model: str, *, timeout_s: float) -> None:
        self._stub = stub
        self._model = model
        self._engine_model = engine_model
        self._tokenizer_model = tokenizer_model
        self._timeout_s = timeout_s
        self._reading: asyncio.Task[Described] | None = None
        self._is_stale = True
        # The last reading; still valid as an answer about the past when it is stale.
        self.last: Described | None = None

    def forget(self) -> None:
        """Read again before the next use."""
        self._is_stale = True

    async def read(self) -> Described:
        """Return the current description; those who ask at the same time share one reading.

        Takes the timeout at most. Raises `ServiceError` when Triton does not give
        it. Cancelling it leaves the shared reading to the others.
        """
        if self.last is not None and not self._is_stale:
            return self.last
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh(), name="triton-description")
            self._reading.add_done_callback(self._on_read)
        reading = self._reading
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if reading.cancelled() and (task is None or not task.cancelling()):
                raise fault_of_stream("the backend was closed") from None
            raise

    async def close(self) -> None:
        """Cancel a reading under way; those who wait for it get `ServiceError`."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _on_read(self, task: asyncio.Task[Described]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # everybody who asked may have left

    async def _refresh(self) -> Described:
        try:
            async with asyncio.timeout(self._timeout_s):
                self.last = await self._read(self._timeout_s)
        except TimeoutError:
            raise fault_of_stream("the model's description did not arrive in time") from None
        except grpc.aio.AioRpcError as error:
            raise _unreadable(error) from None
        self._is_stale = False
        return self.last

    async def _read(self, timeout_s: float) -> Described:
        server = await read_server(self._stub, timeout_s)
        model = await read_model(self._stub, self._model, timeout_s)
        engine = await self._optional(self._engine_model, timeout_s)
        if engine is None:
            _log.warning("there is no engine model %r: generations that are left run to their end", self._engine_model)
        tokenizer = await self._optional(self._tokenizer_model, timeout_s)
        return Described(server=server, model=model, engine=engine, tokenizer=tokenizer)

    async def _optional(self, name: str, timeout_s: float) -> ModelFacts | None:
        if not name:
            return None
        try:
            return await read_model(self._stub, name, timeout_s)
        except grpc.aio.AioRpcError as error:
            # Triton's answer for an unknown model is one of these, by version.
            if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                return None
            raise


def _unreadable(error: Any) -> ServiceError:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        # The time for the description ran out, not the caller's.
        return fault_of_stream("the model's description did not arrive in time")
    return fault_from_status(error, has_output=False)
