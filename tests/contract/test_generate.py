"""Generate over a real socket, with a simulated engine."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2

from headrace.v1 import chat_pb2, generation_pb2, sampling_pb2
from service.backends.base import EngineItem, EngineRequest, Feature
from service.backends.simulator import SimulatorBackend, SimulatorOptions
from service.core.request import Sampling
from service.generation.limits import Limits
from service.rpc.generation import DeadlinePolicy
from service.templates import load_template
from tests.support.service import (
    Failure,
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
    simulated_model,
    text_of,
)

SamplingParams = sampling_pb2.SamplingParams


def kinds(events: list[generation_pb2.GenerateResponse]) -> list[str]:
    return [event.WhichOneof("event") or "" for event in events]


def finishes(events: list[generation_pb2.GenerateResponse]) -> list[generation_pb2.ChoiceFinished]:
    return [event.choice_finished for event in events if event.WhichOneof("event") == "choice_finished"]


async def test_events_come_in_contract_order_with_usage_and_timing(service: RunningService) -> None:
    prompt = script(tokens=["one", " two", " three"], output_tokens=3, queue_ms=30, prefill_ms=40, token_ms=10)
    events = await service.events(GenerateRequest(model="sim", prompt=prompt))
    assert kinds(events) == ["started", "delta", "delta", "delta", "choice_finished", "completed"]
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5, 6]
    assert text_of(events) == "one two three"
    started, finished, completed = events[0].started, events[-2].choice_finished, events[-1].completed
    assert started.model == "sim"
    assert started.generation_id.startswith("gen_")
    assert started.fingerprint
    assert started.prompt_token_count == completed.usage.prompt_token_count > 0
    assert (finished.reason, finished.output_token_count) == (generation_pb2.FINISH_REASON_STOP, 3)
    assert completed.usage.output_token_count == 3
    timing = completed.timing
    assert timing.queue_duration.ToMilliseconds() >= 29
    assert timing.prefill_duration.ToMilliseconds() >= 39
    assert timing.time_to_first_token.ToMilliseconds() >= 69
    assert timing.decode_duration.ToMilliseconds() >= 19
    assert timing.output_tokens_per_second > 0


async def test_initial_metadata_carries_the_ids_and_echoes_the_callers(service: RunningService) -> None:
    call = service.generation.Generate(
        GenerateRequest(model="sim", prompt="hi", sampling=SamplingParams(max_output_tokens=1)),
        metadata=(("x-request-id", "abc-1"),),
    )
    first = await call.read()
    metadata = dict(await call.initial_metadata())
    assert metadata["x-request-id"] == "abc-1"
    assert metadata["x-generation-id"] == first.started.generation_id
    call.cancel()


@pytest.mark.report("I06")
@pytest.mark.parametrize("bad_id", ["x" * 129, "with space", ""])
async def test_a_request_id_that_is_not_sane_is_replaced(service: RunningService, bad_id: str) -> None:
    call = service.generation.Generate(
        GenerateRequest(model="sim", prompt="hi", sampling=SamplingParams(max_output_tokens=1)),
        metadata=(("x-request-id", bad_id),),
    )
    await call.read()
    assert dict(await call.initial_metadata())["x-request-id"].startswith("req_")
    call.cancel()


async def test_max_output_tokens_ends_with_length(service: RunningService) -> None:
    events = await service.events(
        GenerateRequest(model="sim", prompt=script(tokens=["a"]), sampling=SamplingParams(max_output_tokens=2))
    )
    assert text_of(events) == "aa"
    assert finishes(events)[0].reason == generation_pb2.FINISH_REASON_LENGTH


async def test_a_stop_string_across_tokens_ends_the_text_and_the_engine(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim",
        prompt=script(tokens=["one ", "two", " th", "ree", " four"], token_ms=1),
        stop=sampling_pb2.StopCriteria(sequences=["two three"]),
    )
    events = await service.events(request)
    assert text_of(events) == "one "
    assert not any("t" in e.delta.text for e in events if e.WhichOneof("event") == "delta")
    (finished,) = finishes(events)
    assert (finished.reason, finished.stop_sequence) == (generation_pb2.FINISH_REASON_STOP, "two three")
    assert finished.output_token_count == 4
    assert service.sim.running == 0


async def test_held_back_text_is_sent_when_the_generation_ends(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim",
        prompt=script(tokens=["alpha", " beta", " gam", "ma"], output_tokens=4),
        stop=sampling_pb2.StopCriteria(sequences=["gamma\ndelta"]),
    )
    events = await service.events(request)
    assert text_of(events) == "alpha beta gamma"
    assert kinds(events)[-3:] == ["delta", "choice_finished", "completed"]


async def test_include_in_output_keeps_the_match(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim",
        prompt=script(tokens=["a", "E", "ND", "b"]),
        stop=sampling_pb2.StopCriteria(sequences=["END"], include_in_output=True),
    )
    assert text_of(await service.events(request)) == "aEND"


async def test_a_stop_token_ends_the_choice(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim", prompt=script(tokens=["a", "b", "c"]), stop=sampling_pb2.StopCriteria(token_ids=[2])
    )
    events = await service.events(request)
    assert text_of(events) == "ab"
    assert finishes(events)[0].stop_token_id == 2


async def test_characters_split_over_tokens_arrive_whole(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim", prompt=script(tokens=[r"\xf0\x9f", r"\x98\xb8", "!", r"\xe8"], output_tokens=4, token_ms=5)
    )
    events = await service.events(request)
    assert [e.delta.text for e in events if e.WhichOneof("event") == "delta"] == ["😸", "!", "\ufffd"]
    assert events[-1].completed.usage.output_token_count == 4


async def test_a_huge_token_is_cut_into_events_of_a_bounded_size(service: RunningService) -> None:
    request = GenerateRequest(model="sim", prompt=script(tokens=["x" * 300_000], output_tokens=1))
    events = await service.events(request)
    assert text_of(events) == "x" * 300_000
    assert max(event.ByteSize() for event in events) < 64 * 1024


async def test_choices_run_side_by_side_and_finish_once_each(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim", prompt="hi", choice_count=3, sampling=SamplingParams(max_output_tokens=5, seed=7)
    )
    events = await service.events(request)
    assert sorted(finished.index for finished in finishes(events)) == [0, 1, 2]
    texts = {text_of(events, choice) for choice in range(3)}
    assert len(texts) == 3, "every choice has a seed of its own"
    usage = events[-1].completed.usage
    assert usage.output_token_count == 15
    assert usage.prompt_token_count == 2


async def test_the_same_seed_gives_the_same_text_and_is_reported(service: RunningService) -> None:
    request = GenerateRequest(model="sim", prompt="hi", sampling=SamplingParams(max_output_tokens=8, seed=11))
    first, second = await service.events(request), await service.events(request)
    assert text_of(first) == text_of(second)
    assert first[0].started.seed == 11


async def test_log_probs_and_token_ids_come_when_asked_for(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim",
        prompt=script(tokens=["a", r"\xc3", r"\xa9"], output_tokens=3, token_ms=5),
        output=generation_pb2.OutputOptions(token_ids=True, logprobs=True, top_logprobs=7),
    )
    deltas = [e.delta for e in await service.events(request) if e.WhichOneof("event") == "delta"]
    assert [list(delta.token_ids) for delta in deltas] == [[0], [1, 2]]
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
    assert b"".join(logprob.raw_bytes for logprob in logprobs) == "aé".encode()
    assert all(len(logprob.top_logprobs) == 7 for logprob in logprobs)
    assert logprobs[0].top_logprobs[6].logprob == -9999.0, "minus infinity is no JSON number"


async def test_nothing_extra_comes_when_it_was_not_asked_for(service: RunningService) -> None:
    events = await service.events(GenerateRequest(model="sim", prompt=script(tokens=["a"], output_tokens=1)))
    assert not events[1].delta.token_ids
    assert not events[1].delta.logprobs


async def test_chat_is_rendered_and_stops_at_the_templates_end(service: RunningService) -> None:
    # Escaped, since a template's own markers in a caller's text lose their meaning.
    line = script(tokens=["hello", "<|im_end|>", "never"]).replace("<", r"\u003c")
    message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, content=[chat_pb2.ContentPart(text=line + "\n")])
    events = await service.events(GenerateRequest(model="sim", chat=chat_pb2.ChatInput(messages=[message])))
    assert text_of(events) == "hello"


async def test_all_parts_of_all_messages_reach_the_prompt_in_order(tmp_path: Path) -> None:
    def message(role: chat_pb2.Role, *parts: str) -> chat_pb2.ChatMessage:
        return chat_pb2.ChatMessage(role=role, content=[chat_pb2.ContentPart(text=part) for part in parts])

    chat = chat_pb2.ChatInput(
        messages=[
            message(chat_pb2.ROLE_SYSTEM, "S1"),
            message(chat_pb2.ROLE_ASSISTANT, "P1"),
            message(chat_pb2.ROLE_USER, "A1", "B2\x00after ", script(echo=True) + "\n"),
        ]
    )
    path = tmp_path / "plain.jinja"
    path.write_text("{% for message in messages %}[{{ message.content }}]{% endfor %}")
    template = load_template(str(path), SimulatorBackend().info)
    async with running_service(simulated_model(template=template)) as service:
        sampling = SamplingParams(max_output_tokens=4096)
        text = text_of(await service.events(GenerateRequest(model="sim", chat=chat, sampling=sampling)))
    assert text.startswith("[S1][P1][A1B2\x00after simulate:")


async def test_token_ids_are_input_as_they_are(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim", tokens=generation_pb2.TokenIds(ids=[5, 6, 7]), sampling=SamplingParams(max_output_tokens=2)
    )
    events = await service.events(request)
    assert events[-1].completed.usage.prompt_token_count == 3


async def test_a_soft_time_limit_ends_with_partial_text_and_usage(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim",
        prompt=script(tokens=["ab", "c"], token_ms=20),
        stop=sampling_pb2.StopCriteria(sequences=["cx"]),
        time_limit=duration_pb2.Duration(nanos=150_000_000),
    )
    events = await service.events(request)
    assert finishes(events)[0].reason == generation_pb2.FINISH_REASON_TIME_LIMIT
    text, usage = text_of(events), events[-1].completed.usage
    assert text.startswith("abc")
    assert len(text) >= usage.output_token_count > 1
    assert service.sim.running == 0
    assert service.models["sim"].slots.running == 0


async def test_a_soft_time_limit_before_the_first_token_is_still_an_answer(service: RunningService) -> None:
    request = GenerateRequest(
        model="sim", prompt=script(prefill_ms=60_000), time_limit=duration_pb2.Duration(nanos=50_000_000)
    )
    events = await service.events(request)
    assert kinds(events) == ["started", "choice_finished", "completed"]
    assert events[-1].completed.usage.output_token_count == 0
    assert not events[-1].completed.timing.HasField("time_to_first_token")


# Refusals


async def test_every_violation_comes_at_once_as_bad_request(service: RunningService) -> None:
    request = GenerateRequest(
        sampling=SamplingParams(temperature=float("nan"), top_p=2),
        stop=sampling_pb2.StopCriteria(sequences=["ok", ""]),
        constraint=sampling_pb2.OutputConstraint(),
        choice_count=0,
    )
    failure = await service.failure(request)
    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (failure.info.reason, failure.info.domain) == ("INVALID_FIELD", "headrace.v1")
    assert sorted(failure.fields) == [
        "choice_count",
        "constraint",
        "input",
        "model",
        "sampling.temperature",
        "sampling.top_p",
        "stop.sequences[1]",
    ]


async def test_a_role_that_is_not_known_is_refused(service: RunningService) -> None:
    chat = chat_pb2.ChatInput(messages=[chat_pb2.ChatMessage(), chat_pb2.ChatMessage(role=77)])  # type: ignore[arg-type]
    failure = await service.failure(GenerateRequest(model="sim", chat=chat))
    assert failure.fields == ["chat.messages[0].role", "chat.messages[1].role"]


async def test_an_unknown_model_is_not_found(service: RunningService) -> None:
    failure = await service.failure(GenerateRequest(model="nope", prompt="hi"))
    assert (failure.code, failure.info.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert "nope" in (failure.error.details() or "")


async def test_what_a_model_lacks_is_refused_by_name() -> None:
    class Poor(SimulatorBackend):
        @property
        def info(self):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            return replace(super().info, features=frozenset({Feature.SEED}))

    async with running_service(simulated_model(backend=Poor(), template=None)) as service:
        chat = chat_pb2.ChatInput(messages=[chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER)])
        request = GenerateRequest(
            model="sim",
            chat=chat,
            sampling=SamplingParams(temperature=0.5, top_k=3, logit_bias={1: 2}, seed=1, min_p=0),
            output=generation_pb2.OutputOptions(logprobs=True),
            constraint=sampling_pb2.OutputConstraint(grammar='root ::= "a"'),
        )
        failure = await service.failure(request)
        assert (failure.code, failure.info.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "CAPABILITY_UNSUPPORTED",
        )
        assert failure.info.metadata["capability"].split(",") == failure.fields
        assert set(failure.fields) == {
            "sampling.temperature",
            "sampling.top_k",
            "sampling.logit_bias",
            "output.logprobs",
            "constraint.grammar",
            "chat",
        }


async def test_limits_of_the_model_are_checked() -> None:
    async with running_service(simulated_model(max_output_tokens=100, max_choices=2)) as service:
        request = GenerateRequest(
            model="sim",
            tokens=generation_pb2.TokenIds(ids=[1, 999]),
            sampling=SamplingParams(max_output_tokens=101, logit_bias={256: 1}),
            stop=sampling_pb2.StopCriteria(token_ids=[256]),
            choice_count=3,
        )
        failure = await service.failure(request)
        assert set(failure.fields) == {
            "choice_count",
            "sampling.max_output_tokens",
            "sampling.logit_bias[256]",
            "stop.token_ids[0]",
            "tokens.ids[1]",
        }


async def test_a_prompt_that_does_not_fit_names_both_numbers() -> None:
    async with running_service(simulated_model(max_context_tokens=64, options=SimulatorOptions())) as service:
        long = "word " * 108
        failure = await service.failure(GenerateRequest(model="sim", prompt=long))
        assert (failure.code, failure.info.reason) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "CONTEXT_LENGTH_EXCEEDED",
        )
        assert dict(failure.info.metadata) == {"promptTokens": "109", "maxContextTokens": "64"}
        fits = SamplingParams(max_output_tokens=4)
        prompt = "w " * 59  # 60 tokens with the special one
        assert await service.events(GenerateRequest(model="sim", prompt=prompt, sampling=fits))
        fits.max_output_tokens = 5
        failure = await service.failure(GenerateRequest(model="sim", prompt=prompt, sampling=fits))
        assert failure.info.metadata["requestedOutputTokens"] == "5"
        # A default that does not fit shrinks instead.
        events = await service.events(GenerateRequest(model="sim", prompt=prompt))
        assert events[-1].completed.usage.output_token_count == 4


async def test_defaults_of_the_model_apply_where_nothing_is_set() -> None:
    model = simulated_model(default_max_output_tokens=3, default_sampling=Sampling(seed=5))
    async with running_service(model) as service:
        events = await service.events(GenerateRequest(model="sim", prompt="hi"))
        assert events[-1].completed.usage.output_token_count == 3
        assert events[0].started.seed == 5


async def test_bytes_that_are_no_message_are_an_argument_error_like_any_other(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    raw = service.channel.unary_stream("/headrace.v1.GenerationService/Generate")
    with caplog.at_level("INFO"), pytest.raises(grpc.aio.AioRpcError) as refused:
        await raw(b"\xff\xff\xff", timeout=5).read()
    failure = Failure(refused.value, 0)
    assert (failure.code, failure.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_refused_call_has_its_log_line(service: RunningService, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        failure = await service.failure(GenerateRequest(model="nope", prompt="hi"), metadata=(("x-request-id", "r-7"),))
        await eventually(lambda: any(record.name == "headrace.request" for record in caplog.records))
    (line,) = [record for record in caplog.records if record.name == "headrace.request"]
    assert (line.request_id, line.reason, line.status) == ("r-7", failure.info.reason, "NOT_FOUND")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "args", [{"a": "x" * 20_000}, {"a": [{}] * 10_000}, {"a": float("nan")}, {"a": float("inf")}], ids=str
)
async def test_template_arguments_are_bounded_json(service: RunningService, args: dict[str, object]) -> None:
    chat = chat_pb2.ChatInput(messages=[chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER)])
    chat.template_args.update(args)
    failure = await service.failure(GenerateRequest(model="sim", chat=chat))
    assert failure.fields == ["chat.template_args"]


async def test_lists_without_end_are_refused_at_once(service: RunningService) -> None:
    part = chat_pb2.ContentPart(text="")
    message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, content=[part] * 200_000)
    request = GenerateRequest(
        model="sim",
        chat=chat_pb2.ChatInput(messages=[message]),
        stop=sampling_pb2.StopCriteria(sequences=["x"] * 200_000, token_ids=[1] * 200_000),
        sampling=SamplingParams(logit_bias=dict.fromkeys(range(100_000), 1.0)),
    )
    failure = await service.failure(request)
    assert failure.fields == [
        "chat.messages[0].content",
        "sampling.logit_bias",
        "stop.sequences",
        "stop.token_ids",
    ]
    many = chat_pb2.ChatInput(messages=[chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER)] * 200_000)
    assert (await service.failure(GenerateRequest(model="sim", chat=many))).fields == ["chat.messages"]
    ids = generation_pb2.TokenIds(ids=[1] * 2_000_000)
    assert (await service.failure(GenerateRequest(model="sim", tokens=ids))).fields == ["tokens.ids"]


# Failures of the engine


@pytest.mark.parametrize("sent", [0, 2])
@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("error", grpc.StatusCode.INTERNAL, "BACKEND_ERROR"),
        ("unavailable", grpc.StatusCode.UNAVAILABLE, "BACKEND_UNAVAILABLE"),
        ("cut", grpc.StatusCode.UNAVAILABLE, "BACKEND_UNAVAILABLE"),
        ("crash", grpc.StatusCode.INTERNAL, "INTERNAL"),
    ],
)
async def test_a_failing_engine_is_an_error_and_never_an_end(
    service: RunningService, fault: str, code: grpc.StatusCode, reason: str, sent: int
) -> None:
    failure = await service.failure(
        GenerateRequest(model="sim", prompt=script(fault=fault, fault_after=sent, token_ms=10))
    )
    assert (failure.code, failure.info.reason) == (code, reason)
    assert failure.received == sent + 1
    assert failure.info.metadata["lastSequence"] == str(sent + 1)
    assert failure.trailer("grpc-retry-pushback-ms") == "-1", "a retry would run it again"
    assert "engine.py" not in str(failure.error), "nothing of the server's inside leaks"
    assert service.models["sim"].slots.running == 0


async def test_the_next_request_is_served_after_a_crash(service: RunningService) -> None:
    await service.failure(GenerateRequest(model="sim", prompt=script(fault="crash")))
    assert await service.events(GenerateRequest(model="sim", prompt="hi"))


@pytest.mark.report("H07")
@pytest.mark.parametrize("sent", [0, 3])
async def test_a_silent_engine_is_given_up(sent: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="headrace.request")
    limits = Limits(first_token_s=0.2, token_gap_s=0.1, reader_s=5)
    async with running_service(limits=limits) as service:
        failure = await service.failure(GenerateRequest(model="sim", prompt=script(fault="hang", fault_after=sent)))
        assert (failure.code, failure.info.reason) == (
            grpc.StatusCode.UNAVAILABLE,
            "TOKEN_GAP_TIMEOUT" if sent else "FIRST_TOKEN_TIMEOUT",
        )
        assert ("0.1 s" if sent else "0.2 s") in (failure.error.details() or "")
        (line,) = [record.__dict__ for record in caplog.records if record.name == "headrace.request"]
        gap_ms = line["max_gap_ms"]
        assert (gap_ms >= 100) if sent else gap_ms is None, "the gap that ended it counts"
        assert (service.sim.running, service.models["sim"].slots.running) == (0, 0)


@pytest.mark.report("H07")
async def test_a_slow_but_living_engine_is_not_given_up() -> None:
    async with running_service(limits=Limits(first_token_s=0.3, token_gap_s=0.3, reader_s=0.3)) as service:
        events = await service.events(
            GenerateRequest(model="sim", prompt=script(tokens=["t"], output_tokens=6, token_ms=120))
        )
        assert text_of(events) == "tttttt"


# Deadlines and cancellation


@pytest.mark.report("H05")
async def test_the_deadline_ends_the_call_and_the_engine(service: RunningService) -> None:
    failure = await service.failure(GenerateRequest(model="sim", prompt=script(token_ms=10)), timeout=0.3)
    assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert failure.received > 5
    await eventually(lambda: service.sim.running == 0 and service.models["sim"].slots.running == 0)


async def test_a_server_side_deadline_applies_where_the_caller_sets_none() -> None:
    async with running_service(deadlines=DeadlinePolicy(default_s=0.2)) as service:
        failure = await service.failure(GenerateRequest(model="sim", prompt=script(token_ms=10)), timeout=None)
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_IN_DECODE")


async def test_a_maximum_bounds_what_the_caller_asks_for() -> None:
    async with running_service(deadlines=DeadlinePolicy(maximum_s=0.2)) as service:
        failure = await service.failure(GenerateRequest(model="sim", prompt=script(token_ms=10)), timeout=30)
        assert failure.info.reason == "DEADLINE_IN_DECODE"


async def test_a_deadline_under_the_floor_is_refused_before_it_runs() -> None:
    async with running_service(deadlines=DeadlinePolicy(floor_s=5)) as service:
        failure = await service.failure(GenerateRequest(model="sim", prompt="hi"), timeout=2)
        assert (failure.code, failure.info.reason) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "DEADLINE_TOO_SHORT",
        )
        assert failure.info.metadata["floorMs"] == "5000"


async def test_the_backend_gets_the_remaining_budget() -> None:
    seen = []

    class Watching(SimulatorBackend):
        def generate(self, request):  # type: ignore[no-untyped-def]
            seen.append(request.deadline.remaining_s())
            return super().generate(request)

    async with running_service(simulated_model(backend=Watching())) as service:
        await service.events(GenerateRequest(model="sim", prompt=script(output_tokens=1)), timeout=7)
        assert 6 < seen[0] <= 7 * 1.011  # gRPC rounds a deadline up


@pytest.mark.report("H01")
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode", "slow_reader"])
async def test_cancel_at_any_moment_frees_engine_and_slot(phase: str) -> None:
    model = simulated_model(running=1)
    async with running_service(model) as service:
        if phase == "queued":
            blocker = service.generation.Generate(GenerateRequest(model="sim", prompt=script(token_ms=5)))
            await blocker.read()
        big = phase == "slow_reader"
        prompt = script(
            prefill_ms=60_000 if phase == "prefill" else 0,
            token_ms=0 if big else 5,
            tokens=["x" * 1000] if big else ["x"],
        )
        sampling = SamplingParams(max_output_tokens=4096)
        call = service.generation.Generate(GenerateRequest(model="sim", prompt=prompt, sampling=sampling))
        if phase == "queued":
            reading = asyncio.ensure_future(call.read())
            await eventually(lambda: model.slots.waiting == 1)
        elif phase == "prefill":
            await call.read()
        else:
            for _ in range(3):
                await call.read()
            if big:
                await asyncio.sleep(0.3)  # the transport's windows fill: the server's write is blocked
        call.cancel()
        if phase == "queued":
            with pytest.raises(asyncio.CancelledError):
                await reading
            await eventually(lambda: model.slots.waiting == 0)
            blocker.cancel()
        await eventually(lambda: service.sim.running == 0 and model.slots.running == 0)
        await eventually(lambda: service.server.drain.running == 0)
        assert text_of(await service.events(GenerateRequest(model="sim", prompt=script(tokens=["k"], output_tokens=1))))


async def test_a_client_that_vanishes_frees_engine_and_slot(service: RunningService) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        call = type(service.generation)(channel).Generate(GenerateRequest(model="sim", prompt=script(token_ms=5)))
        await call.read()
    await eventually(lambda: service.sim.running == 0 and service.models["sim"].slots.running == 0)


@pytest.mark.report("J07")
async def test_a_reader_that_stops_reading_is_dropped() -> None:
    async with running_service(limits=Limits(reader_s=0.3)) as service:
        options = [("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=options) as channel:
            stub = type(service.generation)(channel)
            sampling = SamplingParams(max_output_tokens=4096)
            call = stub.Generate(
                GenerateRequest(model="sim", prompt=script(tokens=["x" * 1000]), sampling=sampling), timeout=20
            )
            await call.read()
            await eventually(lambda: service.sim.running == 1)
            await eventually(lambda: service.sim.running == 0)
            with pytest.raises(grpc.aio.AioRpcError) as dropped:
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert dropped.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_full_waiting_line_is_refused_with_a_time_to_retry() -> None:
    async with running_service(simulated_model(running=1, waiting=0)) as service:
        blocker = service.generation.Generate(GenerateRequest(model="sim", prompt=script(token_ms=5)))
        await blocker.read()
        failure = await service.failure(GenerateRequest(model="sim", prompt="hi"))
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert failure.trailer("grpc-retry-pushback-ms") == "1000"
        blocker.cancel()


async def test_a_deadline_in_the_waiting_line_says_so() -> None:
    deadlines = DeadlinePolicy(default_s=0.2)
    async with running_service(simulated_model(running=1), deadlines=deadlines) as service:
        blocker = service.generation.Generate(GenerateRequest(model="sim", prompt=script(token_ms=5)), timeout=20)
        await blocker.read()
        failure = await service.failure(GenerateRequest(model="sim", prompt="hi"), timeout=None)
        assert failure.info.reason == "DEADLINE_IN_QUEUE"
        blocker.cancel()


async def test_a_deadline_that_falls_on_the_headers_still_ends_the_call() -> None:
    """gRPC cannot send a status while the headers are on their way; the caller must not hang."""
    deadlines = DeadlinePolicy(default_s=0.05)
    async with running_service(simulated_model(running=1), deadlines=deadlines) as service:
        for _ in range(20):
            first, second = (
                service.failure(GenerateRequest(model="sim", prompt=script(token_ms=1)), timeout=None) for _ in range(2)
            )
            async with asyncio.timeout(5):
                ended = await asyncio.gather(first, second)
            assert {failure.code for failure in ended} == {grpc.StatusCode.DEADLINE_EXCEEDED}


async def test_a_refusal_before_the_first_event_leaves_transparent_retry_possible(service: RunningService) -> None:
    call = service.generation.Generate(GenerateRequest(model="nope", prompt="hi"))
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    assert not await call.initial_metadata()


async def test_many_early_leavers_leak_nothing(service: RunningService) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(100):
        call = service.generation.Generate(GenerateRequest(model="sim", prompt=script(token_ms=1)))
        await call.read()
        call.cancel()
    await eventually(lambda: service.sim.running == 0 and service.server.drain.running == 0)
    await eventually(lambda: len(asyncio.all_tasks()) <= before)
    assert service.models["sim"].slots.running == 0


async def test_words_that_an_engine_cannot_ban_are_refused_by_name_and_not_dropped(service: RunningService) -> None:
    request = GenerateRequest(model="sim", prompt="Hi", sampling={"bad_words": ["x"]})
    failure = await service.failure(request)
    assert failure.info.reason == "CAPABILITY_UNSUPPORTED"
    assert failure.info.metadata["capability"] == "sampling.bad_words"


class _Deaf(SimulatorBackend):
    """An engine that does not hear of a token limit."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        endless = dataclasses.replace(request.sampling, max_output_tokens=10**6)
        async with aclosing(super().generate(dataclasses.replace(request, sampling=endless))) as items:
            async for item in items:
                yield item


@pytest.mark.report("E12")
async def test_an_engine_that_ignores_the_limit_is_cut_there() -> None:
    deaf = _Deaf(SimulatorOptions(tokens=("a", "b"), token_ms=1))
    async with running_service(simulated_model(backend=deaf)) as service:
        request = GenerateRequest(
            model="sim", prompt="hi", sampling=SamplingParams(max_output_tokens=2), choice_count=2
        )
        events = await service.events(request)
        assert [(f.reason, f.output_token_count) for f in finishes(events)] == [
            (generation_pb2.FINISH_REASON_LENGTH, 2)
        ] * 2
        assert [text_of(events, choice) for choice in (0, 1)] == ["ab", "ab"]
        assert events[-1].completed.usage.output_token_count == 4
        await eventually(lambda: deaf.running == 0)
