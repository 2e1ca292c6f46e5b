"""A sampler that drops everything, and the traces that are exported all the same: whole, by both processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from runtime import metrics, semconv
from tests.support.gateway_harness import RawClient
from tests.support.http_stream import open_stream
from tests.support.otlp_sink import OtlpSink, Span, otlp_sink
from tests.support.processes import Stack, stack
from tests.support.service import eventually, script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

GATEWAY, SERVICE = "headrace-gateway", "headrace-service"
HTTP, RPC, CHAT = "POST /v1/chat/completions", "headrace.v1.GenerationService/Generate", "chat simulator"
FIRST, REST = "await first token", "stream tokens"
TREE: Final = {(GATEWAY, HTTP), (GATEWAY, RPC), (SERVICE, RPC), (SERVICE, CHAT), (SERVICE, FIRST), (SERVICE, REST)}
CHAIN: Final = ((GATEWAY, HTTP), (GATEWAY, RPC), (SERVICE, RPC), (SERVICE, CHAT), (SERVICE, FIRST))
# Seconds: far enough from what is measured on a busy machine, on either side.
TTFT_S, STALL_S = 1.0, 0.5
SLOW: Final = script(prefill_ms=1300, output_tokens=3)
STALLED: Final = script(token_ms=800, output_tokens=2)
FAILING: Final = script(fault="error", fault_after=2)
FAST: Final = script(output_tokens=3)


@dataclass(frozen=True, slots=True)
class Site:
    sink: OtlpSink
    stack: Stack

    def spans(self, request_id: str) -> list[Span]:
        """Return what was exported so far of the trace, or the traces, in which a request is."""
        spans = tuple(self.sink.spans)
        traces = {s.raw.trace_id for s in spans if s.attributes.get(semconv.REQUEST_ID) == request_id}
        return [span for span in spans if span.raw.trace_id in traces]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with otlp_sink() as sink:
        both = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.0",
        }
        for prefix in ("HEADRACE", "HEADRACE_GATEWAY"):
            both |= {f"{prefix}_SLO_TTFT_S": str(TTFT_S), f"{prefix}_STALL_S": str(STALL_S)}
            both[f"{prefix}_SLO_TPOT_S"] = "0"  # else a stall is slow as well
        with stack(tmp_path_factory.mktemp("notable"), both=both, backend="simulator") as running:
            yield Site(sink, running)


def chat(prompt: str, **members: Any) -> dict[str, Any]:
    return {"model": "simulator", "messages": [{"role": "user", "content": f"{prompt}\n"}], **members}


async def ask(site: Site, prompt: str, headers: dict[str, str] | None = None, **members: Any) -> str:
    """Stream one to its end and return its request id."""
    async with open_stream(site.stack.gateway.port, chat(prompt, **members), headers=headers) as stream:
        await stream.rest()
        return stream.head.headers["x-request-id"]


async def kept(site: Site, request_id: str, places: set[tuple[str, str]] = TREE) -> dict[tuple[str, str], Span]:
    """Wait until a trace is there, and return its spans by process and name."""
    try:
        await eventually(lambda: places <= {(s.source, s.raw.name) for s in site.spans(request_id)}, 5)
    except TimeoutError:
        have = {(s.source, s.raw.name) for s in site.spans(request_id)}
        pytest.fail(f"of {request_id} there is no {sorted(places - have)}, only {sorted(have)}")
    spans = site.spans(request_id)
    found = {(span.source, span.raw.name): span for span in spans}
    assert len(found) == len(spans), "each once"
    assert len({span.raw.trace_id for span in spans}) == 1, "one trace"
    return found


def check_chain(spans: dict[tuple[str, str], Span]) -> None:
    for above, below in itertools.pairwise(CHAIN):
        assert spans[below].raw.parent_span_id == spans[above].raw.span_id, f"{below} is not below {above}"
    assert spans.keys() == TREE


async def settle(site: Site) -> None:
    """Return when what was exported before has come: a request that fails is exported behind it."""
    await kept(site, await ask(site, FAILING))


@pytest.mark.parametrize(
    ("prompt", "reason"), [(SLOW, "slow"), (STALLED, "stalled"), (FAILING, "failed")], ids=["slow", "stalled", "failed"]
)
async def test_a_notable_request_is_exported_whole_by_both_processes(site: Site, prompt: str, reason: str) -> None:
    request_id = await ask(site, prompt)
    spans = await kept(site, request_id)
    check_chain(spans)
    assert spans[GATEWAY, HTTP].attributes[semconv.KEEP] == reason
    assert spans[SERVICE, RPC].attributes[semconv.KEEP] == reason
    assert spans[GATEWAY, HTTP].raw.parent_span_id == b""
    # To find it from a log line.
    line = await site.stack.service.line(request_id=request_id, message="generation " + _outcome(reason))
    assert line["trace_id"] == spans[SERVICE, RPC].raw.trace_id.hex()


def _outcome(reason: str) -> str:
    return "backend_error" if reason == "failed" else "completed"


async def test_a_fast_request_is_exported_by_nobody(site: Site) -> None:
    request_ids = [await ask(site, FAST) for _ in range(3)]
    await settle(site)
    for request_id in request_ids:
        assert site.spans(request_id) == []


async def test_the_same_is_true_of_a_request_that_is_not_streamed(site: Site) -> None:
    async with RawClient(site.stack.gateway.port) as raw:
        slow = await raw.post(chat(SLOW))
        stalled = await raw.post(chat(STALLED))
        failing = await raw.post(chat(FAILING))
        fast = await raw.post(chat(FAST))
    assert [answer.status for answer in (slow, stalled, failing, fast)] == [200, 200, 500, 200]
    for answer in (slow, stalled, failing):
        check_chain(await kept(site, answer.headers["x-request-id"]))
    await settle(site)
    assert site.spans(fast.headers["x-request-id"]) == []


async def test_a_client_that_leaves_behind_a_late_first_token_leaves_a_whole_trace(site: Site) -> None:
    prompt = script(prefill_ms=1300, token_ms=20)
    async with open_stream(site.stack.gateway.port, chat(prompt, max_tokens=2000)) as stream:
        await stream.until_text()
        request_id = stream.head.headers["x-request-id"]
        stream.leave()
    spans = await kept(site, request_id)
    check_chain(spans)
    assert {spans[place].attributes[semconv.KEEP] for place in ((GATEWAY, HTTP), (SERVICE, RPC))} == {"slow"}


async def test_a_client_that_leaves_behind_a_stall_leaves_a_whole_trace(site: Site) -> None:
    prompt = script(token_ms=800)
    async with open_stream(site.stack.gateway.port, chat(prompt, max_tokens=2000)) as stream:
        texts = stream.texts()
        await anext(texts)
        await anext(texts)
        request_id = stream.head.headers["x-request-id"]
        stream.leave()
    check_chain(await kept(site, request_id))


async def test_a_slow_batch_request_is_exported_by_nobody(site: Site) -> None:
    """Batch requests have no objectives: nobody waits for them."""
    request_id = await ask(site, SLOW, service_tier="flex")
    await settle(site)
    assert [(span.source, span.raw.name) for span in site.spans(request_id)] == []


async def test_a_slow_call_over_grpc_is_exported_by_the_service_alone(site: Site) -> None:
    request_id = "slow-over-grpc"
    async with grpc.aio.insecure_channel(site.stack.target) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate(
            gen.GenerateRequest(model="simulator", prompt=SLOW),
            timeout=20,
            metadata=(("x-request-id", request_id),),
        )
        async for _ in call:
            pass
        trailers = dict(await call.trailing_metadata())
    assert trailers["headrace-trace-keep"] == "slow"
    engine = "text_completion simulator"
    spans = await kept(site, request_id, {(SERVICE, RPC), (SERVICE, engine), (SERVICE, FIRST), (SERVICE, REST)})
    assert len(spans) == 4


async def test_a_caller_who_samples_is_followed(site: Site) -> None:
    trace_id = "5ab4c0de" * 4
    request_id = await ask(site, FAST, {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"})
    spans = await kept(site, request_id)
    assert {span.raw.trace_id.hex() for span in spans.values()} == {trace_id}
    assert semconv.KEEP not in spans[GATEWAY, HTTP].attributes


async def test_what_became_of_the_traces_is_counted(site: Site) -> None:
    def counts(source: str) -> dict[str, int]:
        points = site.sink.points(source, metrics.TRACES.name)
        return {point.attributes[0].value.string_value: point.as_int for point in points}

    before = {source: counts(source) for source in (GATEWAY, SERVICE)}
    for prompt in (FAST, FAST, FAILING):
        await ask(site, prompt)
    for source in (GATEWAY, SERVICE):
        for decision, more in (("dropped", 2), ("kept", 1)):
            wanted = before[source].get(decision, 0) + more
            await eventually(
                lambda source=source, decision=decision, wanted=wanted: counts(source).get(decision, 0) >= wanted
            )
        assert "lost" not in counts(source)


async def test_many_at_once_are_told_apart(site: Site) -> None:
    prompts = [FAST, SLOW, FAILING, FAST] * 12
    request_ids = await asyncio.gather(*(ask(site, prompt) for prompt in prompts))
    for prompt, request_id in zip(prompts, request_ids, strict=True):
        if prompt != FAST:
            check_chain(await kept(site, request_id))
    await settle(site)
    fast = [request_id for prompt, request_id in zip(prompts, request_ids, strict=True) if prompt == FAST]
    assert [request_id for request_id in fast if site.spans(request_id)] == []
