"""One CLIENT span per call, ended once, whatever happens to the call."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace import AsyncClient, HeadraceError
from tests.support.fake_service import HANG, Fail, FakeService, delta, fake_service, started

GENERATE = "headrace.v1.GenerationService/Generate"


class Tracing:
    """A tracer provider of its own, and what it exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def only(self) -> ReadableSpan:
        (span,) = self.exporter.get_finished_spans()
        return span


@pytest.fixture
def tracing() -> Iterator[Tracing]:
    tracing = Tracing()
    yield tracing
    tracing.provider.shutdown()


def client_of(fake: FakeService, tracing: Tracing) -> AsyncClient:
    return AsyncClient(fake.address, tracer_provider=tracing.provider)


async def test_a_whole_generation_is_one_client_span(tracing: Tracing) -> None:
    async with fake_service() as fake, client_of(fake, tracing) as client:
        stream = client.generate(model="m", prompt="a secret prompt")
        async with stream:
            await anext(stream)
            assert tracing.exporter.get_finished_spans() == ()
            assert not trace.get_current_span().get_span_context().is_valid  # never made current
            await stream.text()
            assert tracing.only().end_time is not None  # ended with the stream, not with the block
    span = tracing.only()
    host, _, port = fake.address.rpartition(":")
    assert (span.name, span.kind, span.status.status_code) == (GENERATE, SpanKind.CLIENT, StatusCode.UNSET)
    attributes = dict(span.attributes or {})
    first_delta_s = attributes.pop("headrace.stream.time_to_first_delta_s")
    assert first_delta_s == stream.time_to_first_delta_s
    assert attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": GENERATE,
        "rpc.response.status_code": "OK",
        "server.address": host,
        "server.port": int(port),
        "headrace.stream.messages": 5,
    }
    assert "secret" not in span.to_json()


async def test_the_servers_parent_is_this_span_and_only_trace_context_travels(tracing: Tracing) -> None:
    tracer = tracing.provider.get_tracer("test")
    parent = tracer.start_span("parent")
    context = baggage.set_baggage("user", "ann", context=trace.set_span_in_context(parent))
    async with fake_service() as fake, client_of(fake, tracing) as client:
        async with client.generate(model="m", prompt="p", context=context) as stream:
            await stream.text()
        call = await fake.next_call()
    span = tracing.only()
    carrier = {key: value for key, value in call.metadata if isinstance(value, str)}
    received = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    assert span.parent is not None
    assert span.parent.span_id == parent.get_span_context().span_id
    assert received.span_id == span.get_span_context().span_id
    assert received.trace_id == parent.get_span_context().trace_id
    assert "baggage" not in carrier


async def leave_early(client: AsyncClient, _fake: FakeService) -> None:
    async with client.generate(model="m", prompt="p") as stream:
        async for _piece in stream.deltas():
            break


async def cancel_the_task(client: AsyncClient, fake: FakeService) -> None:
    task = asyncio.create_task(read_all(client, fake))
    await fake.next_call()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_out(client: AsyncClient, _fake: FakeService) -> None:
    async with client.generate(model="m", prompt="p", timeout_s=0.2) as stream:
        await stream.text()


async def read_all(client: AsyncClient, _fake: FakeService) -> None:
    async with client.generate(model="m", prompt="p") as stream:
        await stream.text()


QUEUE_FULL = Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", message="secret")
LOST = Fail(code=grpc.StatusCode.INTERNAL, reason="BACKEND_ERROR")
SERVER_CANCELS = Fail(code=grpc.StatusCode.CANCELLED)


@pytest.mark.parametrize(
    ("act", "script", "status", "reason"),
    [
        (leave_early, (started(), delta("a"), HANG), "CANCELLED", None),
        (cancel_the_task, (started(), delta("a"), HANG), "CANCELLED", None),
        (time_out, (started(), delta("a"), HANG), "DEADLINE_EXCEEDED", None),
        (read_all, (QUEUE_FULL,), "RESOURCE_EXHAUSTED", "QUEUE_FULL"),
        (read_all, (started(), delta("a"), LOST), "INTERNAL", "BACKEND_ERROR"),
        (read_all, (started(), SERVER_CANCELS), "CANCELLED", None),
        (read_all, (started(), delta("a")), "INTERNAL", None),
    ],
    ids=["left early", "task cancelled", "deadline", "refused", "lost", "cancelled by the server", "cut"],
)
async def test_the_span_ends_once_and_tells_how(tracing: Tracing, act, script, status, reason) -> None:  # type: ignore[no-untyped-def]
    async with fake_service() as fake, client_of(fake, tracing) as client:
        fake.will(*script)
        is_ours = act in (leave_early, cancel_the_task)
        if is_ours:
            await act(client, fake)
        else:
            with pytest.raises(HeadraceError):
                await act(client, fake)
    span = tracing.only()
    attributes = span.attributes or {}
    assert attributes["rpc.response.status_code"] == status
    # What this side cancels is no error: nothing went wrong.
    assert span.status.status_code is (StatusCode.UNSET if is_ours else StatusCode.ERROR)
    assert attributes.get("error.type") == (None if is_ours else status)
    assert attributes.get("headrace.error.reason") == reason
    assert "secret" not in span.to_json()


async def test_stopping_at_completed_ends_the_span_with_ok(tracing: Tracing) -> None:
    async with fake_service() as fake, client_of(fake, tracing) as client:
        stream = client.generate(model="m", prompt="p")
        async with stream:
            async for event in stream:
                if event.HasField("completed"):
                    break
    assert (tracing.only().attributes or {})["rpc.response.status_code"] == "OK"


@pytest.mark.report("M09")
async def test_a_thousand_tokens_make_one_span(tracing: Tracing) -> None:
    async with fake_service() as fake, client_of(fake, tracing) as client:
        fake.default = (started(), *[delta("x")] * 1000, *fake.default[-2:])
        async with client.generate(model="m", prompt="p") as stream:
            assert len(await stream.text()) == 1000
    span = tracing.only()
    assert span.events == ()
    assert (span.attributes or {})["headrace.stream.messages"] == 1003


async def test_unary_calls_have_spans_and_health_checks_do_not(tracing: Tracing) -> None:
    async with fake_service() as fake, client_of(fake, tracing) as client:
        await client.health()
        await client.list_models()
        with pytest.raises(HeadraceError):
            await client.get_model("nowhere")
    listed, got = tracing.exporter.get_finished_spans()
    assert (listed.name, listed.status.status_code) == ("headrace.v1.ModelService/ListModels", StatusCode.UNSET)
    assert (got.attributes or {})["error.type"] == "NOT_FOUND"


def test_without_an_sdk_nothing_is_sent_and_a_callers_context_passes_through() -> None:
    program = """
import sys
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from headrace._telemetry import CallSpan, client_tracer
span = CallSpan(client_tracer(None), "m", "h:1")
assert span.metadata == (), span.metadata
span.end_ok()
incoming = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
context = TraceContextTextMapPropagator().extract(incoming)
assert dict(CallSpan(client_tracer(None), "m", "h:1", context).metadata) == incoming
assert not any(name.startswith("opentelemetry.sdk") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
