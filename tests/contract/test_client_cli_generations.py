"""`headrace status` and `cancel`, and what the commands say while a request waits or is cancelled."""

import asyncio
import json
import os
import signal
import sys

import grpc
import pytest

from headrace.v1 import error_reason_pb2, usage_pb2
from headrace.v1 import generation_pb2 as pb
from tests.support.command_line import WAIT_S, end, read, run, start
from tests.support.fake_service import HANG, Fail, completed, delta, fake_service, finished, queued, started


async def read_error(process: asyncio.subprocess.Process, expected: str) -> None:
    assert process.stderr is not None
    got = await asyncio.wait_for(process.stderr.readexactly(len(expected)), WAIT_S)
    assert got.decode() == expected


async def test_limits_and_class_go_into_the_request() -> None:
    async with fake_service() as fake:
        done = await run(fake.address, "generate", "hi", "--time-limit", "1.5", "--priority", "batch", "--queue")
        assert done.code == 0
        request = (await fake.next_call()).request
        assert (request.time_limit.seconds, request.time_limit.nanos) == (1, 500_000_000)
        assert (request.priority, request.output.queue_events) == (pb.PRIORITY_BATCH, True)
        assert (await run(fake.address, "chat", "--priority", "interactive", stdin="hi\n")).code == 0
        request = (await fake.next_call()).request
        assert (request.priority, request.HasField("time_limit")) == (pb.PRIORITY_INTERACTIVE, False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--priority", "urgent"], "'urgent' is not one of 'interactive', 'batch'"),
        (["--time-limit", "nan"], "time_limit_s: a number of seconds, got nan"),
        (["--max-tokens", "99999999999"], "max_output_tokens: Value out of range: 99999999999"),
        (["--metadata", "bad key=x"], "metadata key 'bad key'"),
    ],
)
async def test_what_no_request_can_hold_is_wrong_usage(arguments: list[str], complaint: str) -> None:
    done = await run("127.0.0.1:1", "generate", "hi", *arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err


async def test_the_place_in_the_line_is_told_while_it_changes() -> None:
    async with fake_service() as fake:
        more = asyncio.Event()
        fake.will(queued(3, 2.2), queued(3, 2.4), queued(1, 400), more, queued(0), started(), delta("Hi"), finished())
        process = await start(fake.address, "generate", "hi", "--queue")
        await read_error(process, "waiting: 3 ahead, about 2 s\nwaiting: 1 ahead, about 6 min\n")
        more.set()
        await read(process, "Hi")
        await read_error(process, "waiting: next\n")
        process.kill()
        await process.wait()


async def test_events_as_json_hold_the_places_too() -> None:
    async with fake_service() as fake:
        fake.will(queued(3, 2.5), started(), finished(), completed())
        done = await run(fake.address, "generate", "hi", "--queue", "--json")
        first = json.loads(done.out.splitlines()[0])
        assert first == {
            "sequence": 1,
            "queued": {"generation_id": "gen-1", "ahead_count": 3, "estimated_wait": "2.500s"},
        }
        assert done.err.startswith("waiting: 3 ahead, about 2 s\n3 prompt tokens;")


async def test_in_a_terminal_the_place_is_one_line_that_goes_away() -> None:
    async with fake_service() as fake:
        fake.will(queued(12, 30), queued(3), started(), delta("Hi"), finished(), completed())
        master, slave = os.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli", "generate", "hi", "--queue", "--target", fake.address),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=slave,
        )
        os.close(slave)
        try:
            out, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
            assert out == b"Hi\n"
            screen = os.read(master, 4096).decode()
        finally:
            os.close(master)
        first, second = "waiting: 12 ahead, about 30 s", "waiting: 3 ahead"
        assert screen.startswith(f"\r{first}\r{second.ljust(len(first))}\r{' ' * len(second)}\r3 prompt tokens;")


async def test_the_id_is_told_early_to_whoever_asks() -> None:
    async with fake_service() as fake:
        fake.will(queued(1), HANG)
        process = await start(fake.address, "generate", "hi", "--verbose", "--queue")
        await read_error(process, "generation gen-1 (request req-1)\nwaiting: 1 ahead\n")
        assert (await run(fake.address, "cancel", "gen-1")).out == "stopping\n"
        done = await end(process)
        assert (done.code, done.out) == (1, "")
        assert (await run(fake.address, "cancel", "gen-1")).out == "cancelled\n"
        assert "finish: cancelled" in done.err
        assert done.err.endswith("error: CANCELLED: generation gen-1 was stopped by CancelGeneration\n")


