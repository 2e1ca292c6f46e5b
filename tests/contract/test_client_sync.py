"""The client for programs without an event loop: threads, cancels, Ctrl-C, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import Client, errors
from tests.support.service import RunningService, eventually, script, service

__all__ = ["service"]

SLOW = script(tokens=["t "], token_ms=10)


def quick(word: str = "a") -> str:
    return script(tokens=[word], output_tokens=3, token_ms=1)


async def test_the_whole_answer_is_collected(service: RunningService) -> None:
    def use() -> None:
        with Client(f"127.0.0.1:{service.port}") as client:
            assert client.health()
            assert [model.id for model in client.list_models()] == ["sim"]
            with client.generate(model="sim", prompt=quick("é"), choice_count=2, token_ids=True) as stream:
                answer = stream.collect()
            assert [choice.text for choice in answer.choices] == ["ééé", "ééé"]
            assert answer.text == "ééé"
            assert answer.finish_reason == "STOP"
            assert all(len(choice.token_ids) == 3 for choice in answer.choices)
            assert answer.usage is not None
            assert answer.usage.output_token_count == 6
            assert answer.model == "sim"
            assert answer.generation_id == stream.generation_id
            assert client.get_generation(stream.generation_id).model == "sim"
            with client.generate(model="sim", prompt=quick()) as stream:
                assert "".join(stream.deltas()) == "aaa"
            assert "ttft" in stream.trailers["server-timing"]

    await asyncio.to_thread(use)


async def test_leaving_the_block_stops_the_engine(service: RunningService) -> None:
    def use() -> None:
        with Client(f"127.0.0.1:{service.port}") as client, client.generate(model="sim", prompt=SLOW) as stream:
            for _ in stream.deltas():
                break

    await asyncio.to_thread(use)
    await eventually(lambda: service.sim.running == 0)


async def test_another_thread_cancels_a_read_that_waits(service: RunningService) -> None:
    def use() -> None:
        prompt = script(prefill_ms=30_000)
        with Client(f"127.0.0.1:{service.port}") as client, client.generate(model="sim", prompt=prompt) as stream:
            threading.Timer(0.2, stream.cancel).start()
            with pytest.raises(errors.Cancelled):
                stream.text()

    await asyncio.to_thread(use)
    await eventually(lambda: service.sim.running == 0)


async def test_threads_share_one_client(service: RunningService) -> None:
    def use() -> list[str]:
        with Client(f"127.0.0.1:{service.port}") as client, ThreadPoolExecutor(16) as pool:

            def ask(number: int) -> str:
                with client.generate(model="sim", prompt=quick(f"{number},")) as stream:
                    return stream.text()

            return list(pool.map(ask, range(64)))

    assert await asyncio.to_thread(use) == [f"{number}," * 3 for number in range(64)]


async def test_failures_are_the_same_errors(service: RunningService) -> None:
    def use() -> None:
        with Client(f"127.0.0.1:{service.port}") as client:
            with (
                pytest.raises(errors.InvalidRequest) as refused,
                client.generate(model="sim", prompt="x", temperature=9.0) as stream,
            ):
                stream.text()
            assert [violation.field for violation in refused.value.violations] == ["sampling.temperature"]
            with (
                pytest.raises(errors.DeadlineExceeded),
                client.generate(model="sim", prompt=script(prefill_ms=9000), timeout_s=0.2) as stream,
            ):
                stream.collect()
        with pytest.raises(RuntimeError, match="closed"):
            client.list_models()
        client.close()

    await asyncio.to_thread(use)


async def test_no_thread_is_left_behind(service: RunningService) -> None:
    def use() -> None:
        with Client(f"127.0.0.1:{service.port}") as client:
            client.list_models()
        dropped = Client(f"127.0.0.1:{service.port}")
        dropped.list_models()
        del dropped

    await asyncio.to_thread(use)
    await eventually(lambda: not [t for t in threading.enumerate() if t.name == "headrace client"])


async def test_ctrl_c_ends_a_program_that_reads(service: RunningService) -> None:
    program = f"""
from headrace import Client
with Client("127.0.0.1:{service.port}") as client, client.generate(model="sim", prompt={SLOW!r}) as stream:
    for piece in stream.deltas():
        print(piece, flush=True)
"""

    def use() -> None:
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("t ")
            began_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=10)
        assert "KeyboardInterrupt" in told
        assert time.monotonic() - began_s < 5

    await asyncio.to_thread(use)
    await eventually(lambda: service.sim.running == 0)
