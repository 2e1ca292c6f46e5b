"""One trace over all processes, as a collector gets it, and metrics that agree with the client's own clock."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from runtime import metrics, semconv
from tests.support.gateway_harness import RawClient
from tests.support.http_stream import open_stream
from tests.support.otlp_sink import OtlpSink, Span, json_sink, otlp_sink
from tests.support.processes import Stack, stack
from tests.support.service import eventually, script
from tests.support.triton_server import running_triton

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

GATEWAY, SERVICE = "headrace-gateway", "headrace-service"
HTTP, RPC, CHAT = "POST /v1/chat/completions", "headrace.v1.GenerationService/Generate", "chat sim"
FIRST, REST = "await first token", "stream tokens"
TREE = {(GATEWAY, HTTP), (GATEWAY, RPC), (SERVICE, RPC), (SERVICE, CHAT), (SERVICE, FIRST), (SERVICE, REST)}
SERVER, CLIENT, INTERNAL = 2, 3, 1
ERROR = 2
PREFILL_S = 0.3

MODELS = """
[[models]]
id = "sim"
backend = "simulator"
template = "chatml"

[[models]]
id = "measured once"
backend = "simulator"
template = "chatml"
"""


@pytest.fixture(scope="module")
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as sink:
        yield sink


def exported_to(endpoint: str) -> dict[str, str]:
    """Return the variables that make a process export there, soon."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }


@pytest.fixture(scope="module")
def traced(sink: OtlpSink, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("traced")
    models = folder / "models.toml"
    models.write_text(MODELS)
    ports = {"HEADRACE_METRICS_PORT": "0", "HEADRACE_GATEWAY_METRICS_PORT": "0"}
    with stack(folder, both=exported_to(sink.endpoint) | ports, models_file=models) as running:
        yield running


class Caller:
    """One trace, begun outside: the id and the parent that every span has to follow."""

    def __init__(self) -> None:
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)
        self.headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-01"}


