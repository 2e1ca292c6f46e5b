"""The `headrace` command as a process, against a scripted service."""

import asyncio
import json
import os
import signal
import sys

import grpc
import pytest

from headrace.v1 import model_pb2
from tests.support.command_line import WAIT_S, end, read, run, start
from tests.support.fake_service import HANG, Fail, completed, delta, fake_service, finished, model, started
from tests.support.processes import refusing_port


async def test_text_comes_as_it_is_generated_and_usage_goes_to_stderr() -> None:
    async with fake_service() as fake:
        more = asyncio.Event()
        fake.will(started(), delta("Hel"), more, delta("lo"), finished("LENGTH"), completed(3, 2))
        process = await start(fake.address, "generate", "hi", "--max-tokens", "2", "--stop", "a", "--stop", "b")
        await read(process, "Hel")  # while the rest is held back
        more.set()
        done = await end(process)
        assert (done.code, done.out) == (0, "lo\n")
        assert "3 prompt tokens; 2 output tokens; finish: length; first text after " in done.err
        assert "queue 10 ms, prefill 40 ms; 20.0 tokens/s" in done.err
        request = (await fake.next_call()).request
        assert (request.model, request.prompt) == ("fake", "hi")  # the first model, as none was named
        assert request.sampling.max_output_tokens == 2
        assert not request.sampling.HasField("temperature")
        assert list(request.stop.sequences) == ["a", "b"]


async def test_the_prompt_can_come_from_standard_input() -> None:
    async with fake_service() as fake:
        assert (await run(fake.address, "generate", "--model", "m", "-", stdin="über\nzwei")).code == 0
        request = (await fake.next_call()).request
        assert (request.model, request.prompt) == ("m", "über\nzwei")


async def test_generate_json_prints_every_event_as_a_line() -> None:
    async with fake_service() as fake:
        done = await run(fake.address, "generate", "hi", "--json")
        events = [json.loads(line) for line in done.out.splitlines()]
        assert [event["sequence"] for event in events] == [1, 2, 3, 4, 5]
        assert events[1]["delta"] == {"text": "Hello"}
        assert events[4]["completed"]["usage"] == {"prompt_token_count": 3, "output_token_count": 2}


async def test_a_refusal_is_one_line_with_every_violation_and_exit_code_1() -> None:
    async with fake_service() as fake:
        fake.will(
            Fail(
                code=grpc.StatusCode.INVALID_ARGUMENT,
                reason="INVALID_FIELD",
                violations=[("sampling.top_p", "above 0 and at most 1, got 7"), ("stop.sequences[0]", "is empty")],
                request_id="req-5",
            )
        )
        done = await run(fake.address, "generate", "hi", "--top-p", "7", "--stop", "")
        assert (done.code, done.out) == (1, "")
        assert done.err == (
            "error: INVALID_FIELD: sampling.top_p: above 0 and at most 1, got 7; stop.sequences[0]: is empty "
            "(request id req-5)\n"
        )


async def test_a_failure_amid_the_text_keeps_the_text_and_exits_with_1() -> None:
    async with fake_service() as fake:
        fake.will(
            started(), delta("half"), Fail(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", message="restarting")
        )
        done = await run(fake.address, "generate", "hi")
        assert (done.code, done.out, done.err) == (1, "half\n", "error: DRAINING: restarting\n")


async def test_a_service_that_stops_amid_the_text_is_one_line_without_the_librarys_log() -> None:
    async with fake_service() as fake:
        fake.will(started(), delta("half"), HANG)
        process = await start(fake.address, "generate", "hi")
        await read(process, "half")
    done = await end(process)
    assert (done.code, done.out) == (1, "\n")
    assert done.err == "error: UNAVAILABLE: Cancelling all calls\n"


async def test_no_service_is_one_line_and_exit_code_1() -> None:
    with refusing_port() as port:
        done = await run(f"127.0.0.1:{port}", "models", "--timeout", "2")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: UNAVAILABLE: ")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [["generate"], ["generate", "x", "--seed", "y"], ["nonsense"], ["models", "--metadata", "x"]]
)
async def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert (await run("127.0.0.1:1", *arguments)).code == 2


async def test_ctrl_c_cancels_on_the_server_and_exits_with_130() -> None:
    async with fake_service() as fake:
        fake.will(started(), delta("so far"), HANG)
        process = await start(fake.address, "generate", "hi")
        await read(process, "so far")
        process.send_signal(signal.SIGINT)
        done = await end(process)
        assert (done.code, done.out, done.err) == (130, "\n", "cancelled generation gen-1\n")
        await (await fake.next_call()).wait_cancelled()


async def test_metadata_and_timeout_go_with_the_call() -> None:
    async with fake_service() as fake:
        done = await run(fake.address, "generate", "hi", "--metadata", "authorization=Bearer x=y", "--timeout", "7")
        assert done.code == 0
        call = await fake.next_call()
        assert call.header("authorization") == "Bearer x=y"
        assert call.time_remaining_s is not None
        assert 0 < call.time_remaining_s < 7.5  # the wire rounds a little up


