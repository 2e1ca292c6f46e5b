"""Retained generations over gRPC: keys that run once, readers that come and go."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from headrace.v1 import generation_pb2 as gen
from service.core.account import Account, NoAccounts, Opening
from service.generation.limits import Limits
from service.retention.policy import RetentionLimits
from tests.support import retained
from tests.support.garbage import kept_by_cycles
from tests.support.retained import attached, refused
from tests.support.service import (
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
    simulated_model,
    text_of,
)

ANSWER = script(tokens=list("abcdefghij"), output_tokens=10, token_ms=10)
ENDLESS = script(tokens=["e"], token_ms=5)
ALICE = (("authorization", "Bearer alice"),)
BOB = (("authorization", "Bearer bob"),)


def keyed(prompt: str = ANSWER, key: str = "k1", **fields: Any) -> GenerateRequest:
    return retained.keyed(prompt, key, **fields)


def policy(retain_s: float | None = None, *, continues: bool = False, annotation: bytes = b"") -> gen.RetentionPolicy:
    message = gen.RetentionPolicy(continue_on_disconnect=continues, annotation=annotation)
    if retain_s is not None:
        message.retain_for.CopyFrom(duration_pb2.Duration(nanos=round(retain_s * 1e9) % 10**9, seconds=int(retain_s)))
    return message


async def get(service: RunningService, **fields: Any) -> gen.GetGenerationResponse:
    metadata = fields.pop("metadata", ())
    return await service.generation.GetGeneration(gen.GetGenerationRequest(**fields), timeout=5, metadata=metadata)


# Keys


async def test_the_same_key_and_request_is_the_same_generation_while_it_runs_and_after_it(
    service: RunningService,
) -> None:
    first, second = await asyncio.gather(service.events(keyed()), service.events(keyed()))
    third = await service.events(keyed())
    assert text_of(first) == "abcdefghij"
    assert first == second == third
    assert service.sim.started == 1


async def test_who_joins_is_told_so_and_by_which_id(service: RunningService) -> None:
    first = service.generation.Generate(keyed(), timeout=20)
    second = service.generation.Generate(keyed(), timeout=20)
    headers = [dict(await call.initial_metadata()) for call in (first, second)]
    assert headers[0]["x-generation-id"] == headers[1]["x-generation-id"]
    assert {told.get("idempotent-replayed") for told in headers} == {None, "true"}
    first.cancel()
    second.cancel()


async def test_two_hundred_at_once_run_once_and_read_the_same(service: RunningService) -> None:
    answers = await asyncio.gather(*(service.events(keyed()) for _ in range(200)))
    assert service.sim.started == 1
    assert len({b"".join(event.SerializeToString() for event in answer) for answer in answers}) == 1


async def test_a_key_with_another_request_is_refused_and_names_the_generation(service: RunningService) -> None:
    first = await service.events(keyed())
    failure = await service.failure(keyed(sampling={"temperature": 0.5}))
    assert (failure.code, failure.info.reason) == (grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_MISMATCH")
    assert failure.info.metadata["generationId"] == first[0].started.generation_id
    assert service.sim.started == 1


async def test_deadline_and_policy_are_not_what_a_request_is(service: RunningService) -> None:
    first = await service.events(keyed(), timeout=10)
    second = await service.events(keyed(retention=policy(5, continues=True, annotation=b"x")), timeout=20)
    assert first == second


async def test_a_key_is_its_tenants_own(service: RunningService) -> None:
    first = await service.events(keyed(), metadata=ALICE)
    second = await service.events(keyed(), metadata=BOB)
    assert first[0].started.generation_id != second[0].started.generation_id
    assert service.sim.started == 2


@pytest.mark.parametrize("key", ["k" * 129, "two words", "ä", "tab\t"])
async def test_a_key_that_is_too_long_or_not_visible_is_refused(service: RunningService, key: str) -> None:
    failure = await service.failure(keyed(key=key))
    assert (failure.code, failure.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["idempotency_key"])


async def test_everything_wrong_with_a_policy_is_told_at_once(service: RunningService) -> None:
    wrong = policy(301, annotation=bytes(65_537))
    failure = await service.failure(keyed(key=" ", retention=wrong, sampling={"temperature": 9}))
    assert set(failure.fields) == {
        "idempotency_key",
        "retention.retain_for",
        "retention.annotation",
        "sampling.temperature",
    }


async def test_what_fails_before_its_first_token_frees_its_key(service: RunningService) -> None:
    request = keyed(script(fault="error", fault_after=0))
    for _ in range(2):
        assert (await service.failure(request)).info.reason == "BACKEND_ERROR"
    assert service.sim.started == 2


async def test_what_fails_later_is_told_again_as_it_was(service: RunningService) -> None:
    request = keyed(script(tokens=["a"], fault="error", fault_after=2))
    failures = [await service.failure(request) for _ in range(2)]
    assert service.sim.started == 1
    assert failures[0].received == failures[1].received > 1
    assert {failure.info.reason for failure in failures} == {"BACKEND_ERROR"}


async def test_a_refusal_for_lack_of_room_frees_the_key() -> None:
    async with running_service(simulated_model(running=1, waiting=0)) as service:
        blocker = service.generation.Generate(GenerateRequest(model="sim", prompt=ENDLESS), timeout=20)
        await blocker.read()
        assert (await service.failure(keyed())).info.reason == "QUEUE_FULL"
        blocker.cancel()
        await eventually(lambda: service.sim.running == 0)
        assert text_of(await service.events(keyed())) == "abcdefghij"


# Readers that come and go


async def test_a_reader_that_is_cut_goes_on_behind_what_it_has(service: RunningService) -> None:
    call = service.generation.Generate(keyed(), timeout=20)
    had = [await call.read() for _ in range(4)]
    call.cancel()
    rest = await attached(service, after=had[-1].sequence, generation_id=had[0].started.generation_id)
    assert [event.sequence for event in had + rest] == list(range(1, len(had + rest) + 1))
    assert text_of(had + rest) == "abcdefghij"
    assert rest[-1].HasField("completed")


async def test_a_thousand_cuts_leave_no_gap_and_no_repetition(service: RunningService) -> None:
    random.seed(1)
    tokens = [f"{number} " for number in range(400)]
    request = keyed(script(tokens=tokens, output_tokens=400, token_ms=2), retention=policy(60))
    whole = asyncio.create_task(service.events(request))
    await asyncio.sleep(0.01)

    async def reader() -> list[gen.GenerateResponse]:
        events: list[gen.GenerateResponse] = []
        for _ in range(50):
            after = len(events)
            call = service.generation.AttachGeneration(
                gen.AttachGenerationRequest(idempotency_key="k1", after_sequence=after), timeout=20
            )
            for _ in range(random.randint(0, 12)):
                event = await call.read()
                if event is grpc.aio.EOF:
                    break
                events.append(event)
            call.cancel()
        events += await attached(service, after=len(events), idempotency_key="k1")
        return events

    readers = await asyncio.gather(*(reader() for _ in range(20)))
    expected = await whole
    assert all(events == expected for events in readers)
    assert text_of(expected) == "".join(tokens)


async def test_without_a_reader_it_is_stopped_after_a_while_and_forgotten() -> None:
    async with running_service(simulated_model(), retention=RetentionLimits(reattach_s=0.2)) as service:
        call = service.generation.Generate(keyed(ENDLESS), timeout=20)
        generation_id = (await call.read()).started.generation_id
        call.cancel()
        await asyncio.sleep(0.05)
        again = service.generation.AttachGeneration(
            gen.AttachGenerationRequest(generation_id=generation_id), timeout=20
        )
        await again.read()
        await asyncio.sleep(0.4)
        assert service.sim.running == 1  # it has a reader
        again.cancel()
        await eventually(lambda: service.sim.running == 0)
        await eventually(lambda: service.server.drain.running == 0)
        assert (await get(service, generation_id=generation_id)).state == gen.GENERATION_STATE_CANCELLED
        failure = await refused(attached(service, generation_id=generation_id))
        assert failure.info.reason == "GENERATION_NOT_FOUND"
        assert service.models["sim"].slots.running == 0


async def test_one_that_goes_on_does_so_without_a_reader_and_beyond_the_deadline_of_its_call() -> None:
    async with running_service(simulated_model(), retention=RetentionLimits(reattach_s=0.05)) as service:
        request = keyed(script(tokens=["a"], output_tokens=60, token_ms=10), retention=policy(continues=True))
        failure = await service.failure(request, timeout=0.2)
        assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert service.sim.running == 1
        assert text_of(await attached(service, idempotency_key="k1")) == "a" * 60


async def test_one_that_goes_on_and_fails_in_the_line_says_so_to_whoever_comes_back() -> None:
    async with running_service(simulated_model(running=1), limits=Limits(queue_s=0.2)) as service:
        blocker = service.generation.Generate(GenerateRequest(model="sim", prompt=ENDLESS), timeout=20)
        await blocker.read()
        left = service.generation.Generate(keyed(retention=policy(continues=True, annotation=b"a")), timeout=20)
        async with asyncio.timeout(5):
            while True:
                with suppress(grpc.aio.AioRpcError):
                    state = await get(service, idempotency_key="k1")
                    if state.HasField("ahead_count"):
                        break
        left.cancel()
        failure = await refused(attached(service, generation_id=state.generation_id))
        assert failure.info.reason == "QUEUE_TIMEOUT"
        told = await get(service, generation_id=state.generation_id)
        assert (told.state, told.annotation) == (gen.GENERATION_STATE_FAILED, b"a")
        again = await refused(attached(service, generation_id=state.generation_id))
        assert again.info.reason == "QUEUE_TIMEOUT"
        blocker.cancel()


async def test_a_cancel_by_key_ends_all_readers_with_what_was_made(service: RunningService) -> None:
    calls = [service.generation.Generate(keyed(ENDLESS), timeout=20) for _ in range(3)]
    for call in calls:
        await call.read()
    answer = await service.generation.CancelGeneration(gen.CancelGenerationRequest(idempotency_key="k1"), timeout=5)
    assert answer.state == gen.GENERATION_STATE_CANCELLED
    for call in calls:
        events = [event async for event in _rest(call)]
        assert events[-2].choice_finished.reason == gen.FINISH_REASON_CANCELLED
        assert events[-1].HasField("completed")
    assert (await get(service, idempotency_key="k1")).state == gen.GENERATION_STATE_CANCELLED


async def _rest(call: Any) -> Any:
    while (event := await call.read()) is not grpc.aio.EOF:
        yield event


async def test_a_slow_reader_ends_alone(service: RunningService) -> None:
    options = [("grpc.http2.bdp_probe", 0)]
    prompt = script(tokens=["x" * 1000], output_tokens=512, token_ms=0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{service.port}", options=options) as channel:
        slow = type(service.generation)(channel).Generate(keyed(prompt), timeout=20)
        await slow.read()
        assert len(text_of(await service.events(keyed(prompt)))) == 512_000
        slow.cancel()


async def test_events_that_are_gone_are_not_promised() -> None:
    limits = RetentionLimits(events=20)
    async with running_service(simulated_model(), retention=limits) as service:
        prompt = script(tokens=["x"], output_tokens=200, token_ms=1)
        await service.events(keyed(prompt, retention=policy(continues=True)))
        state = await get(service, idempotency_key="k1")
        assert state.last_sequence - state.first_sequence == 19
        failure = await refused(attached(service, after=3, idempotency_key="k1"))
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REPLAY_EXPIRED")
        assert failure.info.metadata["firstSequence"] == str(state.first_sequence)
        rest = await attached(service, after=state.first_sequence - 1, idempotency_key="k1")
        assert len(rest) == 20


async def test_attach_names_what_is_wrong(service: RunningService) -> None:
    events = await service.events(keyed())
    cases: list[tuple[dict[str, Any], str, list[str]]] = [
        ({}, "INVALID_FIELD", ["generation_id"]),
        ({"idempotency_key": "k1", "after": -1}, "INVALID_FIELD", ["after_sequence"]),
        ({"idempotency_key": "k1", "after": len(events) + 1}, "INVALID_FIELD", ["after_sequence"]),
        ({"idempotency_key": "k2"}, "GENERATION_NOT_FOUND", []),
        ({"generation_id": "gen_nope"}, "GENERATION_NOT_FOUND", []),
    ]
    for target, reason, fields in cases:
        failure = await refused(attached(service, **target))
        assert (failure.info.reason, failure.fields) == (reason, fields)


async def test_what_is_anothers_is_not_there(service: RunningService) -> None:
    events = await service.events(keyed(), metadata=ALICE)
    generation_id = events[0].started.generation_id
    told = set()
    for target in ({"generation_id": generation_id}, {"idempotency_key": "k1"}, {"generation_id": "gen_nope"}):
        for call in (
            attached(service, metadata=BOB, **target),
            get(service, metadata=BOB, **target),
            service.generation.CancelGeneration(gen.CancelGenerationRequest(**target), timeout=5, metadata=BOB),
        ):
            failure = await refused(call)
            told.add((failure.code, failure.info.reason, failure.error.details()))
    assert len(told) == 1
    assert len(await attached(service, metadata=ALICE, generation_id=generation_id)) == len(events)


# What is kept, and for how long


async def test_retention_without_a_key_keeps_events_under_the_id(service: RunningService) -> None:
    request = GenerateRequest(model="sim", prompt=ANSWER, retention=policy(annotation=b"mine"))
    events = await service.events(request)
    generation_id = events[0].started.generation_id
    state = await get(service, generation_id=generation_id)
    assert (state.first_sequence, state.last_sequence) == (1, len(events))
    assert (state.annotation, state.generation_id) == (b"mine", generation_id)
    assert state.HasField("expire_time")
    assert await attached(service, generation_id=generation_id) == events


async def test_kept_events_go_when_their_time_is_over(service: RunningService) -> None:
    events = await service.events(keyed(retention=policy(0.2)))
    assert await attached(service, idempotency_key="k1") == events
    await asyncio.sleep(0.3)
    failure = await refused(attached(service, idempotency_key="k1"))
    assert failure.info.reason == "GENERATION_NOT_FOUND"
    await service.events(keyed(retention=policy(0)))
    assert service.sim.started == 2
    await eventually(lambda: not _kept(service))


async def test_the_oldest_ended_ones_go_when_there_are_too_many() -> None:
    limits = RetentionLimits(ended_bytes=20_000)
    async with running_service(simulated_model(), retention=limits) as service:
        for number in range(30):
            await service.events(keyed(key=f"k{number}"))
        assert 0 < _kept(service) < 29
        assert (await refused(attached(service, idempotency_key="k0"))).info.reason == "GENERATION_NOT_FOUND"
        assert text_of(await attached(service, idempotency_key="k29")) == "abcdefghij"


def _kept(service: RunningService) -> int:
    return len(service.server.recordings)


async def test_a_drain_ends_retained_ones_like_all_others(service: RunningService) -> None:
    call = service.generation.Generate(keyed(ENDLESS, retention=policy(continues=True)), timeout=20)
    await call.read()
    call.cancel()
    attached_call = asyncio.create_task(refused(attached(service, idempotency_key="k1")))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(service.server.stop(0.1), 5)
    assert (await attached_call).info.reason == "DRAINING"
    assert service.sim.running == 0


class SlowToOpen(NoAccounts):
    """Accounts that somebody has to be asked for."""

    async def open(self, opening: Opening) -> Account:
        await asyncio.sleep(0.3)
        return await super().open(opening)


async def test_a_cancel_before_it_runs_is_kept_until_it_does() -> None:
    async with running_service(simulated_model(), accounts=SlowToOpen()) as service:
        call = asyncio.create_task(service.events(keyed(ENDLESS)))
        await eventually(lambda: _kept(service) == 1)
        assert (await get(service, idempotency_key="k1")).state == gen.GENERATION_STATE_QUEUED
        cancel = gen.CancelGenerationRequest(idempotency_key="k1")
        answer = await service.generation.CancelGeneration(cancel, timeout=5)
        assert answer.state == gen.GENERATION_STATE_CANCELLED
        async with asyncio.timeout(5):
            events = await call
        assert events[-2].choice_finished.reason == gen.FINISH_REASON_CANCELLED


async def test_a_drain_waits_for_what_is_about_to_run() -> None:
    async with running_service(simulated_model(), accounts=SlowToOpen()) as service:
        call = asyncio.create_task(service.events(keyed()))
        await eventually(lambda: _kept(service) == 1)
        await service.server.stop(3)
        assert text_of(await call) == "abcdefghij"


async def test_who_comes_while_an_orphan_is_stopped_runs_it_anew(service: RunningService) -> None:
    call = service.generation.Generate(keyed(ENDLESS), timeout=20)
    first = (await call.read()).started.generation_id
    recording = service.server.recordings.find_by_key("", "k1")
    assert recording is not None
    assert recording.on_orphaned is not None
    recording.on_orphaned(recording)
    again = service.generation.Generate(keyed(ENDLESS), timeout=20)
    assert (await again.read()).started.generation_id != first
    again.cancel()
    call.cancel()


async def test_nothing_is_left_to_the_collector(service: RunningService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    prompts = [ANSWER, script(fault="error", fault_after=1), script(fault="crash"), script(fault="error")]

    async def storm(name: str) -> None:
        for number, prompt in enumerate(prompts):
            request = keyed(prompt, key=f"{name}{number}", retention=policy(0))
            await asyncio.gather(*(_ignored(service, request) for _ in range(3)))
        left = service.generation.Generate(keyed(ANSWER, key=f"{name}left", retention=policy(0)), timeout=20)
        await left.read()
        left.cancel()
        await eventually(lambda: not _kept(service))

    await storm("a")
    with kept_by_cycles("service.") as kept:
        await storm("b")
        await asyncio.sleep(0.1)
        caplog.clear()
    assert not kept


async def _ignored(service: RunningService, request: GenerateRequest) -> None:
    with suppress(grpc.aio.AioRpcError):
        await service.events(request)
