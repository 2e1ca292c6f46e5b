"""Replays of public bug reports: what leavers, readers that stall and huge bodies leave in the processes' memory."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

import psutil
import pytest

from tests.support.gateway_harness import CHAT, RawClient
from tests.support.http_stream import open_stream
from tests.support.processes import Stack, stack
from tests.support.service import script

MIB: Final = 2**20
# How many streams are left in the middle; read before the tests clear such variables away.
STREAMS: Final = int(os.environ.get("HEADRACE_TEST_LEFT_STREAMS", "1000"))
# A growth of 1 KiB a stream shows from 10,000 streams on; a whole generation that is kept, at once.
MOST_GROWTH_BYTES: Final = max(3 * MIB, STREAMS * 1024 // 2)
SEND_TIMEOUT_S: Final = 2

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60 + STREAMS // 25)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    front = {"send_timeout_s": SEND_TIMEOUT_S}
    with stack(tmp_path_factory.mktemp("memory"), backend="simulator", front=front) as both:
        yield both


class Memory:
    """Of both processes; `most_bytes` is the most that either had more than at first."""

    def __init__(self, running: Stack) -> None:
        self._processes = [psutil.Process(one.popen.pid) for one in (running.service, running.gateway)]
        self._at_first = self._now()
        self.most_bytes = 0

    def _now(self) -> list[int]:
        return [process.memory_info().rss for process in self._processes]

    def look(self) -> int:
        """Return by how much the one that grew more has grown."""
        grown = max(now - before for now, before in zip(self._now(), self._at_first, strict=True))
        self.most_bytes = max(self.most_bytes, grown)
        return grown

    def open_files(self) -> list[int]:
        return [process.num_fds() for process in self._processes]


def chat(prompt: str, **members: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{prompt}\n"}]
    return {"model": "default", "stream": True, "max_tokens": 4000, "messages": messages, **members}


@pytest.mark.report("J04")
async def test_streams_that_are_left_in_the_middle_leave_nothing_behind(running: Stack) -> None:
    body = chat(script(fault="hang", fault_after=1))

    async def leave() -> None:
        async with RawClient(running.gateway.port) as client:
            await client.send("POST", CHAT, body)
            await client.head()
            await client.piece()
            client.reset()

    async def leave_many(count: int) -> None:
        for _ in range(count // 20):
            await asyncio.gather(*(leave() for _ in range(20)))

    await leave_many(400)  # what is only made once, and the allocator's own reserves
    memory = Memory(running)
    files = memory.open_files()
    await leave_many(STREAMS)
    assert memory.look() < MOST_GROWTH_BYTES
    async with asyncio.timeout(10):
        while any(now > before for now, before in zip(memory.open_files(), files, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.report("J07")
async def test_a_client_that_stops_reading_fills_no_memory_and_slows_nobody_down(running: Stack) -> None:
    # 65 MB, as fast as they can be sent.
    flood = chat(script(tokens=["x" * 16_384]))
    paced = chat(script(token_ms=20, output_tokens=100))
    memory, gaps_s = Memory(running), []
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", running.gateway.port))
        client = RawClient(running.gateway.port)
        client.reader, client.writer = await asyncio.open_connection(sock=stalled, limit=1024)
        await client.send("POST", CHAT, flood, {"x-request-id": "stalled"})
        begun_s = time.monotonic()
        async with open_stream(running.gateway.port, paced) as other:
            last_s = time.monotonic()
            async for _ in other.texts():
                gaps_s.append(other.at_s - last_s)
                last_s = other.at_s
                memory.look()
        line = await running.service.line(logger="headrace.request", request_id="stalled")
        assert time.monotonic() - begun_s < SEND_TIMEOUT_S + 8
        assert line["outcome"] == "client_cancelled"
        client.writer.transport.abort()
    assert memory.most_bytes < 16 * MIB
    assert len(gaps_s) == 100
    assert sorted(gaps_s)[90] < 0.1


@pytest.mark.report("J01")
async def test_a_body_far_over_the_limit_is_refused_without_being_kept(running: Stack) -> None:
    memory = Memory(running)
    for _ in range(3):
        async with RawClient(running.gateway.port) as client:
            headers = {"transfer-encoding": "chunked", "content-type": "application/json"}
            await client.send("POST", CHAT, headers=headers)
            sent = asyncio.create_task(send_chunks(client, 30))
            response = await client.response()
            assert (response.status, response.json()["error"]["code"]) == (413, "request_too_large")
            sent.cancel()
            await asyncio.wait([sent])
        memory.look()
    # Once the limit, in pieces, and what the allocator keeps of it.
    assert memory.most_bytes < 40 * MIB


async def send_chunks(client: RawClient, count: int) -> None:
    for _ in range(count):
        client.writer.write(b"100000\r\n" + b"x" * MIB + b"\r\n")
        await client.writer.drain()
