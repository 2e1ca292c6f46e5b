"""`headrace top` over a real service: what it says agrees with what was sent, also over a kill and a restart."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import AsyncClient, errors
from tests.support.command_line import WAIT_S, end, run, start
from tests.support.processes import free_ports, service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

TOKENS = 20
SLOTS = 2
SETTINGS = {"backend": "simulator", "simulator_max_running": SLOTS, "simulator_token_ms": 40, "max_waiting": 3}


class Watched:
    """A running `headrace top --json`, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next line that is as it should be."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while True:
                line: dict[str, Any] = json.loads(await self.process.stdout.readline())
                if is_so(line):
                    return line


def window(line: dict[str, Any]) -> dict[str, Any]:
    (model,) = line["models"]
    found: dict[str, Any] = model["window"]
    return found


async def generate(client: AsyncClient, count: int) -> int:
    """Run so many generations at once; return how many tokens they have given, by their own usage; a refused one 0."""

    async def one() -> int:
        call = client.generate(model="simulator", prompt="hello", max_output_tokens=TOKENS, timeout_s=30)
        try:
            async with call as stream:
                await stream.text()
        except errors.Overloaded:
            return 0
        assert stream.usage is not None
        return stream.usage.output_token_count

    return sum(await asyncio.gather(*(one() for _ in range(count))))


async def test_what_top_says_is_what_was_sent_over_a_kill_and_a_restart(tmp_path: Path) -> None:
    port, metrics_port = free_ports(2)
    url = f"http://127.0.0.1:{metrics_port}/metrics"
    with service(tmp_path, port=port, metrics_port=metrics_port, **SETTINGS) as first:
        top = Watched(await start("", "top", "--url", url, "--json", "-n", "0.2", "--window", "600"))
        idle = await top.until(lambda line: True)
        assert window(idle)["requests"] == 0
        async with AsyncClient(f"127.0.0.1:{port}") as client:
            sent = asyncio.create_task(generate(client, 5))
            busy = await top.until(lambda line: line["models"][0]["classes"]["interactive"]["waiting"] == 3)
            load = busy["models"][0]["classes"]["interactive"]
            assert (load["running"], load["slots"], busy["active"]) == (SLOTS, SLOTS, 5)
            assert load["oldest_wait_s"] > 0
            assert await sent == 5 * TOKENS
            done = window(await top.until(lambda line: window(line)["requests"] == 5))
            assert done["ended"] == {"completed": 5, "cancelled": 0, "failed": {}, "refused": {}}
            assert done["output_tokens"] == 5 * TOKENS
            latency = done["latency_s"]["interactive"]
            assert {name: found["count"] for name, found in latency.items()} == dict.fromkeys(latency, 5)
            # Two waited for one other of 20 tokens of 40 ms each, one for two others.
            assert latency["ttft"]["p95"] > 1.5 > latency["ttft"]["p50"] > 0.75
            assert latency["queue"]["p95"] > 1.5
            assert latency["prefill"]["p95"] < 0.5
            assert latency["tpot"]["mean"] == pytest.approx(0.04, rel=0.25)
            assert done["goodput"]["all"] == {"met": SLOTS, "of": 5, "share": 0.4}
            assert await generate(client, 6) == 5 * TOKENS  # one finds the line full
            line = await top.until(lambda line: window(line)["requests"] == 11)
            assert window(line)["ended"]["refused"] == {"QUEUE_FULL": 1}
            assert window(line)["output_tokens"] == 10 * TOKENS
        first.send(signal.SIGKILL)
        await first.ended()
        down = await top.until(lambda line: not line["replicas"][0]["is_up"])
        assert down["replicas"][0]["problem"] == "connection refused"
        assert (down["models"][0]["classes"], down["active"]) == (None, None)
        assert window(down)["requests"] == 11
    with service(tmp_path, port=port, metrics_port=metrics_port, **SETTINGS):
        async with AsyncClient(f"127.0.0.1:{port}") as client:
            assert await generate(client, 2) == 2 * TOKENS
        back = await top.until(lambda line: line["replicas"][0]["is_up"] and window(line)["requests"] > 12.5)
        assert window(back)["requests"] == pytest.approx(13)
        assert window(back)["output_tokens"] == pytest.approx(12 * TOKENS)
        assert back["models"][0]["total"]["requests"] == 2
        once = await run("", "top", "--url", url, "--once", "-n", "0.2")
        assert once.code == 0
        assert "simulator  ready" in once.out
        assert "2 completed" in once.out.partition("since the start")[2]
        top.process.send_signal(signal.SIGINT)
        ended = await end(top.process)
        assert (ended.code, ended.err) == (0, "")
