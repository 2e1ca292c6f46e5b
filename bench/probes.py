"""Asks for health as an orchestrator does, and notes how long the answer takes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.processes import Path

__all__ = ["Probe", "Probes"]

TIMEOUT_S: Final = 5.0
SERVICE: Final = "headrace.v1.GenerationService"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One answer: when it was asked for, how long it took, and whether it was "I serve" in time."""

    kind: Literal["grpc", "http"]
    at_s: float
    took_s: float
    is_good: bool


class Probes:
    """An async context manager. `at_s` is counted from `zero_s`, a `time.perf_counter()`."""

    def __init__(self, path: Path, zero_s: float) -> None:
        self.answers: list[Probe] = []
        self._http_port = path.http_port
        self._zero_s = zero_s
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{path.grpc_port}")
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def ask_grpc(self) -> None:
        """Ask the service by grpc.health.v1, over a connection that stays."""
        begun_s = time.perf_counter()
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=TIMEOUT_S)
            is_good = answer.status == health_pb2.HealthCheckResponse.SERVING
        except grpc.aio.AioRpcError:
            is_good = False
        self._note("grpc", begun_s, is_good=is_good)

    async def ask_http(self) -> None:
        """Ask the gateway's /readyz, over a connection of its own each time."""
        begun_s, head, writer = time.perf_counter(), b"", None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._http_port)
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
                head = await reader.readline()
        except (TimeoutError, OSError):
            pass
        finally:
            if writer is not None:
                writer.close()
        self._note("http", begun_s, is_good=head.startswith(b"HTTP/1.1 200 "))

    def _note(self, kind: Literal["grpc", "http"], begun_s: float, *, is_good: bool) -> None:
        now_s = time.perf_counter()
        self.answers.append(Probe(kind=kind, at_s=begun_s - self._zero_s, took_s=now_s - begun_s, is_good=is_good))