async def test_models_are_a_table_or_json() -> None:
    async with fake_service() as fake:
        fake.models = [model("a-rather-long-model-name", aliases=["x", "y"]), model("b", max_context_tokens=0)]
        fake.models[1].state = model_pb2.MODEL_STATE_UNAVAILABLE
        table = (await run(fake.address, "models")).out
        assert "a-rather-long-model-name" in table
        assert "x, y" in table
        assert "unavailable" in table
        listed = json.loads((await run(fake.address, "models", "--json")).out)
        assert [(m["id"], m["state"]) for m in listed] == [
            ("a-rather-long-model-name", "MODEL_STATE_READY"),
            ("b", "MODEL_STATE_UNAVAILABLE"),
        ]


async def test_a_piped_chat_keeps_the_conversation() -> None:
    async with fake_service() as fake:
        fake.will(started(), delta("one"), finished(), completed())
        fake.will(started(), delta("two"), finished(), completed())
        done = await run(fake.address, "chat", "--system", "be brief", stdin="first\n\nsecond\n")
        assert (done.code, done.out, done.err) == (0, "one\ntwo\n", "")
        messages = fake.calls[1].request.chat.messages
        assert [m.content[0].text for m in messages] == ["be brief", "first", "one", "second"]
        assert [m.role for m in messages] == [1, 2, 3, 2]


async def test_ctrl_c_stops_a_piped_chat() -> None:
    async with fake_service() as fake:
        fake.will(started(), delta("so far"), HANG)
        process = await start(fake.address, "chat")
        assert process.stdin is not None
        process.stdin.write(b"first\nsecond\n")
        await read(process, "so far")
        process.send_signal(signal.SIGINT)
        assert (await end(process)).code == 130
        await (await fake.next_call()).wait_cancelled()


async def test_in_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_leaves() -> None:
    async with fake_service() as fake:
        fake.will(started(), delta("so far"), HANG)
        master, slave = os.openpty()
        env = {**os.environ, "HEADRACE_TARGET": fake.address, "TERM": "dumb"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace.cli",
            "chat",
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
        )
        os.close(slave)
        screen = bytearray()
        changed = asyncio.Event()

        def on_output() -> None:
            try:
                screen.extend(os.read(master, 4096))
            except OSError:  # the other side is closed
                asyncio.get_running_loop().remove_reader(master)
            changed.set()

        async def shows(text: bytes, count: int = 1) -> None:
            async with asyncio.timeout(WAIT_S):
                while screen.count(text) < count:
                    changed.clear()
                    await changed.wait()

        asyncio.get_running_loop().add_reader(master, on_output)
        try:
            await shows(b"> ")
            os.write(master, b"first\n")
            await shows(b"so far")
            process.send_signal(signal.SIGINT)
            await shows(b"> ", 2)
            await (await fake.next_call()).wait_cancelled()
            os.write(master, b"second\n")
            await shows(b"Hello world")
            await shows(b"> ", 3)
            os.write(master, b"\x04")
            assert await asyncio.wait_for(process.wait(), WAIT_S) == 0
        finally:
            asyncio.get_running_loop().remove_reader(master)
            os.close(master)
            if process.returncode is None:
                process.kill()
                await process.wait()
        messages = fake.calls[1].request.chat.messages
        assert [m.content[0].text for m in messages] == ["first", "so far", "second"]


async def test_ttft_measures_each_prompt_after_a_warm_up() -> None:
    async with fake_service() as fake:
        done = await run(fake.address, "ttft", "--runs", "2", "--long", "300", "--json")
        report = json.loads(done.out)
        assert (report["model"], report["max_output_tokens"], report["cached"]) == ("fake", 64, False)
        short, long = report["cases"]
        assert (short["case"], short["runs"], short["prompt_words"]) == ("short", 2, 8)
        assert (long["case"], long["runs"], long["prompt_words"]) == ("long", 2, 300)
        assert (long["prompt_tokens"], long["output_tokens"]) == (3, 2)
        assert 0 < long["ttft_s"]["p50"] <= long["ttft_s"]["p90"] < 10
        assert (long["server_queue_s"]["p50"], long["server_prefill_s"]["p50"]) == (0.01, 0.04)
        assert long["output_tokens_per_second"] == {"p50": 20.0, "p90": 20.0}
        assert long["inter_token_gap_s"]["p50"] > 0
        systems = [call.request.chat.messages[0].content[0].text for call in fake.calls]
        assert [len(text.split()) for text in systems] == [8] * 3 + [300] * 3
        assert len({text.split()[0] for text in systems[3:]}) == 3  # no prefix cache helps


async def test_ttft_prints_one_table_and_sends_a_raw_prompt_to_a_model_without_a_template() -> None:
    async with fake_service() as fake:
        fake.models = [model("base", capabilities=[model_pb2.MODEL_CAPABILITY_PROMPT])]
        done = await run(fake.address, "ttft", "--runs", "1", "--long", "20", "--cached")
        assert done.code == 0
        for text in ("TTFT p50", "p90", "queue", "prefill", "gap p50", "tokens/s", "short", "long"):
            assert text in done.out
        prompts = [call.request.prompt for call in fake.calls]
        assert prompts[0] == prompts[1]  # cached on purpose
        assert len(prompts[3].split()) > 20
