"""Limits as an operator runs them: two processes that share a Redis, a file that changes, a Redis that dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from headrace.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, generation_pb2_grpc
from tests.support.processes import PYTHON, clean_environment, free_ports, process, service
from tests.support.redis_server import redis_server
from tests.support.service import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

LIMIT = 200
EXHAUSTED = "RESOURCE_EXHAUSTED"
REQUEST = generation_pb2.GenerateRequest(model="simulator", prompt="hello", sampling={"max_output_tokens": 2})


async def outcomes(ports: Sequence[int], calls: int) -> Counter[str]:
    """Return how so many calls end that are made at once, by turns of each port."""
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports]

    async def one(number: int) -> str:
        stub = generation_pb2_grpc.GenerationServiceStub(channels[number % len(channels)])
        try:
            async for _ in stub.Generate(REQUEST, timeout=30):
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    try:
        return Counter(await asyncio.gather(*(one(number) for number in range(calls))))
    finally:
        for channel in channels:
            await channel.close()


async def test_two_processes_let_in_what_one_limit_has_and_follow_its_file(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(f"[default]\nrequests_per_minute = {LIMIT}\n")
    with redis_server(tmp_path) as redis:
        settings = {
            "backend": "simulator",
            "simulator_token_ms": 1,
            "limits_file": file,
            "limits_store": redis.url,
            "log_format": "json",
        }
        with service(tmp_path, **settings) as first, service(tmp_path, **settings) as second:
            ports = first.port, second.port
            assert await outcomes(ports, 3 * LIMIT) == {"OK": LIMIT, EXHAUSTED: 2 * LIMIT}
            # One that cannot be used changes nothing, and the next one is taken over.
            file.write_text("[default]\nrequests_per_minute = many\n")
            await first.line(level="ERROR", logger="headrace.limits")
            assert await outcomes(ports, 10) == {EXHAUSTED: 10}
            file.write_text(f"[default]\nrequests_per_minute = {LIMIT + 50}\n")
            for running in (first, second):
                await running.line(message=f"{file}: new limits are in force")
            assert await outcomes(ports, 100) == {"OK": 50, EXHAUSTED: 50}


async def test_a_redis_that_dies_is_said_and_nobody_has_to_wait_for_it(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[default]\nrequests_per_minute = 20\n")
    admin_port = free_ports(1)[0]
    with redis_server(tmp_path) as redis:
        settings = {"limits_file": file, "limits_store": redis.url, "admin_port": admin_port, "log_format": "json"}
        with service(tmp_path, backend="simulator", simulator_token_ms=1, **settings) as running:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{admin_port}") as channel:
                admin = admin_pb2_grpc.AdminServiceStub(channel)

                async def problems() -> list[str]:
                    status = await admin.GetServerStatus(admin_pb2.GetServerStatusRequest(), timeout=10)
                    return list(status.problems)

                assert await outcomes([running.port], 30) == {"OK": 20, EXHAUSTED: 10}
                assert await problems() == []
                redis.kill()
                # The process counts for itself, from nothing.
                assert await outcomes([running.port], 30) == {"OK": 20, EXHAUSTED: 10}
                assert [text.partition(":")[0] for text in await problems()] == [
                    "limits are counted by each process for itself"
                ]
                redis.start()
                await running.line(message="limits: Redis answers again, replicas count together")
                assert await problems() == []
                # It was started empty: so do its counters.
                assert await outcomes([running.port], 30) == {"OK": 20, EXHAUSTED: 10}


async def test_what_cannot_be_used_at_the_start_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[default]\nrequests_per_minute = 0\nconcurent_streams = 1\n")
    variables = {"HEADRACE_BACKEND": "simulator", "HEADRACE_LIMITS_FILE": str(file)}
    with process("service", [PYTHON, "-m", "service"], tmp_path, clean_environment(**variables)) as running:
        await eventually(lambda: not running.is_running, 30)
        assert running.popen.returncode == 2
        assert [line.rpartition(".toml: ")[2] for line in running.output().splitlines()] == [
            'default.requests_per_minute: must be a whole number of at least 1, or "unlimited", got 0',
            "default.concurent_streams: unknown; is concurrent_streams meant?",
        ]
