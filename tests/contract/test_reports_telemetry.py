"""Replays of public bug reports: spans with the right parents, honest times to first token, bounded metrics."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.v1 import model_pb2
from runtime import semconv
from runtime.otel.meters import RecordingMeterProvider
from tests.support.gateway_harness import CHAT
from tests.support.metering import Metered, install_reader
from tests.support.report_replay import R0, Replay, replays
from tests.support.service import GenerateRequest, RunningService, eventually

HTTP, RPC, ENGINE = f"POST {CHAT}", "headrace.v1.GenerationService/Generate", "chat m"
TREE = {HTTP, RPC, ENGINE, "await first token", "stream tokens"}


def of_trace(exporter: InMemorySpanExporter, trace_id: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if f"{span.context.trace_id:032x}" == trace_id]


def chain(found: list[ReadableSpan]) -> list[ReadableSpan]:
    """Return the gateway's span, its call's, the service's and the engine's; each is the parent of the next."""
    (root,) = [span for span in found if span.name == HTTP]
    links = [root]
    while len(links) < 4:
        parent_id = links[-1].context.span_id
        (child,) = [span for span in found if span.parent is not None and span.parent.span_id == parent_id]
        links.append(child)
    assert [span.name for span in links] == [HTTP, RPC, RPC, ENGINE]
    return links


def caller(name: str = "traceparent", **more: str) -> tuple[str, str, dict[str, str]]:
    """Return a new trace's id, the caller's span and the headers that tell of both."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, {name: f"00-{trace_id}-{span_id}-01", **more}


@pytest.mark.report("M07")
@pytest.mark.parametrize("name", ["traceparent", "TRACEPARENT"])
async def test_every_hop_is_the_child_of_the_one_before_and_triton_of_the_last(
    name: str, spans: InMemorySpanExporter
) -> None:
    async with replays() as replay:
        trace_id, span_id, headers = caller(name, tracestate="vendor=1", baggage="user=ann")
        async with replay.gateway.connect() as client:
            await client.post(replay.will('"a","b",FIN(eos)', {"stream": True}), headers=headers)
        await eventually(lambda: {span.name for span in of_trace(spans, trace_id)} >= TREE)
        links = chain(of_trace(spans, trace_id))
        assert links[0].parent is not None
        assert f"{links[0].parent.span_id:016x}" == span_id
        sent = replay.fake.metadata[-1]
        assert sent["traceparent"] == f"00-{trace_id}-{links[-1].context.span_id:016x}-01"
        assert sent["tracestate"] == "vendor=1"
        # What it holds is the caller's own, and nobody asked to hand it to an engine.
        assert "baggage" not in sent


@pytest.mark.report("M07")
async def test_a_request_without_a_trace_begins_one_that_reaches_triton(spans: InMemorySpanExporter) -> None:
    async with replays() as replay:
        await replay.post(replay.will('"a",FIN(eos)'))
        await eventually(lambda: {span.name for span in spans.get_finished_spans()} >= TREE)
        links = chain(list(spans.get_finished_spans()))
        assert links[0].parent is None
        assert replay.fake.metadata[-1]["traceparent"].split("-")[2] == f"{links[-1].context.span_id:016x}"


