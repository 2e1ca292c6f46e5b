"""How the spans of a request end, in all processes: the table of ends, as an independent collector hands them on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from runtime import metrics, semconv
from tests.support.gateway_harness import RawClient
from tests.support.http_stream import open_stream
from tests.support.otlp_sink import Span
from tests.support.service import eventually
from tests.support.traced_site import (
    ENGINE,
    FIRST,
    GATEWAY,
    HTTP,
    MODELS,
    PHASES,
    REST,
    RPC,
    SERVICE,
    TRITON,
    Caller,
    Site,
    ask,
    chat,
    running_site,
    spans_of,
    tree,
)

pytestmark = [pytest.mark.e2e, pytest.mark.triton, pytest.mark.timeout(120)]

ERROR = 2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as running:
        yield running


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How the spans of a request end: outcome and status of the call, the HTTP status, and which are errors."""

    outcome: str
    status: str
    http: int
    errors: tuple[tuple[str, str], ...]
    reason: str | None = None
    http_outcome: str | None = None


NOBODY: Final = ()
EVERYBODY: Final = ((GATEWAY, HTTP), (GATEWAY, RPC), (SERVICE, RPC), (SERVICE, ENGINE))


def check(spans: dict[tuple[str, str], Span], end: End) -> None:
    http, call, rpc = spans[GATEWAY, HTTP], spans[GATEWAY, RPC], spans[SERVICE, RPC]
    assert rpc.attributes[semconv.OUTCOME] == end.outcome
    assert http.attributes[semconv.OUTCOME] == (end.http_outcome or end.outcome)
    assert http.attributes[semconv.HTTP_STATUS_CODE] == end.http
    assert {span.attributes[semconv.RPC_STATUS_CODE] for span in (call, rpc)} == {end.status}
    assert rpc.attributes.get(semconv.ERROR_REASON) == end.reason
    failed = {place for place, span in spans.items() if span.raw.status.code == ERROR and place[0] != TRITON}
    assert failed == set(end.errors)
    for place in failed:
        # On a busy machine the gateway's own clock can be over before it hears why the service's is.
        expected = {end.reason, end.status} if place == (GATEWAY, HTTP) else {end.status}
        assert spans[place].attributes[semconv.ERROR_TYPE] in expected, place
    for place in spans.keys() - failed:
        assert semconv.ERROR_TYPE not in spans[place].attributes, place


async def test_an_answer_is_no_error_anywhere(site: Site) -> None:
    caller = Caller(site)
    await ask(site, caller, chat())
    spans = await spans_of(site, caller.trace_id, tree("wide", *PHASES))
    check(spans, End(outcome="completed", status="OK", http=200, errors=NOBODY))
    assert spans[SERVICE, ENGINE].attributes[semconv.GEN_AI_FINISH_REASONS] == ["length"]


async def test_a_client_that_leaves_is_no_error_anywhere(site: Site) -> None:
    caller = Caller(site)
    async with open_stream(site.port, chat(script="token_ms=20", tokens=500), headers=caller.headers) as stream:
        await stream.until_text()
        stream.leave()
    spans = await spans_of(site, caller.trace_id, tree("wide", *PHASES))
    check(spans, End(outcome="client_cancelled", status="CANCELLED", http=200, errors=NOBODY))
    assert semconv.GEN_AI_FINISH_REASONS not in spans[SERVICE, ENGINE].attributes
    assert spans[SERVICE, ENGINE].attributes[semconv.GEN_AI_OUTPUT_TOKENS] < 500


async def test_a_deadline_that_passes_in_the_stream_is_an_error_of_everybody(site: Site) -> None:
    caller = Caller(site)
    headers = {"Request-Timeout-Ms": "1000"}
    events = await ask(site, caller, chat(script="token_ms=20", tokens=500), **headers)
    assert "deadline_exceeded" in events[-1]
    spans = await spans_of(site, caller.trace_id, tree("wide", *PHASES))
    end = End(
        outcome="deadline_exceeded",
        status="DEADLINE_EXCEEDED",
        http=200,
        errors=EVERYBODY,
        reason="DEADLINE_IN_DECODE",
    )
    check(spans, end)