def chat(prompt: str, model: str = "sim", **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": f"{prompt}\n"}], **members}


def metrics_page(process: Any) -> str:
    """Return what Prometheus would read of a process."""
    (address,) = re.findall(r"metrics on (http://\S+?/metrics)", process.output())
    with urllib.request.urlopen(address, timeout=5) as page:
        return str(page.read().decode())


def parent(span: Span) -> str:
    return str(span.raw.parent_span_id.hex())


def own(span: Span) -> str:
    return str(span.raw.span_id.hex())


@pytest.mark.report("M07")
async def test_one_trace_goes_from_the_caller_s_span_to_the_first_token(traced: Stack, sink: OtlpSink) -> None:
    caller = Caller()
    prompt = script(prefill_ms=PREFILL_S * 1000, token_ms=5, output_tokens=6)
    async with open_stream(traced.gateway.port, chat(prompt), headers=caller.headers) as stream:
        assert (await stream.rest())[-1] == "[DONE]"
    spans = await asyncio.to_thread(sink.trace, caller.trace_id, TREE)
    assert spans.keys() == TREE
    http, call = spans[GATEWAY, HTTP], spans[GATEWAY, RPC]
    rpc, engine = spans[SERVICE, RPC], spans[SERVICE, CHAT]
    assert parent(http) == caller.span_id
    assert parent(call) == own(http)
    assert parent(rpc) == own(call)
    assert parent(engine) == own(rpc)
    assert parent(spans[SERVICE, FIRST]) == parent(spans[SERVICE, REST]) == own(engine)
    kinds = [span.raw.kind for span in (http, call, rpc, engine, spans[SERVICE, FIRST], spans[SERVICE, REST])]
    assert kinds == [SERVER, CLIENT, SERVER, INTERNAL, INTERNAL, INTERNAL]
    assert all(span.raw.status.code != ERROR for span in spans.values())
    assert {span.attributes.get(semconv.OUTCOME) for span in (http, rpc)} == {"completed"}
    assert http.attributes[semconv.REQUEST_ID] == rpc.attributes[semconv.REQUEST_ID]
    assert engine.attributes[semconv.GEN_AI_OUTPUT_TOKENS] == 6
    # The phases lie end to end, and the first has the prefill.
    first, rest = spans[SERVICE, FIRST].raw, spans[SERVICE, REST].raw
    assert first.end_time_unix_nano - first.start_time_unix_nano >= PREFILL_S * 0.99e9
    assert first.end_time_unix_nano <= rest.start_time_unix_nano <= first.end_time_unix_nano + 50_000_000


@pytest.mark.report("M05")
async def test_the_time_to_first_token_is_what_the_client_sees(traced: Stack, sink: OtlpSink) -> None:
    caller = Caller()
    prompt = script(prefill_ms=PREFILL_S * 1000, output_tokens=3)
    began_s = time.monotonic()
    async with open_stream(traced.gateway.port, chat(prompt, "measured once"), headers=caller.headers) as stream:
        await stream.until_text()
        seen_s = stream.at_s - began_s
        await stream.rest()
    names = {(GATEWAY, HTTP), (SERVICE, RPC), (SERVICE, "chat measured once")}
    spans = await asyncio.to_thread(sink.trace, caller.trace_id, names)
    on_rpc = spans[SERVICE, RPC].attributes[semconv.TTFT_S]
    on_engine = spans[SERVICE, "chat measured once"].attributes[semconv.GEN_AI_TTFC]
    on_http = spans[GATEWAY, HTTP].attributes[semconv.GEN_AI_TTFC]
    # Each lies within the next; what is around the engine's part is small.
    assert PREFILL_S * 0.99 <= on_rpc == on_engine <= on_http <= seen_s
    assert seen_s - on_rpc < 0.25
    name = (SERVICE, metrics.TTFT.name)
    point = await _one_point(sink, *name, model="measured once")
    bounds, counts = list(point.explicit_bounds), list(point.bucket_counts)
    assert tuple(bounds) == semconv.TTFT_BOUNDS
    assert (point.count, sum(counts)) == (1, 1)
    at = counts.index(1)
    assert bounds[at - 1] < on_rpc <= bounds[at]
    assert point.sum == pytest.approx(on_rpc)
    assert bounds[at] > PREFILL_S
    # The bucket leads to the trace.
    (exemplar,) = point.exemplars
    assert (exemplar.trace_id.hex(), exemplar.span_id.hex()) == (caller.trace_id, own(spans[SERVICE, RPC]))
    assert exemplar.as_double == pytest.approx(on_rpc)


async def test_a_client_that_leaves_is_told_from_a_failure(traced: Stack, sink: OtlpSink) -> None:
    caller = Caller()
    prompt = script(token_ms=20)
    async with open_stream(traced.gateway.port, chat(prompt, max_tokens=4000), headers=caller.headers) as stream:
        await stream.until_text()
        stream.leave()
    spans = await asyncio.to_thread(sink.trace, caller.trace_id, TREE)
    assert spans[GATEWAY, HTTP].attributes[semconv.OUTCOME] == "client_cancelled"
    assert spans[SERVICE, RPC].attributes[semconv.OUTCOME] == "client_cancelled"
    for place in ((GATEWAY, RPC), (SERVICE, RPC)):
        assert spans[place].attributes[semconv.RPC_STATUS_CODE] == "CANCELLED"
    assert all(span.raw.status.code != ERROR for span in spans.values()), "nobody failed"
    assert spans[SERVICE, RPC].raw.end_time_unix_nano - spans[SERVICE, RPC].raw.start_time_unix_nano < 20e9


async def test_a_failure_of_the_engine_is_an_error_on_every_span_above_it(traced: Stack, sink: OtlpSink) -> None:
    caller = Caller()
    prompt = script(fault="error", fault_after=2)
    async with open_stream(traced.gateway.port, chat(prompt), headers=caller.headers) as stream:
        events = await stream.rest()
    assert "error" in json.loads(events[-1])
    spans = await asyncio.to_thread(sink.trace, caller.trace_id, TREE)
    failed = {place for place, span in spans.items() if span.raw.status.code == ERROR}
    assert failed == TREE - {(SERVICE, FIRST), (SERVICE, REST)}
    assert spans[SERVICE, RPC].attributes[semconv.OUTCOME] == "backend_error"
    assert spans[SERVICE, RPC].attributes[semconv.ERROR_REASON] == "BACKEND_ERROR"
    assert spans[GATEWAY, HTTP].attributes[semconv.OUTCOME] == "failed"


async def test_a_deadline_over_grpc_ends_the_spans_as_one(traced: Stack, sink: OtlpSink) -> None:
    caller = Caller()
    request = gen.GenerateRequest(model="sim", prompt=script(token_ms=20), sampling={"max_output_tokens": 4000})
    async with grpc.aio.insecure_channel(traced.target) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
            request, timeout=0.4, metadata=tuple(caller.headers.items())
        )
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in call:
                pass
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    spans = await asyncio.to_thread(sink.trace, caller.trace_id, {(SERVICE, RPC), (SERVICE, "text_completion sim")})
    rpc = spans[SERVICE, RPC]
    assert parent(rpc) == caller.span_id
    assert rpc.attributes[semconv.OUTCOME] == "deadline_exceeded"
    assert rpc.attributes[semconv.DEADLINE_S] == pytest.approx(0.4, abs=0.3)


