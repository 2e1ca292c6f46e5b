"""A balancer for tests: connections in turn to those servers that say they are ready, as an orchestrator would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.gateway_harness import RawClient

__all__ = ["balancer", "is_gateway_ready", "is_service_ready"]

PROBE_S = 0.05


class _Balancer:
    def __init__(self, ports: Sequence[int], is_ready: Callable[[int], Awaitable[bool]]) -> None:
        self._ports = ports
        self._is_ready = is_ready
        self._ready: list[int] = []
        self._turn = 0
        self._pumps: set[asyncio.Task[None]] = set()

    async def probe(self) -> None:
        """Ask every port whether it is ready, for ever."""
        while True:
            answers = await asyncio.gather(*map(self._is_ready, self._ports))
            self._ready = [port for port, is_ready in zip(self._ports, answers, strict=True) if is_ready]
            await asyncio.sleep(PROBE_S)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on to the next that is ready and takes it."""
        for _ in range(len(self._ports)):
            if not self._ready:
                break
            self._turn += 1
            port = self._ready[self._turn % len(self._ready)]
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                self._pumps |= {
                    asyncio.create_task(_pump(reader, far_writer)),
                    asyncio.create_task(_pump(far_reader, writer)),
                }
                return
        writer.transport.abort()

    async def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


async def is_gateway_ready(port: int) -> bool:
    """Ask a gateway's /readyz."""
    with suppress(OSError, asyncio.IncompleteReadError):
        async with RawClient(port) as client:
            return (await client.get("/readyz")).status == 200
    return False


async def is_service_ready(port: int) -> bool:
    """Ask a service's grpc.health.v1, over a connection that nothing else uses."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        with suppress(grpc.aio.AioRpcError):
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
    return False


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def balancer(
    ports: Sequence[int], is_ready: Callable[[int], Awaitable[bool]] = is_gateway_ready
) -> AsyncIterator[int]:
    """Balance for the length of the block; yields its port."""
    balancing = _Balancer(ports, is_ready)
    probe = asyncio.create_task(balancing.probe())
    server = await asyncio.start_server(balancing.accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        probe.cancel()
        await asyncio.wait([probe])
        await balancing.close()
