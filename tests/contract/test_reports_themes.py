"""Replays of faults that systems of this kind are prone to: members given twice, deadlines given in several ways."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runtime import semconv
from service.rpc.generation import DeadlinePolicy
from tests.support.gateway_harness import RunningGateway, chat_body, running_gateway
from tests.support.report_replay import replays
from tests.support.service import GenerateRequest, RunningService, eventually, running_service, script


@pytest.mark.report("T02")
async def test_of_two_members_with_one_name_the_last_counts_for_everyone(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with replays() as replay:
        replay.will('"a","b",FIN(length)')
        raw = b'{"model":"nope","stream":false,"max_tokens":9,"messages":[{"role":"user","content":"first"}],'
        raw += b'"model":"m","stream":true,"max_tokens":2,"messages":[{"role":"user","content":"second"}]}'
        response = await replay.post(raw)
        assert (response.status, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        (request,) = replay.fake.requests
        sent = b"".join(request.raw_input_contents)
        assert b"second" in sent
        assert b"first" not in sent
        await replay.gateway.wait_idle()
        lines = [
            record.__dict__ for record in caplog.records if record.name in {"headrace.request", "gateway.requests"}
        ]
        assert [(line["model"], line["output_tokens"]) for line in lines] == [("m", 2)] * 2
        await eventually(lambda: any(semconv.HTTP_ROUTE in (s.attributes or {}) for s in spans.get_finished_spans()))
        http = next(
            s.attributes for s in spans.get_finished_spans() if s.attributes and semconv.HTTP_ROUTE in s.attributes
        )
        assert (http[semconv.GEN_AI_REQUEST_STREAM], http[semconv.GEN_AI_RESPONSE_MODEL]) == (True, "m")


@asynccontextmanager
async def bounded(*, service_s: float, gateway_s: float) -> AsyncIterator[tuple[RunningService, RunningGateway]]:
    """Serve endless answers behind a longest deadline at each hop."""
    async with running_service(deadlines=DeadlinePolicy(maximum_s=service_s)) as service:
        limits = {"max_timeout_s": gateway_s, "default_timeout_s": gateway_s}
        async with running_gateway(f"127.0.0.1:{service.port}", **limits) as gateway:
            yield service, gateway


LEAST_S = 0.4
ENDLESS = script(token_ms=20) + "\n"


@pytest.mark.report("T03")
@pytest.mark.parametrize(
    ("headers", "service_s", "gateway_s"),
    [
        ({"request-timeout-ms": "400"}, 30, 30),
        ({"request-timeout-ms": "20000"}, LEAST_S, 30),
        ({"request-timeout-ms": "20000"}, 30, LEAST_S),
        ({"request-timeout-ms": "999999999999"}, 30, LEAST_S),
        ({}, LEAST_S, 30),
        ({}, 30, LEAST_S),
        ({"x-stainless-read-timeout": "0.4"}, 30, 30),
        ({"x-stainless-timeout": "0.4"}, 30, 30),
        # What the caller says counts, and not what its SDK adds by itself.
        ({"request-timeout-ms": "400", "x-stainless-timeout": "20"}, 30, 30),
        # No name of ours: nothing is taken from it.
        ({"x-request-timeout": "20"}, 30, LEAST_S),
    ],
)
async def test_of_all_deadlines_the_least_counts(headers: dict[str, str], service_s: float, gateway_s: float) -> None:
    async with bounded(service_s=service_s, gateway_s=gateway_s) as (_, gateway), gateway.connect() as client:
        begun_s = time.monotonic()
        body = chat_body(model="sim", messages=[{"role": "user", "content": ENDLESS}], stream=True, max_tokens=4000)
        response = await client.post(body, headers=headers)
        assert LEAST_S - 0.05 <= time.monotonic() - begun_s < LEAST_S + 2
        assert response.status == 200
        assert b'"code": "deadline_exceeded"' in response.body
        assert b"[DONE]" not in response.body


@pytest.mark.report("T03")
@pytest.mark.parametrize(("timeout_s", "service_s"), [(LEAST_S, 30), (20, LEAST_S)])
async def test_of_the_callers_and_the_servers_deadline_the_lesser_counts_over_grpc(
    timeout_s: float, service_s: float
) -> None:
    async with bounded(service_s=service_s, gateway_s=30) as (service, _):
        begun_s = time.monotonic()
        request = GenerateRequest(model="sim", prompt=ENDLESS, sampling={"max_output_tokens": 4000})
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _event in service.generation.Generate(request, timeout=timeout_s):
                pass
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert LEAST_S - 0.05 <= time.monotonic() - begun_s < LEAST_S + 2
