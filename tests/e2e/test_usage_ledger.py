"""The usage ledger of a service that is killed, and `headrace usage` on what it left."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from headrace.v1.sampling_pb2 import SamplingParams
from tests.support.command_line import Done, run
from tests.support.processes import PYTHON, ROOT, Process, clean_environment, process
from tests.support.processes import service as serve
from tests.support.service import script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

STREAMS = 5
SHORT = script(output_tokens=8)


@pytest.fixture(params=["usage.jsonl", "usage.db"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / request.param)


@contextmanager
def service(folder: Path, ledger: str) -> Iterator[Process]:
    with serve(folder, backend="simulator", ledger=ledger, log_format="json") as running:
        yield running


@asynccontextmanager
async def stub(running: Process) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        yield generation_pb2_grpc.GenerationServiceStub(channel)


def generate(on: Any, prompt: str) -> Any:
    sampling = SamplingParams(max_output_tokens=4000)
    return on.Generate(gen.GenerateRequest(model="default", prompt=prompt, sampling=sampling), timeout=30)


async def usage(ledger: str, *arguments: str) -> Done:
    done = await run("127.0.0.1:1", "usage", "--ledger", ledger, *arguments)
    assert done.code == 0, done.err
    return done


async def total(ledger: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await usage(ledger, "--json", *arguments)).out)
    return found


async def test_a_service_that_is_killed_misses_what_ran_and_its_next_start_says_which(
    tmp_path: Path, ledger: str
) -> None:
    with service(tmp_path, ledger) as first:
        async with stub(first) as on:
            answered = [[event async for event in generate(on, SHORT)] for _ in range(3)]
            streams = [generate(on, script(token_ms=5)) for _ in range(STREAMS)]
            running = {(await stream.read()).started.generation_id for stream in streams}
            for stream in streams:
                await stream.read()
            listed = json.loads((await usage(ledger, "--open", "--json")).out)
            assert {row["generation_id"] for row in listed} == running
            assert {row["state"] for row in listed} == {"running"}
            first.popen.kill()
            assert await first.ended() == -signal.SIGKILL
    # Whatever an end was told of is there; the rest is known by name before anybody starts again.
    found = await total(ledger)
    assert found["total"]["outcomes"] == {"completed": 3}
    assert found["total"]["output_tokens"] == 24 == sum(e[-1].completed.usage.output_token_count for e in answered)
    assert found["unended_requests"] == STREAMS
    with service(tmp_path, ledger) as second:
        line = await second.line(level="WARNING", logger="headrace.ledger")
        assert line["message"].startswith(f"generations interrupted by the end of their process: {STREAMS} (")
        assert set(re.findall(r"gen_[0-9a-f]{24}", line["message"])) == running
        async with stub(second) as on:
            assert [event async for event in generate(on, SHORT)]
        found = await total(ledger)
        assert found["total"]["outcomes"] == {"interrupted": STREAMS, "completed": 4}
        assert (found["unended_requests"], found["total"]["uncounted_requests"]) == (0, STREAMS)
    listed = json.loads((await usage(ledger, "--open", "--json")).out)
    assert {row["generation_id"]: row["state"] for row in listed} == dict.fromkeys(running, "interrupted")
    with service(tmp_path, ledger) as third:
        assert third.end() == 0
        assert not third.lines(logger="headrace.ledger"), "said once"


async def test_a_service_that_is_asked_to_stop_leaves_nothing_open(tmp_path: Path, ledger: str) -> None:
    with service(tmp_path, ledger) as running:
        async with stub(running) as on:
            stream = generate(on, script(token_ms=5))
            await stream.read()
            running.send(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError):
                while await stream.read() is not grpc.aio.EOF:
                    pass
            assert await running.ended() == 0
    found = await total(ledger)
    assert (found["total"]["outcomes"], found["unended_requests"]) == ({"drained": 1}, 0)


async def test_two_services_share_a_database_and_not_a_file(tmp_path: Path, ledger: str) -> None:
    with service(tmp_path, ledger) as first:
        if ledger.endswith(".jsonl"):
            environment = clean_environment(
                HEADRACE_BACKEND="simulator", HEADRACE_GRPC_PORT="0", HEADRACE_LEDGER=ledger
            )
            with process("second", [PYTHON, "-m", "service"], tmp_path, environment) as second:
                assert await second.ended() == 1
            assert "give every process a file of its own" in second.output()
            return
        with service(tmp_path, ledger) as second:
            for running in (first, second):
                async with stub(running) as on:
                    calls = [[event async for event in call] for call in (generate(on, SHORT) for _ in range(10))]
                    assert len(calls) == 10
            assert not second.lines(logger="headrace.ledger"), "the other one lives"
    assert (await total(ledger))["total"]["requests"] == 20


async def test_the_command_prints_tables_json_and_csv(tmp_path: Path, ledger: str) -> None:
    with service(tmp_path, ledger) as running:
        async with stub(running) as on:
            await asyncio.gather(*(_answer(on) for _ in range(4)))
    table = (await usage(ledger)).out
    assert re.search(r"│ -\s+│ simulator │\s+4 │\s+\d+ │\s+0 │\s+32 │.*│ 4 completed", table)
    assert (await usage(ledger, "--since", "2100-01-01")).out == "no requests\n"
    assert (await usage(ledger, "--tenant", "nobody")).out == "no requests\n"
    assert (await usage(ledger, "--open")).out == "nothing runs, nothing was interrupted\n"
    (line,) = csv.DictReader(io.StringIO((await usage(ledger, "--by", "day,outcome", "--csv")).out))
    assert (line["outcome"], line["requests"], line["output_tokens"]) == ("completed", "4", "32")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", line["day"])
    (group,) = (await total(ledger, "--by", "model"))["groups"]
    assert (group["model"], group["requests"]) == ("simulator", 4)
    assert 0 < group["ttft_p50_s"] <= group["ttft_p95_s"] < 10


async def _answer(on: Any) -> None:
    assert [event async for event in generate(on, SHORT)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "Missing option '--ledger' (env var: 'HEADRACE_LEDGER')"),
        (["--ledger", "no.db"], "no.db: no such file"),
        (["--ledger", "no.jsonl"], "no.jsonl: No such file or directory"),
        (["--ledger", str(ROOT / "README.md")], "README.md is no usage ledger"),
        (["--ledger", "mysql://me:secret@host/name"], "sqlite:// or postgresql://"),
        (["--ledger", "x.jsonl", "--by", "tenant,colour"], "colour: not among tenant, subject"),
        (["--ledger", "x.jsonl", "--since", "yesterday"], "'yesterday' is no date"),
    ],
)
async def test_what_cannot_be_added_up_is_said_in_a_line(arguments: list[str], problem: str) -> None:
    done = await run("127.0.0.1:1", "usage", *arguments)
    assert done.code in (1, 2)
    assert done.out == ""
    assert problem in done.err
    assert "secret" not in done.err
