"""What is recorded of requests: few spans with the right parents, bounded metrics, one line, no texts."""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from runtime.otel.meters import RecordingMeterProvider
from tests.support.fake_service import HANG, Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.gateway_harness import CHAT, RunningGateway, chat_body, running_gateway

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CANARY = "canary-text-of-a-prompt"


class Recorded:
    """In-memory providers and what they hold."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = RecordingMeterProvider([self.reader])

    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def points(self) -> Iterator[tuple[str, Any]]:
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        yield metric.name, point

    def named(self, name: str) -> list[Any]:
        return [point for found, point in self.points() if found == name]


@asynccontextmanager
async def recording(**settings: Any) -> AsyncIterator[tuple[FakeService, RunningGateway, Recorded]]:
    recorded = Recorded()
    async with (
        fake_service() as fake,
        running_gateway(fake.address, tracers=recorded.tracers, meters=recorded.meters, **settings) as gateway,
    ):
        yield fake, gateway, recorded
    recorded.tracers.shutdown()
    recorded.meters.shutdown()


async def settle(gateway: RunningGateway) -> None:
    """Wait until every request of the test is recorded: another one behind them."""
    await gateway.wait_idle()
    async with gateway.connect() as client:
        await client.get("/healthz")


@pytest.mark.report("M09")
async def test_a_stream_is_one_span_however_long_it_is() -> None:
    async with recording() as (fake, gateway, recorded), gateway.connect() as client:
        fake.will(started(), *(delta("t") for _ in range(500)), finished(), completed())
        await client.post(chat_body(stream=True), headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        await settle(gateway)
        (span, _) = recorded.spans()
        assert span.name == f"POST {CHAT}"
        assert span.parent is not None
        assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
        assert span.status.status_code is StatusCode.UNSET
        assert span.attributes is not None
        assert span.attributes["http.route"] == CHAT
        assert span.attributes["gen_ai.response.model"] == "fake"
        assert span.attributes["gen_ai.response.time_to_first_chunk"] > 0  # type: ignore[operator]
        assert len(span.events) == 0
        # The span of the call itself, or the gateway's where no provider records it: never the caller's.
        version, trace_id, parent_id, flags = (await fake.next_call()).header("traceparent").split("-")
        assert (version, trace_id, flags) == ("00", TRACE, "01")
        assert parent_id != PARENT


async def test_strangers_traces_can_be_links_or_nothing() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    for trust, links in (("link", 1), ("never", 0)):
        async with recording(trust_inbound_trace=trust) as (_, gateway, recorded), gateway.connect() as client:
            await client.get("/healthz", headers=headers)
            await settle(gateway)
            span = recorded.spans()[0]
            assert span.parent is None
            assert len(span.links) == links
            assert f"{span.context.trace_id:032x}" != TRACE


@pytest.mark.parametrize(
    ("refusal", "is_error"),
    [
        (Fail(code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD"), False),
        (Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL"), True),
        (Fail(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="DEADLINE_IN_QUEUE"), True),
        (Fail(code=grpc.StatusCode.INTERNAL, reason="BACKEND_ERROR"), True),
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_failures_of_the_server_are_errors_also_behind_a_200(
    refusal: Fail, *, is_error: bool, late: bool
) -> None:
    async with recording() as (fake, gateway, recorded), gateway.connect() as client:
        fake.will(*([started(), delta("a")] if late else []), refusal)
        await client.post(chat_body(stream=True))
        await settle(gateway)
        span = recorded.spans()[0]
        assert (span.status.status_code is StatusCode.ERROR) is is_error
        assert span.attributes is not None
        assert span.attributes.get("error.type") == (refusal.reason if is_error else None)
        assert span.attributes["headrace.error.reason"] == refusal.reason


@pytest.mark.report("M01", "M12")
async def test_a_caller_who_leaves_is_no_error_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.requests")
    async with recording() as (fake, gateway, recorded):
        for script in ((HANG,), (started(), delta("a"), HANG)):
            async with gateway.connect() as client:
                fake.will(*script)
                await client.send("POST", CHAT, chat_body(stream=True))
                call = await fake.next_call()
                if len(script) > 1:
                    await client.head()
                    await client.piece()
                client.reset()
                await call.wait_cancelled()
        await settle(gateway)
        early, late = recorded.spans()[:2]
        assert early.attributes is not None
        assert late.attributes is not None
        assert (early.attributes["http.response.status_code"], late.attributes["http.response.status_code"]) == (
            499,
            200,
        )
        for span in (early, late):
            assert span.status.status_code is StatusCode.UNSET
            assert span.attributes is not None
            assert span.attributes["headrace.stream.outcome"] == "client_cancelled"
        (point,) = recorded.named("headrace.gateway.generations")
        assert (point.value, point.attributes["headrace.stream.outcome"]) == (2, "client_cancelled")
        assert all(point.value == 0 for point in recorded.named("http.server.active_requests"))
        assert len(recorded.named("gen_ai.client.operation.time_to_first_chunk")) == 1
    lines = [record for record in caplog.records if record.name == "gateway.requests"]
    assert [line.outcome for line in lines] == ["client_cancelled"] * 2  # type: ignore[attr-defined]
    assert "Failed to detach" not in caplog.text


@pytest.mark.report("M11")
async def test_what_callers_choose_makes_no_new_series() -> None:
    async with recording() as (fake, gateway, recorded), gateway.connect() as client:
        for number in range(30):
            fake.will(Fail(code=grpc.StatusCode.NOT_FOUND, reason="MODEL_NOT_FOUND"))
            await client.post(chat_body(model=f"m{number}", user=f"u{number}"), headers={"x-request-id": f"r{number}"})
            await client.get(f"/v1/{number}")
            await client.get(f"/v1/models/{number}")
        await settle(gateway)
        assert len(list(recorded.points())) < 12
        names = {span.name for span in recorded.spans()}
        assert names == {f"POST {CHAT}", "GET", "GET /v1/models/{model}", "GET /healthz"}


async def test_no_text_of_prompt_or_answer_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with recording() as (fake, gateway, recorded), gateway.connect() as client:
        fake.will(started(), delta(CANARY), finished(), completed())
        await client.post(chat_body(messages=[{"role": "user", "content": CANARY}]), headers={"authorization": CANARY})
        await client.post(chat_body(temperature=CANARY, stream=CANARY))
        await settle(gateway)
        texts = [span.to_json() for span in recorded.spans()] + [
            str(point.attributes) for _, point in recorded.points()
        ]
        assert CANARY not in "".join(texts)
    assert CANARY not in "".join(f"{record.getMessage()}{record.__dict__}" for record in caplog.records)


async def test_each_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.requests")
    async with recording() as (_, gateway, _recorded), gateway.connect() as client:
        await client.post(chat_body(stream=True), headers={"x-request-id": "one"})
        await client.get("/healthz")
        await client.get("/nowhere")
        await client.post(b"{")
    first, second, third = [record for record in caplog.records if record.name == "gateway.requests"]
    seen = {key: first.__dict__[key] for key in ("request_id", "method", "route", "status", "outcome", "model")}
    assert seen == {
        "request_id": "one", "method": "POST", "route": CHAT, "status": 200, "outcome": "completed", "model": "fake"
    }  # fmt: skip
    assert first.__dict__["output_tokens"] == 2
    assert (second.__dict__["status"], second.__dict__["path"]) == (404, "/nowhere")
    assert third.__dict__["reason"] == "INVALID_JSON"