async def test_a_cancelled_text_is_printed_with_usage_and_fails_the_command() -> None:
    async with fake_service() as fake:
        fake.will(started(), delta("so far"), HANG)
        process = await start(fake.address, "generate", "hi")
        await read(process, "so far")
        assert json.loads((await run(fake.address, "cancel", "gen-1", "--json")).out) == {
            "state": "GENERATION_STATE_RUNNING"
        }
        done = await end(process)
        assert (done.code, done.out) == (1, "\n")
        assert done.err.startswith("3 prompt tokens; 2 output tokens; finish: cancelled; ")


async def test_ctrl_c_in_the_line_cancels_and_says_so() -> None:
    async with fake_service() as fake:
        fake.will(queued(4), HANG)
        process = await start(fake.address, "generate", "hi", "--queue")
        await read_error(process, "waiting: 4 ahead\n")
        process.send_signal(signal.SIGINT)
        done = await end(process)
        assert (done.code, done.out, done.err) == (130, "", "cancelled generation gen-1\n")
        await (await fake.next_call()).wait_cancelled()


async def test_ctrl_c_before_anything_came_cancels_and_says_so() -> None:
    async with fake_service() as fake:
        fake.will(HANG)
        process = await start(fake.address, "generate", "hi", "--model", "m")
        call = await fake.next_call()
        process.send_signal(signal.SIGINT)
        done = await end(process)
        assert (done.code, done.out, done.err) == (130, "", "cancelled\n")
        await call.wait_cancelled()


async def test_a_chat_says_why_an_answer_is_not_whole() -> None:
    async with fake_service() as fake:
        fake.will(started(), delta("one"), finished("TIME_LIMIT"), completed())
        fake.will(started(), delta("two"), finished("CANCELLED"), completed())
        fake.will(started(), delta("three"), finished(), completed())
        done = await run(fake.address, "chat", stdin="a\nb\nc\n")
        assert (done.code, done.out, done.err) == (0, "one\ntwo\nthree\n", "(time limit)\n(cancelled)\n")


async def test_status_tells_all_that_is_known_in_one_line() -> None:
    async with fake_service() as fake:
        fake.generations["gen-7"] = pb.GetGenerationResponse(
            state=pb.GENERATION_STATE_RUNNING,
            last_sequence=9,
            usage=usage_pb2.Usage(prompt_token_count=3, output_token_count=8),
            model="m",
            priority=pb.PRIORITY_BATCH,
            timing=completed().completed.timing,
        )
        fake.generations["gen-8"] = pb.GetGenerationResponse(state=pb.GENERATION_STATE_QUEUED, ahead_count=0)
        fake.generations["gen-9"] = pb.GetGenerationResponse(
            state=pb.GENERATION_STATE_FAILED, failure_reason=error_reason_pb2.ERROR_REASON_CONSUMER_TOO_SLOW
        )
        assert (await run(fake.address, "status", "gen-7")).out == (
            "running; model m; batch; 3 prompt tokens; 8 output tokens; last event 9; "
            "queue 10 ms, prefill 40 ms; 20.0 tokens/s\n"
        )
        assert (await run(fake.address, "status", "gen-8")).out == "queued; 0 ahead\n"
        assert (await run(fake.address, "status", "gen-9")).out == "failed (consumer_too_slow)\n"
        found = json.loads((await run(fake.address, "status", "gen-8", "--json")).out)
        assert found == {"state": "GENERATION_STATE_QUEUED", "ahead_count": 0}


@pytest.mark.parametrize("prefix", ["chatcmpl-", "cmpl-", "resp_", ""])
async def test_the_id_of_an_answer_over_http_names_its_generation(prefix: str) -> None:
    async with fake_service() as fake:
        fake.generations["gen_0a"] = pb.GetGenerationResponse(state=pb.GENERATION_STATE_CANCELLED)
        assert (await run(fake.address, "status", f"{prefix}gen_0a")).out == "cancelled\n"
        assert (await run(fake.address, "cancel", f"{prefix}gen_0a")).out == "cancelled\n"


async def test_the_status_of_one_that_never_ran_speaks_of_the_line_alone() -> None:
    async with fake_service() as fake:
        timing = usage_pb2.Timing()
        timing.queue_duration.FromMilliseconds(20)
        fake.generations["gen-1"] = pb.GetGenerationResponse(state=pb.GENERATION_STATE_CANCELLED, timing=timing)
        assert (await run(fake.address, "status", "gen-1")).out == "cancelled; queue 20 ms\n"


@pytest.mark.parametrize("command", ["status", "cancel"])
async def test_a_generation_that_nobody_knows_fails_the_command(command: str) -> None:
    async with fake_service() as fake:
        done = await run(fake.address, command, "gen-404")
        assert (done.code, done.out) == (1, "")
        assert done.err == "error: GENERATION_NOT_FOUND: refused by the script\n"
        fake.unary_failures.append(Fail(code=grpc.StatusCode.PERMISSION_DENIED, message="not yours"))
        assert (await run(fake.address, command, "gen-404")).err == "error: PERMISSION_DENIED: not yours\n"
