"""What gRPC alone costs on this machine: a bare server that writes, a bare client that reads.

Machines differ by a factor of three here, and one machine by two from hour to
hour; the product's figures are to be read beside these.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import grpc
import psutil

from headrace.v1 import generation_pb2, generation_pb2_grpc

__all__ = ["measure"]


class _Bare(generation_pb2_grpc.GenerationServiceServicer):
    """Writes as many deltas as it is asked for, and nothing else."""

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Any) -> None:  # noqa: N802
        for number in range(request.sampling.max_output_tokens):
            event = generation_pb2.GenerateResponse()
            event.sequence = number + 1
            event.delta.text = " word"
            await context.write(event)


async def _serve() -> None:
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(_Bare(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination(timeout=120)


def measure(streams: int, tokens: int) -> dict[str, float]:
    """Return CPU microseconds per message of the bare server and of the bare client."""
    server = subprocess.Popen([sys.executable, "-m", "bench.floor"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        return asyncio.run(_read(port, psutil.Process(server.pid), streams, tokens))
    finally:
        server.kill()
        server.wait(10)


async def _read(port: int, server: psutil.Process, streams: int, tokens: int) -> dict[str, float]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.http2.bdp_probe", 0)]) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)

        async def read(count: int) -> None:
            request = generation_pb2.GenerateRequest(sampling={"max_output_tokens": count})
            call = stub.Generate(request, timeout=100)
            while await call.read() is not grpc.aio.EOF:
                pass

        await read(2000)
        processes = server, psutil.Process()
        before = [sum(process.cpu_times()[:2]) for process in processes]
        await asyncio.gather(*(read(tokens) for _ in range(streams)))
        after = [sum(process.cpu_times()[:2]) for process in processes]
    write_us, read_us = ((end - begin) / (streams * tokens) * 1e6 for begin, end in zip(before, after, strict=True))
    return {"grpc_write_us": round(write_us, 1), "grpc_read_us": round(read_us, 1)}


if __name__ == "__main__":
    asyncio.run(_serve())