@pytest.mark.report("M07", "M01")
async def test_traces_of_requests_at_once_do_not_mix_also_where_some_are_left(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    async with replays() as replay:
        body = replay.will('"a"@0.1,"b"@0.1,"c"@0.1,FIN(eos)', {"stream": True})
        callers = [caller() for _ in range(20)]

        async def ask(number: int, headers: Mapping[str, str]) -> None:
            async with replay.gateway.connect() as client:
                if number % 2:
                    assert (await client.post(body, headers=headers)).is_whole
                    return
                await client.send("POST", CHAT, body, headers)
                await client.head()
                await client.piece()
                client.reset()

        await asyncio.gather(*(ask(number, headers) for number, (_, _, headers) in enumerate(callers)))
        await eventually(lambda: sum(span.name == HTTP for span in spans.get_finished_spans()) == 20)
        await eventually(lambda: sum(span.name == ENGINE for span in spans.get_finished_spans()) == 20)
        for number, (trace_id, span_id, _) in enumerate(callers):
            links = chain(of_trace(spans, trace_id))
            assert links[0].parent is not None
            assert f"{links[0].parent.span_id:016x}" == span_id
            outcome = "completed" if number % 2 else "client_cancelled"
            assert links[0].attributes is not None
            assert links[0].attributes[semconv.OUTCOME] == outcome
    assert not [record for record in caplog.records if "detach" in record.getMessage().lower()]


@asynccontextmanager
async def metered(**settings: Any) -> AsyncIterator[tuple[Replay, Metered, Metered]]:
    """Yield a replay, and what its service and its gateway record."""
    reader = InMemoryMetricReader()
    meters = RecordingMeterProvider([reader])
    inner = install_reader()
    async with replays(settings={"meters": meters, **settings}) as replay:
        yield replay, inner, Metered(reader)
    meters.shutdown()


async def settle(replay: Replay) -> None:
    """Wait until the gateway and the service have recorded everything that was asked."""
    await replay.gateway.wait_idle()
    await eventually(lambda: replay.service.server.drain.running == 0)
    async with replay.gateway.connect() as client:
        await client.get("/healthz")


TTFT, TTFC = "gen_ai.server.time_to_first_token", "gen_ai.client.operation.time_to_first_chunk"


@pytest.mark.report("M05")
@pytest.mark.parametrize(
    ("notation", "token_s", "text_s"),
    [
        ('"x"@0.4,"y"@0.1,FIN(eos)', 0.4, 0.4),
        # The token was there before its text could be sent.
        (r'"\xf0\x9f"@0.3,"\x98\xb8"@0.4,FIN(eos)', 0.3, 0.7),
        ("FIN(eos)@0.2", None, None),
        ('@0.2,ERR(INTERNAL,"broke")', None, None),
    ],
    ids=["text", "a character in two tokens", "no token", "an error"],
)
async def test_the_time_to_the_first_token_is_that_of_a_token_and_of_nothing_else(
    notation: str, token_s: float | None, text_s: float | None, spans: InMemorySpanExporter
) -> None:
    # Role, status and heartbeats all come long before.
    async with metered(status_hold_s=0.05, heartbeat_s=0.05) as (replay, service, gateway):
        await replay.post(replay.will(notation, {"stream": True}))
        await settle(replay)
        for seen, name, expected_s in ((service, TTFT, token_s), (gateway, TTFC, text_s)):
            seen.read()
            points = seen.named(name)
            assert sum(point.count for point in points) == (0 if expected_s is None else 1)
            if expected_s is not None:
                assert expected_s - 0.02 <= points[0].sum < expected_s + 0.25
        await eventually(lambda: any(span.name == HTTP for span in spans.get_finished_spans()))
        for key, place, expected_s in ((semconv.TTFT_S, RPC, token_s), (semconv.GEN_AI_TTFC, HTTP, text_s)):
            on = [span for span in spans.get_finished_spans() if key in (span.attributes or {}) and span.name != ENGINE]
            assert [span.name for span in on] == ([] if expected_s is None else [place])


@pytest.mark.report("M12")
async def test_fifty_streams_cut_at_once_are_fifty_cancelled_requests_and_no_running_one() -> None:
    async with metered() as (replay, service, gateway):
        body = replay.will('"a","b","c",HANG', {"stream": True})
        clients = [replay.gateway.connect() for _ in range(50)]
        for client in clients:
            await client.__aenter__()
            await client.send("POST", CHAT, body)
        for client in clients:
            await client.head()
            text = b""
            while b'c"' not in text:
                text += await client.piece()
        service.read()
        assert service.sum("headrace.server.requests.active") == 50
        for client in clients:
            client.reset()
        await settle(replay)
        refused = await replay.post({**R0, "temperature": 9})
        assert refused.status == 400
        assert (await replay.whole('"ok",FIN(eos)')).text == "ok"
        await settle(replay)
        service.read()
        gateway.read()
        assert service.sum("headrace.server.requests.active") == 0
        assert gateway.sum("http.server.active_requests") == 0
        statuses = {p.attributes[semconv.RPC_STATUS_CODE]: p.count for p in service.named("rpc.server.call.duration")}
        assert statuses == {"CANCELLED": 50, "OK": 1}
        outcomes = {p.attributes[semconv.OUTCOME]: p.value for p in gateway.named("headrace.gateway.generations")}
        assert outcomes == {"client_cancelled": 50, "completed": 1}
        # Three of each that was cut, once, and the one of the last answer.
        assert service.sum("headrace.server.output_tokens") == 151
        for client in clients:
            await client.__aexit__()


@pytest.mark.report("M11")
async def test_what_callers_choose_makes_no_series(service: RunningService) -> None:
    recorded = install_reader()
    await service.failure(GenerateRequest(model="nope", prompt="x"))
    recorded.read()
    before = recorded.series()
    for number in range(300):
        metadata = (("x-request-id", f"r{number}"), ("user", f"u{number}"))
        await service.failure(GenerateRequest(model=f"m{number}", prompt="x"), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError):
            await service.model.GetModel(model_pb2.GetModelRequest(model=uuid.uuid4().hex), timeout=5)
        with pytest.raises(grpc.aio.AioRpcError):
            await service.channel.unary_unary(f"/headrace.v1.GenerationService/{uuid.uuid4().hex}")(b"", timeout=5)
    recorded.read()
    assert recorded.series() <= before + 2


@pytest.mark.report("M11")
async def test_what_callers_choose_makes_no_series_at_the_gateway() -> None:
    async with metered() as (replay, _, gateway):
        replay.will('"ok",FIN(eos)')

        async def junk(number: int) -> None:
            async with replay.gateway.connect() as client:
                await client.post({**R0, "model": f"m{number}", "user": f"u{number}"})
                await client.get(f"/v1/{uuid.uuid4()}", headers={"x-request-id": f"r{number}"})
                await client.get(f"/v1/models/{uuid.uuid4()}", "PROPFIND")
                await client.send(f"FOO{number}", "/v1/models")
                await client.response()

        for number in range(5):
            await junk(number)
        await settle(replay)
        gateway.read()
        before = gateway.series()
        for number in range(150):
            await junk(number)
        await settle(replay)
        gateway.read()
        assert gateway.series() <= before