async def test_a_deadline_that_passes_before_the_first_token_has_no_second_phase(site: Site) -> None:
    caller = Caller(site)
    async with RawClient(site.port) as raw:
        body = chat(script="prefill_ms=9000") | {"stream": True}
        answer = await raw.post(body, headers=caller.headers | {"Request-Timeout-Ms": "1000"})
    assert answer.status == 504
    spans = await spans_of(site, caller.trace_id, tree("wide", (SERVICE, FIRST)))
    assert (SERVICE, REST) not in spans
    end = End(
        outcome="deadline_exceeded",
        status="DEADLINE_EXCEEDED",
        http=504,
        errors=EVERYBODY,
        reason="DEADLINE_IN_DECODE",
    )
    check(spans, end)
    assert semconv.GEN_AI_TTFC not in spans[SERVICE, ENGINE].attributes


async def test_a_full_line_is_a_refusal_of_the_service_and_has_no_engine_span(site: Site) -> None:
    caller, holder = Caller(site), Caller(site)
    async with open_stream(site.port, chat("narrow", "token_ms=20", 500), headers=holder.headers) as held:
        await held.until_text()
        async with RawClient(site.port) as raw:
            answer = await raw.post(chat("narrow") | {"stream": True}, headers=caller.headers)
        held.leave()
    assert answer.status == 503
    spans = await spans_of(site, caller.trace_id, {(GATEWAY, HTTP), (GATEWAY, RPC), (SERVICE, RPC)})
    assert len(spans) == 3
    end = End(
        outcome="rejected",
        status="RESOURCE_EXHAUSTED",
        http=503,
        # The conventions: no error of the server of a call, but one of its client, and every 5xx is one over HTTP.
        errors=((GATEWAY, RPC), (GATEWAY, HTTP)),
        reason="QUEUE_FULL",
        http_outcome="failed",
    )
    check(spans, end)


async def test_a_triton_that_is_killed_in_the_stream_is_an_error_of_everybody(site: Site) -> None:
    caller = Caller(site)
    async with open_stream(site.port, chat(script="token_ms=20", tokens=500), headers=caller.headers) as stream:
        await stream.until_text()
        # The server and its models' processes, not the script that would clean up behind them.
        os.killpg(os.getpgid(site.triton.children()[0]), signal.SIGKILL)
        events = await stream.rest()
    try:
        assert "backend_unavailable" in events[-1]
        spans = await spans_of(site, caller.trace_id, tree("wide", *PHASES))
        end = End(
            outcome="backend_error",
            status="UNAVAILABLE",
            http=200,
            errors=EVERYBODY,
            reason="BACKEND_UNAVAILABLE",
            http_outcome="failed",
        )
        check(spans, end)
    finally:
        await asyncio.to_thread(site.triton.process.wait, 20)
        await eventually(lambda: not any(_is_ready(site, model) for model in MODELS), 20)
        await asyncio.to_thread(site.triton.revive)
        await eventually(lambda: all(_is_ready(site, model) for model in MODELS), 20)


async def test_a_service_that_ends_is_an_error_of_everybody(site: Site, tmp_path: Path) -> None:
    caller = Caller(site)
    with site.another_stack(tmp_path, shutdown_grace_s=0.3) as running:
        request = chat(script="token_ms=20", tokens=500)
        async with open_stream(running.gateway.port, request, headers=caller.headers) as stream:
            await stream.until_text()
            running.service.send(signal.SIGTERM)
            events = await stream.rest()
        assert await running.service.ended() == 0
        assert "draining" in events[-1]
        spans = await spans_of(site, caller.trace_id, tree("wide", *PHASES))
    end = End(
        outcome="drained", status="UNAVAILABLE", http=200, errors=EVERYBODY, reason="DRAINING", http_outcome="failed"
    )
    check(spans, end)


def _is_ready(site: Site, model: str) -> bool:
    points = site.sink.points(SERVICE, metrics.MODELS.name, gen_ai__request__model=model)
    return [point.as_int for point in points] == [1]
