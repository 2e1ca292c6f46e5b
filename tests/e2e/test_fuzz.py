"""Odd requests in great numbers: no 5xx, no hang, every failure an error object, and nothing left behind.

`make fuzz` sends 100,000; HEADRACE_FUZZ_REQUESTS and HEADRACE_FUZZ_SEED choose others.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import psutil
import pytest

from tests.support.fuzzing import FuzzedRequest, fuzzed
from tests.support.gateway_harness import RawClient, RawResponse, read_events
from tests.support.processes import Process, Stack, stack

REQUESTS = int(os.environ.get("HEADRACE_FUZZ_REQUESTS", "2000"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))
CLIENTS = 8
REQUEST_S = 20.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90 + REQUESTS // 20)]


async def test_no_request_hurts(tmp_path: Path) -> None:
    """After a warm-up tenth, the rest may add neither memory nor open files, and a plain request still works."""
    with stack(tmp_path, backend="simulator", template="chatml", simulator_token_ms=0) as running:
        bad: list[str] = []
        await _send(running, range(SEED, SEED + REQUESTS // 10), bad)
        before = [_held(process) for process in (running.service, running.gateway)]
        await _send(running, range(SEED + REQUESTS // 10, SEED + REQUESTS), bad)
        assert not bad, "\n".join(bad[:20])
        async with RawClient(running.gateway.port) as client:
            answer = await client.post({"model": "default", "messages": [{"role": "user", "content": "hi"}]})
            assert answer.status == 200
        for process, (files, memory) in zip((running.service, running.gateway), before, strict=True):
            files_now, memory_now = _held(process)
            assert files_now <= files + CLIENTS, f"{process.name} holds {files_now} files, {files} before"
            # An interpreter's heap settles within the first thousands of requests; a leak grows with their number.
            most_mib = 24 + REQUESTS / 5000
            assert memory_now - memory < most_mib, f"{process.name} grew by {memory_now - memory:.1f} MiB"


async def _send(running: Stack, seeds: range, bad: list[str]) -> None:
    waiting = iter(seeds)

    async def client() -> None:
        for seed in waiting:
            request = fuzzed(seed)
            try:
                async with asyncio.timeout(REQUEST_S):
                    problem = await _try(running.gateway.port, request)
            except TimeoutError:
                problem = "no whole answer in time"
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                problem = f"the connection was cut: {error!r}"
            except (ValueError, LookupError, TypeError) as error:
                problem = f"the answer cannot be read: {error!r}"
            if problem is not None:
                bad.append(f"{seed}: {problem}: {request}")

    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(client())


async def _try(port: int, request: FuzzedRequest) -> str | None:
    async with RawClient(port) as client:
        await client.send(request.method, request.path, request.body, request.headers)
        if request.leaves_after is not None:
            for _ in range(request.leaves_after):
                if not await client.reader.read(64):
                    break
            client.reset()
            return None
        answer = await client.response(has_body=request.method != "HEAD")
        return _problem(request, answer)


def _problem(request: FuzzedRequest, answer: RawResponse) -> str | None:
    if answer.status >= 500:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if not answer.is_whole:
        return f"status {answer.status} and a body that was cut: {answer.body[-300:]!r}"
    if "x-request-id" not in answer.headers:
        return "no request id"
    if request.method in {"HEAD", "OPTIONS"}:
        return None
    if answer.status >= 400:
        error = answer.json()["error"]
        if set(error) != {"message", "type", "param", "code"} or not error["message"]:
            return f"no error object: {answer.body[:300]!r}"
        return None
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = read_events(answer.body)
        is_end = events[-1] == "[DONE]" or json.loads(events[-1])["type"].startswith("response.")
        return None if is_end else f"a stream without an end: {events[-1][:300]}"
    json.loads(answer.body)
    return None


def _held(process: Process) -> tuple[int, float]:
    """Return open files and resident MiB."""
    seen = psutil.Process(process.popen.pid)
    return seen.num_fds(), seen.memory_info().rss / 2**20
