"""Whatever the end of a generation is, it counts for what it has used; and replicas count together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import generation_pb2
from service.backends.simulator import SimulatorOptions
from service.generation.limits import Limits
from tests.support.limited_service import limited, rules_of, say
from tests.support.redis_server import redis_server
from tests.support.service import (
    GenerateRequest,
    RunningService,
    eventually,
    script,
    simulated_model,
)

RESERVED = 500
ENDS: Mapping[str, tuple[dict[str, Any], str, int]] = {
    # plays, outcome, output tokens; -1 for a generation that costs nothing, -2 for whatever had come.
    "to its end": ({}, "completed", 5),
    "at its limit": ({"output_tokens": 900}, "completed", RESERVED),
    "by an error of the engine": ({"fault": "error", "fault_after": 3}, "backend_error", 3),
    "by an engine that goes away": ({"fault": "unavailable", "fault_after": 2}, "backend_error", 2),
    "by a crash": ({"fault": "crash", "fault_after": 4}, "internal_error", 4),
    "by an engine that falls silent": ({"fault": "hang", "fault_after": 2}, "backend_error", 2),
    "by an engine that was not there": ({"fault": "unavailable", "fault_after": 0}, "backend_error", 0),
    "by its deadline": ({"token_ms": 50, "output_tokens": 900}, "deadline_exceeded", -2),
    "by its time limit": ({"token_ms": 50, "output_tokens": 900}, "completed", -2),
    "by its caller": ({"token_ms": 50, "output_tokens": 900}, "client_cancelled", -2),
    "by CancelGeneration": ({"token_ms": 50, "output_tokens": 900}, "cancelled", -2),
    "in the line, by its deadline": ({}, "deadline_exceeded", -1),
    "in the line, by its timeout": ({}, "rejected", -1),
    "in the line, by its caller": ({}, "client_cancelled", -1),
    "before the line, as too long": ({}, "rejected", -1),
}


@pytest.mark.parametrize("end", ENDS)
async def test_whatever_its_end_is_a_generation_counts_for_what_it_has_used(end: str) -> None:
    plays, outcome, output = ENDS[end]
    is_queued = end.startswith("in the line")
    model = simulated_model(running=1, waiting=4)
    rules = rules_of(requests_per_minute=10, tokens_per_minute=100_000, tokens_per_day=100_000, concurrent_streams=10)
    limits = Limits(token_gap_s=0.1, queue_s=0.1 if end == "in the line, by its timeout" else 60)
    async with limited(rules, model, limits=limits) as (service, books):
        prompt = script(**{"tokens": ["a"], "output_tokens": 5, **plays})
        request = GenerateRequest(model="sim", prompt=prompt, sampling={"max_output_tokens": RESERVED})
        if end == "before the line, as too long":
            request.tokens.ids[:] = [1] * 9000
        if end == "by its time limit":
            request.time_limit.FromMilliseconds(150)
        timeout_s = 0.2 if end.endswith("deadline") else 20
        async with model.slots.take() if is_queued else _nothing():
            call = service.generation.Generate(request, timeout=timeout_s)
            if is_queued and end.endswith("caller"):
                await eventually(lambda: model.slots.waiting == 1)
                call.cancel()
            elif end in ("by its caller", "by CancelGeneration"):
                first = await call.read()
                for _ in range(3):
                    await call.read()
                if end == "by its caller":
                    call.cancel()
                else:
                    wanted = generation_pb2.CancelGenerationRequest(generation_id=first.started.generation_id)
                    await service.generation.CancelGeneration(wanted)
            try:
                while await call.read() is not grpc.aio.EOF:
                    pass
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                pass
            closing = await books.closing()
        assert closing.outcome == outcome
        if output == -1:
            expected = 0
        else:
            told = closing.usage.output_tokens
            assert told is not None
            assert told == output if output >= 0 else 0 < told < RESERVED
            assert closing.usage.prompt_tokens is not None or not told
            expected = (closing.usage.prompt_tokens or 0) + told
        assert books.used("tokens_per_minute") == expected
        assert books.used("tokens_per_day") == expected
        assert books.used("requests_per_minute") == 1
        assert books.streams == 0


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


async def test_many_generations_at_once_with_every_end_settle_to_what_they_used() -> None:
    """Storm: the counter is the sum of the closings, and nothing is held any more."""
    rules = rules_of(tokens_per_minute=10**9, concurrent_streams=10**6)
    async with limited(rules, simulated_model(running=8, waiting=200)) as (service, books):

        async def one(number: int) -> None:
            fault = ("none", "error", "unavailable", "crash")[number % 4]
            call = service.generation.Generate(
                say(number % 30 + 1, plays={"fault": fault, "fault_after": number % 7, "token_ms": number % 3}),
                timeout=0.05 if number % 5 == 0 else 20,
            )
            try:
                async for event in call:
                    if number % 6 == 0 and event.sequence > 3:
                        call.cancel()
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                pass

        await asyncio.gather(*(one(number) for number in range(150)))
        await eventually(lambda: books.streams == 0 and books.open_accounts == 0)
        # Those who leave while their account is closed cut that short, and nothing of it is lost.
        await eventually(lambda: not books.limiter._settling)
        used = [(closing.usage.prompt_tokens or 0) + (closing.usage.output_tokens or 0) for closing in books.closings]
        assert books.used("tokens_per_minute") == sum(used) > 0


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "concurrent_streams"])
async def test_two_services_that_share_a_redis_let_in_exactly_what_the_limit_has(tmp_path: Path, limit: str) -> None:
    """300 calls at once on each of two; of tokens each call takes 20."""
    prompt = generation_pb2.TokenIds(ids=[1] * 10)
    request = GenerateRequest(model="sim", tokens=prompt, sampling={"max_output_tokens": 10})
    if limit == "concurrent_streams":
        request.sampling.max_output_tokens = 1000
    values = {"requests_per_minute": 200, "tokens_per_minute": 4000, "concurrent_streams": 200}
    rules = rules_of(**{limit: values[limit]})
    reached, running, codes = asyncio.Event(), 0, set()

    async def one(service: RunningService) -> bool:
        nonlocal running
        call = service.generation.Generate(request, timeout=30)
        try:
            while await call.read() is not grpc.aio.EOF:
                if limit == "concurrent_streams":
                    running += 1
                    await reached.wait()
                    call.cancel()
                    return True
        except grpc.aio.AioRpcError as error:
            codes.add(error.code())
            return False
        return True

    def model() -> Any:
        token_ms = 100 if limit == "concurrent_streams" else 0
        return simulated_model("sim", SimulatorOptions(token_ms=token_ms), running=1000, waiting=1000)

    with redis_server(tmp_path) as redis:
        async with (
            limited(rules, model(), redis_url=redis.url) as (first, _),
            limited(rules, model(), redis_url=redis.url) as (second, _),
        ):
            calls = [asyncio.create_task(one((first, second)[number % 2])) for number in range(600)]
            if limit == "concurrent_streams":
                await eventually(lambda: running + sum(call.done() for call in calls) == 600, 30)
                assert running == 200
                reached.set()
            accepted = sum(await asyncio.gather(*calls))
    # Tokens are given back as generations end, and all of these use what they had reserved.
    assert accepted == 200
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
