"""A caller is told the same times by the last event, the trailers, HTTP and the span."""

from __future__ import annotations

import re

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace import AsyncClient, HeadraceError
from runtime import semconv
from runtime.slo import KEEP_TRAILER, Objectives
from tests.support.gateway_harness import CHAT, RawClient, running_gateway
from tests.support.retained import keyed
from tests.support.service import GenerateRequest, eventually, running_service, script

RPC = "headrace.v1.GenerationService/Generate"
PROMPT = script(tokens=["a"], output_tokens=4, queue_ms=20, prefill_ms=40, token_ms=15)
# Of the durations on the wire: the trailers have microseconds.
MICROSECOND_MS = 0.001


def server_timing(value: str) -> dict[str, float]:
    """Return the milliseconds of a Server-Timing value by name."""
    return {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", value)}


async def of_span(spans: InMemorySpanExporter) -> dict[str, float]:
    def found() -> list[object]:
        return [s for s in spans.get_finished_spans() if s.name == RPC and s.kind.name == "SERVER"]

    await eventually(lambda: len(found()) == 1)
    attributes = dict(found()[0].attributes)  # type: ignore[attr-defined]
    keys = {
        "queue": semconv.QUEUE_S,
        "prefill": semconv.PREFILL_S,
        "ttft": semconv.TTFT_S,
        "decode": semconv.DECODE_S,
    }
    return {name: 1000 * attributes[key] for name, key in keys.items()}


@pytest.mark.parametrize("transport", ["asyncio", "grpcio"])
@pytest.mark.parametrize("is_retained", [False, True])
async def test_trailers_last_event_and_span_agree(
    transport: str, is_retained: bool, spans: InMemorySpanExporter
) -> None:
    async with (
        running_service() as service,
        AsyncClient(f"127.0.0.1:{service.port}", transport=transport) as client,  # type: ignore[arg-type]
    ):
        request = keyed(PROMPT) if is_retained else GenerateRequest(model="sim", prompt=PROMPT)
        async with client.generate(request) as stream:
            async for _ in stream:
                pass
        told = server_timing(stream.trailers["server-timing"])
        assert KEEP_TRAILER not in stream.trailers
        timing = stream.timing
        assert timing is not None
        by_event = {
            "queue": timing.queue_duration,
            "prefill": timing.prefill_duration,
            "ttft": timing.time_to_first_token,
            "decode": timing.decode_duration,
            "total": timing.total_duration,
        }
        assert told == pytest.approx(
            {name: value.ToNanoseconds() / 1e6 for name, value in by_event.items()}, abs=MICROSECOND_MS
        )
        recorded = await of_span(spans)
        assert recorded == pytest.approx({name: told[name] for name in recorded}, abs=MICROSECOND_MS)
        assert told["queue"] >= 20
        assert told["prefill"] >= 39
        assert told["ttft"] == pytest.approx(told["queue"] + told["prefill"], abs=0.01)


async def test_http_tells_the_same(spans: InMemorySpanExporter) -> None:
    async with (
        running_service() as service,
        running_gateway(f"127.0.0.1:{service.port}") as gateway,
        RawClient(gateway.port) as client,
    ):
        answer = await client.post({"model": "sim", "messages": [{"role": "user", "content": PROMPT}]}, CHAT)
        member, header = answer.json()["timing"], server_timing(answer.headers["server-timing"])
        recorded = await of_span(spans)
        assert member["time_to_first_token_ms"] == pytest.approx(recorded["ttft"], abs=MICROSECOND_MS)
        assert member["queue_ms"] == pytest.approx(recorded["queue"], abs=MICROSECOND_MS)
        assert {name: header[name] for name in recorded} == pytest.approx(recorded, abs=MICROSECOND_MS)


@pytest.mark.parametrize("transport", ["asyncio", "grpcio"])
async def test_a_failure_has_them_too_and_says_that_its_trace_is_kept(transport: str) -> None:
    prompt = script(tokens=["a"], token_ms=5, fault="error", fault_after=3)
    async with (
        running_service(objectives=Objectives(ttft_s=0.001)) as service,
        AsyncClient(f"127.0.0.1:{service.port}", transport=transport) as client,  # type: ignore[arg-type]
    ):
        with pytest.raises(HeadraceError) as failed:
            async with client.generate(GenerateRequest(model="sim", prompt=prompt)) as stream:
                async for _ in stream:
                    pass
        assert failed.value.status is grpc.StatusCode.INTERNAL
        assert stream.trailers[KEEP_TRAILER] == "failed"
        told = server_timing(stream.trailers["server-timing"])
        assert told["decode"] >= 9
        # What was refused before it had a slot has waited in no line, and its time is the total.
        with pytest.raises(HeadraceError):
            async with client.generate(GenerateRequest(model="nobody's", prompt="x")) as refused:
                await refused.text()
        assert "server-timing" not in refused.trailers
