"""The usage ledger behind a real service: whatever ends a generation, it is there once, with what it used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import error_reason_pb2 as reasons
from headrace.v1 import generation_pb2 as pb
from headrace.v1.sampling_pb2 import SamplingParams
from service.core.account import Account, Accounts, NoAccounts, Opening
from service.core.errors import Reason, ServiceError
from service.generation.live import LiveGenerations
from service.ledger import Ledger, LedgerAccounts, Store, open_store, parse_address
from service.telemetry.instruments import record_ledger_lost
from tests.support.metering import install_reader
from tests.support.service import (
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
    simulated_model,
)
from tests.support.usage_ledger import MemoryStore, read, unended


def request(prompt: str = script(output_tokens=8), **fields: Any) -> GenerateRequest:
    fields.setdefault("sampling", SamplingParams(max_output_tokens=200))
    return GenerateRequest(model="sim", prompt=prompt, **fields)


@asynccontextmanager
async def recorded(
    store: Store, *models: Any, inner: Accounts | None = None, **options: Any
) -> AsyncIterator[RunningService]:
    ledger = Ledger(store, on_lost=record_ledger_lost, **options)
    await ledger.start()
    try:
        async with running_service(*models, accounts=LedgerAccounts(ledger, inner or NoAccounts())) as service:
            yield service
    finally:
        await ledger.close()


@pytest.fixture(params=["usage.jsonl", "usage.db"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / request.param)


@pytest.fixture
async def service(address: str) -> AsyncIterator[RunningService]:
    async with recorded(open_store(parse_address(address)), simulated_model(running=2, waiting=0)) as running:
        yield running


def only(address: str) -> dict[str, Any]:
    (row,) = read(address).values()
    return row


async def test_an_answer_is_on_record_when_its_reader_has_seen_the_end(service: RunningService, address: str) -> None:
    events = await service.events(
        request(choice_count=2, end_user="ann", priority=pb.PRIORITY_BATCH), metadata=(("x-request-id", "req-7"),)
    )
    usage = events[-1].completed.usage
    row = only(address)
    wanted = {
        "generation_id": events[0].started.generation_id,
        "request_id": "req-7",
        "model": "sim",
        "priority": "batch",
        "end_user": "ann",
        "outcome": "completed",
        "reason": None,
        "prompt_tokens": usage.prompt_token_count,
        "output_tokens": usage.output_token_count,
    }
    assert {name: row[name] for name in wanted} == wanted
    assert row["output_tokens"] == 16
    assert unended(address) == {}


async def test_what_runs_is_told_apart_from_what_has_ended(service: RunningService, address: str) -> None:
    call = service.generation.Generate(request(script(token_ms=5)), timeout=20)
    await call.read()
    await eventually(lambda: list(unended(address).values()) == ["running"])
    call.cancel()
    await eventually(lambda: not unended(address))
    assert only(address)["outcome"] == "client_cancelled"


async def test_a_caller_who_leaves_pays_for_what_was_made(service: RunningService, address: str) -> None:
    call = service.generation.Generate(request(script(token_ms=5)), timeout=20)
    for _ in range(4):
        await call.read()
    call.cancel()
    await eventually(lambda: len(read(address)) == 1)
    row = only(address)
    assert row["outcome"] == "client_cancelled"
    assert row["prompt_tokens"]
    assert 3 <= row["output_tokens"] < 200
    assert row["ttft_s"] > 0


async def test_a_cancel_by_somebody_else_is_an_end_like_any_other(service: RunningService, address: str) -> None:
    call = service.generation.Generate(request(script(token_ms=5)), timeout=20)
    id_ = (await call.read()).started.generation_id
    await call.read()
    await service.generation.CancelGeneration(pb.CancelGenerationRequest(generation_id=id_), timeout=5)
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    row = only(address)
    assert row["outcome"] == "cancelled"
    assert row["output_tokens"] == events[-1].completed.usage.output_token_count


@pytest.mark.parametrize(
    ("prompt", "timeout_s", "outcome", "reason", "has_output"),
    [
        (script(token_ms=5), 0.3, "deadline_exceeded", "DEADLINE_IN_DECODE", True),
        (script(token_ms=1, fault="error", fault_after=3), 20, "backend_error", "BACKEND_ERROR", True),
        (script(fault="crash"), 20, "internal_error", "INTERNAL", False),
        (script(fault="unavailable"), 20, "backend_error", "BACKEND_UNAVAILABLE", False),
    ],
)
async def test_a_failure_is_on_record_with_its_reason_when_its_caller_is_told(
    service: RunningService,
    address: str,
    prompt: str,
    timeout_s: float,
    outcome: str,
    reason: str,
    has_output: bool,
) -> None:
    await service.failure(request(prompt), timeout=timeout_s)
    if outcome == "deadline_exceeded":  # the client's own clock may be the first
        await eventually(lambda: len(read(address)) == 1)
    row = only(address)
    assert (row["outcome"], row["reason"] or reason) == (outcome, reason)
    assert bool(row["output_tokens"]) is has_output


async def test_a_full_line_is_a_refusal_on_record(service: RunningService, address: str) -> None:
    calls = [service.generation.Generate(request(script(token_ms=5)), timeout=20) for _ in range(2)]
    for call in calls:
        await call.read()
    failure = await service.failure(request())
    assert failure.info.reason == "QUEUE_FULL"
    row = only(address)
    assert (row["outcome"], row["reason"], row["output_tokens"] or 0) == ("rejected", "QUEUE_FULL", 0)
    for call in calls:
        call.cancel()


class Exhausted(NoAccounts):
    """Nothing is left."""

    async def open(self, opening: Opening) -> Account:
        raise ServiceError(Reason.QUOTA_EXHAUSTED, "No tokens are left today.")


async def test_what_the_limits_refuse_never_ran_and_is_on_record_once(address: str) -> None:
    async with recorded(open_store(parse_address(address)), inner=Exhausted()) as service:
        failure = await service.failure(request())
        assert failure.info.reason == reasons.ErrorReason.Name(reasons.ERROR_REASON_QUOTA_EXHAUSTED).removeprefix(
            "ERROR_REASON_"
        )
        row = only(address)
    assert (row["outcome"], row["reason"]) == ("rejected", "QUOTA_EXHAUSTED")
    assert (row["prompt_tokens"], row["output_tokens"], row["ttft_s"]) == (0, 0, None)


async def test_what_cannot_begin_is_closed_all_the_same(
    service: RunningService, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: LiveGenerations, live: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(LiveGenerations, "add", broken)
    assert (await service.failure(request())).info.reason == "INTERNAL"
    caplog.clear()
    row = only(address)
    assert (row["outcome"], row["reason"], row["output_tokens"]) == ("internal_error", "INTERNAL", 0)


async def test_what_is_no_request_is_not_on_record(service: RunningService, address: str) -> None:
    await service.failure(GenerateRequest(model="no-such-model", prompt="x"))
    await service.failure(request(sampling=SamplingParams(temperature=9)))
    assert read(address) == {}


async def test_a_drain_is_an_end_and_the_ledger_waits_for_it(address: str) -> None:
    async with recorded(open_store(parse_address(address))) as service:
        call = service.generation.Generate(request(script(token_ms=5)), timeout=20)
        await call.read()
        await service.server.stop(0.05)
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
    assert only(address)["outcome"] == "drained"
    assert unended(address) == {}


async def test_calls_that_join_a_generation_add_nothing_to_it(service: RunningService, address: str) -> None:
    keyed = request(script(token_ms=5, output_tokens=8), idempotency_key="k1")
    await asyncio.gather(*(service.events(keyed) for _ in range(5)))
    await service.events(keyed)
    assert only(address)["output_tokens"] == 8


async def test_a_hundred_at_once_are_a_hundred_rows(address: str) -> None:
    async with recorded(open_store(parse_address(address)), simulated_model(running=100)) as service:
        events = await asyncio.gather(*(service.events(request()) for _ in range(100)))
        assert read(address).keys() == {event[0].started.generation_id for event in events}
        assert sum(row["output_tokens"] for row in read(address).values()) == 800


async def test_a_store_that_fails_in_the_middle_stops_no_stream_and_loses_nothing_that_it_takes_later() -> None:
    store = MemoryStore()
    async with recorded(store) as service:
        call = service.generation.Generate(request(script(token_ms=2, output_tokens=50)), timeout=20)
        await call.read()
        store.is_failing = True
        events = []
        while (event := await call.read()) is not grpc.aio.EOF:
            events.append(event)
        assert events[-1].WhichOneof("event") == "completed"
        for _ in range(5):
            async with asyncio.timeout(0.5):
                await service.events(request())
        store.is_failing = False
        await eventually(lambda: len(store.ends()) == 6, 10)
    assert len(set(store.ends())) == 6


async def test_a_store_that_hangs_costs_a_caller_a_moment_and_what_is_lost_is_counted() -> None:
    metered = install_reader()
    store = MemoryStore()
    async with recorded(store, queued_records=4, end_wait_s=0.1) as service:
        store.gate.clear()
        for _ in range(6):
            async with asyncio.timeout(1):
                await service.events(request())
        store.gate.set()
    metered.read()
    lost = {
        point.attributes["headrace.ledger.record"]: point.value
        for point in metered.named("headrace.server.ledger.lost")
    }
    assert lost["ended"] == 6 - len(store.ends())
    assert store.closed_with == lost["ended"] > 0
