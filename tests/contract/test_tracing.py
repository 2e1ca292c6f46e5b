"""Spans and metrics of a generation: ended rightly on success, cancel, deadline and failure."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace.v1 import sampling_pb2
from service.generation.limits import Limits
from tests.support.service import (
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
    simulated_model,
)

RPC = "headrace.v1.GenerationService/Generate"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    found = [span for span in exporter.get_finished_spans() if span.name == name]
    assert len(found) == 1, f"{name}: {len(found)} spans"
    return found[0]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.report("M03", "M07")
async def test_the_tree_follows_the_callers_trace(service: RunningService, spans: InMemorySpanExporter) -> None:
    request = GenerateRequest(
        model="sim",
        prompt=script(prefill_ms=50, token_ms=5, output_tokens=4),
        sampling=sampling_pb2.SamplingParams(temperature=0.0, seed=3),
    )
    await service.events(request, metadata=(("traceparent", TRACEPARENT),))
    await eventually(lambda: len(spans.get_finished_spans()) == 4)
    rpc, engine = named(spans, RPC), named(spans, "text_completion sim")
    first, stream = named(spans, "await first token"), named(spans, "stream tokens")
    assert rpc.parent is not None
    assert f"{rpc.parent.span_id:016x}" == "b7ad6b7169203331"
    assert f"{rpc.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert engine.parent == rpc.context
    assert first.parent == stream.parent == engine.context
    assert (rpc.kind, engine.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert {span.status.status_code for span in (rpc, engine, first, stream)} == {StatusCode.UNSET}
    on_engine = attributes(engine)
    assert on_engine["gen_ai.request.temperature"] == 0.0, "set to zero is not unset"
    assert "gen_ai.request.top_p" not in on_engine
    assert on_engine["gen_ai.usage.output_tokens"] == 4
    assert on_engine["gen_ai.response.finish_reasons"] == ("stop",)
    assert 0.05 <= on_engine["gen_ai.response.time_to_first_chunk"] < 1
    on_rpc = attributes(rpc)
    assert on_rpc["rpc.response.status_code"] == "OK"
    assert on_rpc["headrace.stream.outcome"] == "completed"
    assert on_rpc["headrace.stream.messages"] == 7
    assert on_rpc["headrace.deadline_s"] == pytest.approx(20, abs=2)


@pytest.mark.report("M09")
async def test_the_number_of_spans_does_not_grow_with_the_tokens(
    service: RunningService, spans: InMemorySpanExporter
) -> None:
    await service.events(GenerateRequest(model="sim", prompt=script(output_tokens=500)))
    await eventually(lambda: len(spans.get_finished_spans()) == 4)
    assert sum(len(span.events) for span in spans.get_finished_spans()) == 0


ENDS = [
    ("cancel", "client_cancelled", "CANCELLED", False),
    ("deadline", "deadline_exceeded", "DEADLINE_EXCEEDED", True),
    ("error", "backend_error", "INTERNAL", True),
    ("unavailable", "backend_error", "UNAVAILABLE", True),
    ("crash", "internal_error", "INTERNAL", True),
    ("hang", "backend_error", "UNAVAILABLE", True),
    ("slow_reader", "consumer_too_slow", "RESOURCE_EXHAUSTED", False),
]


# Before the first token and after the third; a reader that takes nothing has none before.
@pytest.mark.report("M01", "M03", "H05")
@pytest.mark.parametrize(
    ("case", "outcome", "status", "is_error", "sent"),
    [(*end, sent) for end in ENDS for sent in (0, 3) if (end[0], sent) != ("slow_reader", 0)],
)
async def test_every_end_is_told_from_every_other(
    spans: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
    case: str,
    outcome: str,
    status: str,
    is_error: bool,
    sent: int,
) -> None:
    async with running_service(limits=Limits(token_gap_s=0.2, first_token_s=0.2, reader_s=0.3)) as service:
        fault = case if case in ("error", "unavailable", "crash", "hang") else "none"
        tokens = ["x" * 8000] if case == "slow_reader" else ["x"]
        waits = 150 if case in ("cancel", "deadline") and not sent else 0
        prompt = script(
            fault=fault, fault_after=sent, tokens=tokens, token_ms=5 if len(tokens[0]) == 1 else 0, prefill_ms=waits
        )
        sampling = sampling_pb2.SamplingParams(max_output_tokens=4096)
        request = GenerateRequest(model="sim", prompt=prompt, sampling=sampling)
        if case in ("cancel", "slow_reader"):
            call = service.generation.Generate(request, timeout=20)
            for _ in range(sent + 1):
                await call.read()
            if case == "cancel":
                call.cancel()
        else:
            await service.failure(request, timeout=0.1 if case == "deadline" else 20)
        await eventually(lambda: any(span.name == RPC for span in spans.get_finished_spans()))
        rpc, engine = named(spans, RPC), named(spans, "text_completion sim")
        on_rpc = attributes(rpc)
        assert (on_rpc["headrace.stream.outcome"], on_rpc["rpc.response.status_code"]) == (outcome, status)
        want = StatusCode.ERROR if is_error else StatusCode.UNSET
        assert (rpc.status.status_code, engine.status.status_code) == (want, want)
        assert attributes(rpc).get("error.type") == (status if is_error else None)
        has_token = sent > 0
        assert ("gen_ai.response.time_to_first_chunk" in attributes(engine)) == has_token
        assert "gen_ai.response.finish_reasons" not in attributes(engine)
        names = {span.name for span in spans.get_finished_spans()}
        assert ("stream tokens" in names) == has_token
        assert "await first token" in names
    assert not [record for record in caplog.records if "detach" in record.message.lower()]


async def test_a_refused_request_has_no_engine_span(service: RunningService, spans: InMemorySpanExporter) -> None:
    await service.failure(GenerateRequest(model="sim"))
    await eventually(lambda: len(spans.get_finished_spans()) == 1)
    rpc = named(spans, RPC)
    assert rpc.status.status_code is StatusCode.UNSET
    assert attributes(rpc)["headrace.stream.outcome"] == "rejected"
    assert attributes(rpc)["headrace.error.reason"] == "INVALID_FIELD"


async def test_one_log_line_per_request_and_never_the_prompt(
    service: RunningService, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    canary = "CANARY-93"
    with caplog.at_level(logging.INFO):
        await service.events(GenerateRequest(model="sim", prompt=canary + script(tokens=[canary], output_tokens=5)))
        await eventually(lambda: any(record.name == "headrace.request" for record in caplog.records))
    (line,) = [record for record in caplog.records if record.name == "headrace.request"]
    facts = line.__dict__
    assert (facts["output_tokens"], facts["outcome"], facts["status"]) == (5, "completed", "OK")
    assert facts["prompt_tokens"] > 0
    assert facts["ttft_ms"] > 0
    assert canary not in "".join(str(record.__dict__) for record in caplog.records)
    exported = "".join(span.to_json() for span in spans.get_finished_spans())
    assert canary not in exported


async def test_choices_share_one_engine_span(spans: InMemorySpanExporter) -> None:
    async with running_service(simulated_model()) as service:
        await service.events(
            GenerateRequest(model="sim", prompt="x", choice_count=3, sampling={"max_output_tokens": 2})
        )
        await eventually(lambda: len(spans.get_finished_spans()) == 4)
        assert attributes(named(spans, "text_completion sim"))["gen_ai.request.choice.count"] == 3