async def test_no_prompt_and_no_output_leaves_the_processes(traced: Stack, sink: OtlpSink) -> None:
    caller, secret, told = Caller(), "CANARYPROMPT", "CANARYOUTPUT"
    bad = script(nonsense=secret)
    good = f"{secret} {script(tokens=[told], output_tokens=3)}"
    for prompt in (good, bad, f"{secret} {script(tokens=[told], fault='crash', fault_after=1)}"):
        async with RawClient(traced.gateway.port) as client:
            answer = await client.post(chat(prompt, user="person-7", metadata={"a": secret}), headers=caller.headers)
            assert answer.status in (200, 400, 500)
    async with open_stream(traced.gateway.port, chat(good), headers=caller.headers) as stream:
        assert told in "".join(await stream.rest())
    # A request after all of them: its spans come last.
    last = Caller()
    async with RawClient(traced.gateway.port) as client:
        await client.post(chat(script(output_tokens=1)), headers=last.headers)
    await asyncio.to_thread(sink.trace, last.trace_id, {(GATEWAY, HTTP), (SERVICE, RPC)})
    pages = [await asyncio.to_thread(metrics_page, process) for process in (traced.gateway, traced.service)]
    assert "gen_ai_client_operation_duration" in pages[0]
    assert "gen_ai_server_request_duration" in pages[1]
    everything = b"".join(sink.exported) + "".join(pages).encode()
    assert b"person-7" not in "".join(pages).encode()
    assert caller.trace_id in everything.hex()
    assert b"person-7" in everything  # the caller's own opaque id is there to find a request by
    for canary in (secret, told):
        assert canary.encode() not in everything
        for process in (traced.gateway, traced.service):
            assert canary not in process.output()


@pytest.mark.report("M07")
@pytest.mark.triton
@pytest.mark.timeout(120)
async def test_the_trace_goes_on_in_triton(sink: OtlpSink, tmp_path: Path) -> None:
    caller, refused = Caller(), Caller()

    def is_theirs(span: dict[str, Any]) -> bool:
        return bool(span["traceId"] == caller.trace_id and span["name"] == "InferRequest")

    with json_sink() as (url, spans):
        tracing = ["mode=opentelemetry", "rate=1", "count=-1", "level=TIMESTAMPS", f"opentelemetry,url={url}"]
        tracing.append("opentelemetry,bsp_schedule_delay=50")
        arguments = [f"--trace-config={setting}" for setting in tracing]
        with running_triton(tmp_path, "scripted", *arguments) as triton:
            settings = {"backend": "triton", "triton_url": triton.url}
            with stack(tmp_path, both=exported_to(sink.endpoint), **settings) as running:
                for headers in (caller.headers, {"traceparent": refused.headers["traceparent"][:-2] + "00"}):
                    async with open_stream(
                        running.gateway.port, chat("token_ms=1", "default", max_tokens=3), headers=headers
                    ) as stream:
                        assert (await stream.rest())[-1] == "[DONE]"
                await eventually(lambda: any(is_theirs(span) for span in spans), 10)
    (engine,) = [s for s in sink.spans if s.raw.trace_id.hex() == caller.trace_id and s.raw.name == "chat ensemble"]
    assert engine.raw.kind == CLIENT
    (theirs,) = filter(is_theirs, spans)
    assert theirs["parentSpanId"] == own(engine)
    # Triton records whatever has a context: one that is not sampled is not handed on.
    assert refused.trace_id not in {span["traceId"] for span in spans}
    assert refused.trace_id not in {span.raw.trace_id.hex() for span in sink.spans}


async def _one_point(sink: OtlpSink, source: str, name: str, *, model: str) -> Any:
    async with asyncio.timeout(10):
        while not (points := sink.points(source, name, gen_ai__request__model=model)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    (point,) = points
    return point
