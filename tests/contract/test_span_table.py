"""One table: how a request can end, and what each span of it says then. Gateway and service, a wire between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from headrace.v1.generation_pb2 import CancelGenerationRequest
from runtime import semconv
from runtime.slo import Objectives
from runtime.spans import ATTRIBUTES, SPANS, find_span
from tests.support.gateway_harness import CHAT, RawClient, RunningGateway, running_gateway
from tests.support.http_stream import HttpStream
from tests.support.service import RunningService, eventually, running_service, script, simulated_model

RPC, HTTP = "headrace.v1.GenerationService/Generate", f"POST {CHAT}"
ENGINE, WAIT, FIRST, REST = "chat sim", "wait for a slot", "await first token", "stream tokens"
QUICK = script(tokens=["a"], output_tokens=3, token_ms=1)
LONG = script(tokens=["a"], token_ms=5)


@asynccontextmanager
async def both(**options: Any) -> AsyncIterator[tuple[RunningService, RunningGateway]]:
    model = simulated_model(running=options.pop("running", 4), waiting=options.pop("waiting", 4))
    gateway_options = options.pop("gateway", {})
    async with (
        running_service(model, **options) as service,
        running_gateway(f"127.0.0.1:{service.port}", **gateway_options) as gateway,
    ):
        yield service, gateway


def chat(prompt: str, **members: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": f"{prompt}\n"}], "stream": True, **members}


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


class Recorded:
    """The spans of the one request that a test is about."""

    def __init__(self, spans: list[ReadableSpan]) -> None:
        self.all = spans

    def of(self, name: str, kind: str | None = None) -> ReadableSpan:
        (found,) = [s for s in self.all if s.name == name and (kind is None or s.kind.name == kind)]
        return found

    def has(self, name: str) -> bool:
        return any(span.name == name for span in self.all)


async def recorded(spans: InMemorySpanExporter) -> Recorded:
    """Wait for the end of the one HTTP request and of all its parts."""

    def is_whole() -> bool:
        found = spans.get_finished_spans()
        ids = {span.context.span_id for span in found}
        parents = {span.parent.span_id for span in found if span.parent is not None}
        return any(span.name.endswith(CHAT) for span in found) and parents <= ids

    await eventually(is_whole)
    await asyncio.sleep(0.05)
    return Recorded(list(spans.get_finished_spans()))


@dataclass(frozen=True)
class Row:
    """What the spans say: the gateway's and the service's outcome, statuses, and who is in error."""

    http: int
    status: str
    outcome: str
    gateway_outcome: str
    # Of the HTTP span, the call's on the client's side, the service's and the engine's; None where there is no engine.
    errors: tuple[bool, bool, bool, bool | None]
    error_type: str | None = None
    reason: str | None = None
    has_token: bool = False


OK = Row(200, "OK", "completed", "completed", (False, False, False, False), has_token=True)
TABLE: dict[str, Row] = {
    "completed": OK,
    "no such model": Row(
        404, "NOT_FOUND", "rejected", "rejected", (False, True, False, None), reason="MODEL_NOT_FOUND"
    ),
    "overload": Row(503, "RESOURCE_EXHAUSTED", "rejected", "failed", (True, True, False, None), reason="QUEUE_FULL"),
    "client leaves before the first token": Row(
        499, "CANCELLED", "client_cancelled", "client_cancelled", (False, False, False, False)
    ),
    "client leaves in the middle": Row(
        200, "CANCELLED", "client_cancelled", "client_cancelled", (False, False, False, False), has_token=True
    ),
    "deadline before the first token": Row(
        504,
        "DEADLINE_EXCEEDED",
        "deadline_exceeded",
        "deadline_exceeded",
        (True, True, True, True),
        "DEADLINE_EXCEEDED",
        "DEADLINE_IN_DECODE",
    ),
    "deadline in the middle": Row(
        200,
        "DEADLINE_EXCEEDED",
        "deadline_exceeded",
        "deadline_exceeded",
        (True, True, True, True),
        "DEADLINE_EXCEEDED",
        "DEADLINE_IN_DECODE",
        has_token=True,
    ),
    "engine dies before the first token": Row(
        200,  # it had begun
        "UNAVAILABLE",
        "backend_error",
        "failed",
        (True, True, True, True),
        "UNAVAILABLE",
        "BACKEND_UNAVAILABLE",
    ),
    "engine dies in the middle": Row(
        200,
        "UNAVAILABLE",
        "backend_error",
        "failed",
        (True, True, True, True),
        "UNAVAILABLE",
        "BACKEND_UNAVAILABLE",
        has_token=True,
    ),
    "engine fails": Row(
        200,
        "INTERNAL",
        "backend_error",
        "failed",
        (True, True, True, True),
        "INTERNAL",
        "BACKEND_ERROR",
        has_token=True,
    ),
    "a bug": Row(
        200, "INTERNAL", "internal_error", "failed", (True, True, True, True), "INTERNAL", "INTERNAL", has_token=True
    ),
    "stopped by its id": Row(200, "OK", "cancelled", "cancelled", (False, False, False, False), has_token=True),
    "drain": Row(
        200, "UNAVAILABLE", "drained", "failed", (True, True, True, True), "UNAVAILABLE", "DRAINING", has_token=True
    ),
}


FAULTS = {"engine dies": "unavailable", "engine fails": "error", "a bug": "crash"}


async def act(case: str, service: RunningService, gateway: RunningGateway) -> None:
    """Send the one request, and do to it what the case says."""
    fault = next((fault for name, fault in FAULTS.items() if case.startswith(name)), None)
    prompt = QUICK if case == "completed" else LONG
    if fault is not None:
        after = 0 if case.endswith("before the first token") else 3
        prompt = script(tokens=["a"], token_ms=5, fault=fault, fault_after=after)
    elif case.endswith("before the first token"):
        prompt = script(queue_ms=5000)  # nothing is said before, so that there is no 200
    headers = {"request-timeout-ms": "200"} if case.startswith("deadline") else {}
    body = chat(prompt, **({"model": "nobody's"} if case == "no such model" else {}))
    async with RawClient(gateway.port) as client:
        await client.send("POST", CHAT, body, headers)
        if case == "client leaves before the first token":
            await eventually(lambda: service.sim.running == 1)
            client.leave()
            return
        head = await client.head()
        generation_id = ""
        if case in {"client leaves in the middle", "stopped by its id", "drain"}:
            while b'"content":"a"' not in (piece := await client.piece()):
                pass
            generation_id = (
                json.JSONDecoder().raw_decode(piece.partition(b"data: ")[2].decode())[0]["id"].removeprefix("chatcmpl-")
            )
        if case == "client leaves in the middle":
            client.leave()
            return
        if case == "stopped by its id":
            await service.generation.CancelGeneration(CancelGenerationRequest(generation_id=generation_id))
        if case == "drain":
            await service.server.stop(0.05)
        while head.headers.get("transfer-encoding") == "chunked" and await client.piece():
            pass


@pytest.mark.report("M01", "M03")
@pytest.mark.parametrize("case", TABLE)
async def test_every_span_says_how_its_request_ended(
    case: str, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    row = TABLE[case]
    # The hold is short, so that what fails late fails behind a 200, and long enough for what fails at once.
    async with both(running=1, waiting=0, gateway={"status_hold_s": 2.0}) as (service, gateway):
        if case == "overload":
            service.models["sim"].slots.enter()
        await act(case, service, gateway)
        found = await recorded(spans)
        http = found.of(HTTP)
        call, rpc = found.of(RPC, "CLIENT"), found.of(RPC, "SERVER")
        assert told(http)[semconv.HTTP_STATUS_CODE] == row.http
        assert told(rpc)[semconv.RPC_STATUS_CODE] == row.status
        assert (told(rpc)[semconv.OUTCOME], told(http)[semconv.OUTCOME]) == (row.outcome, row.gateway_outcome)
        assert found.has(ENGINE) is (row.errors[3] is not None)
        parts = [http, call, rpc, *([found.of(ENGINE)] if found.has(ENGINE) else [])]
        assert [part.status.status_code is StatusCode.ERROR for part in parts] == [
            error for error in row.errors if error is not None
        ]
        assert told(rpc).get(semconv.ERROR_TYPE) == row.error_type
        assert told(rpc).get(semconv.ERROR_REASON) == row.reason
        if found.has(ENGINE):
            assert told(found.of(ENGINE)).get(semconv.ERROR_TYPE) == row.error_type
            assert (semconv.GEN_AI_TTFC in told(found.of(ENGINE))) is row.has_token
            assert found.has(FIRST)
        assert found.has(REST) is row.has_token
        # The chain, and the number of spans: however many tokens, however it ended.
        assert call.parent is not None
        assert rpc.parent is not None
        assert (call.parent.span_id, rpc.parent.span_id) == (http.context.span_id, call.context.span_id)
        mine = [span for span in found.all if "CancelGeneration" not in span.name]
        assert len(mine) == 3 + (row.errors[3] is not None) * (2 + row.has_token)
        # Failed traces are kept by both processes, whatever the sampler says.
        is_failed = row.error_type is not None
        assert (told(rpc).get(semconv.KEEP) == "failed") is is_failed
        assert (told(http).get(semconv.KEEP) is not None) is (is_failed or row.errors[0] or case == "overload")
    assert not [record for record in caplog.records if "detach" in record.getMessage().lower()]


async def test_a_request_that_has_to_wait_has_a_span_for_it(spans: InMemorySpanExporter) -> None:
    async with both(running=1) as (service, gateway), RawClient(gateway.port) as client:
        before = service.models["sim"].slots.enter()
        await client.send("POST", CHAT, chat(QUICK))
        await eventually(lambda: service.models["sim"].slots.waiting == 1)
        await asyncio.sleep(0.1)
        before.leave()
        assert (await client.response()).is_whole
        found = await recorded(spans)
    wait, engine, rpc = found.of(WAIT), found.of(ENGINE), found.of(RPC, "SERVER")
    assert wait.parent is not None
    assert wait.parent.span_id == rpc.context.span_id
    assert wait.end_time <= engine.start_time  # type: ignore[operator]
    assert wait.end_time - wait.start_time >= 0.1e9  # type: ignore[operator]
    assert told(rpc)[semconv.QUEUE_S] >= 0.1


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (QUICK, None),
        (script(tokens=["a"], output_tokens=2, prefill_ms=250), "slow"),
        (script(tokens=["a"], output_tokens=3, token_ms=350), "stalled"),
    ],
)
async def test_a_slow_or_stalled_trace_is_marked_in_both_processes(
    prompt: str, reason: str | None, spans: InMemorySpanExporter
) -> None:
    objectives = Objectives(ttft_s=0.2, tpot_s=None, stall_s=0.3)
    # The gateway by itself would think nothing of it: it is told by the service's trailers.
    async with (
        both(objectives=objectives, gateway={"slo_ttft_s": 30.0}) as (_, gateway),
        RawClient(gateway.port) as client,
    ):
        assert (await client.post(chat(prompt))).is_whole
        found = await recorded(spans)
        assert told(found.of(RPC, "SERVER")).get(semconv.KEEP) == reason
        assert told(found.of(HTTP)).get(semconv.KEEP) == reason
        assert told(found.of(RPC, "SERVER"))[semconv.SLO_TTFT_MET] is (reason != "slow")


async def test_a_client_who_leaves_after_too_long_a_wait_is_kept_by_each_process_s_own_clock(
    spans: InMemorySpanExporter,
) -> None:
    options = {"objectives": Objectives(ttft_s=0.1), "gateway": {"slo_ttft_s": 0.1}}
    async with both(**options) as (service, gateway):
        async with RawClient(gateway.port) as client:
            await client.send("POST", CHAT, chat(script(prefill_ms=5000)))
            await eventually(lambda: service.sim.running == 1)
            await asyncio.sleep(0.2)
            client.leave()
        found = await recorded(spans)
    assert told(found.of(RPC, "SERVER"))[semconv.KEEP] == told(found.of(HTTP))[semconv.KEEP] == "slow"


async def test_a_client_who_leaves_while_the_engine_stands_still_has_seen_it_stall(spans: InMemorySpanExporter) -> None:
    options = {"objectives": Objectives(tpot_s=None, stall_s=0.2), "gateway": {"stall_s": 0.2}}
    async with both(**options) as (service, gateway):
        async with RawClient(gateway.port) as client:
            await client.send("POST", CHAT, chat(script(tokens=["a"], output_tokens=3, token_ms=5000)))
            await eventually(lambda: service.sim.running == 1)
            stream = HttpStream(client, await client.head())
            await stream.until_text()
            await asyncio.sleep(0.3)
            client.leave()
        found = await recorded(spans)
    assert told(found.of(RPC, "SERVER"))[semconv.KEEP] == told(found.of(HTTP))[semconv.KEEP] == "stalled"
    assert told(found.of(RPC, "SERVER"))[semconv.MAX_GAP_S] >= 0.3


async def test_spans_and_attributes_are_those_of_the_table(spans: InMemorySpanExporter) -> None:
    cases = [case for case in TABLE if case not in {"drain", "overload"}]
    async with both(gateway={"status_hold_s": 0.25}) as (service, gateway):
        for case in cases:
            await act(case, service, gateway)
        await eventually(
            lambda: sum(span.name == HTTP for span in spans.get_finished_spans()) == len(cases), timeout_s=10
        )
    for span in spans.get_finished_spans():
        kind = find_span(span.name, span.kind.name)
        assert kind is not None, f"{span.name} is in no table"
        strange = set(told(span)) - set(kind.attributes)
        assert not strange, f"{span.name}: {strange}"


def test_every_attribute_of_the_table_is_explained_and_none_is_explained_for_nothing() -> None:
    assert {name for span in SPANS for name in span.attributes} == set(ATTRIBUTES)
