"""A caller's trace is read as OpenTelemetry's own propagator reads it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.trace import Span, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runtime.inbound import inbound_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def seen(span: Span) -> Any:
    at = span.get_span_context()
    return at.trace_id, at.span_id, at.is_remote, at.trace_flags, at.trace_state, type(span)


def assert_read_alike(headers: dict[str, str]) -> None:
    wanted = TraceContextTextMapPropagator().extract(headers, Context())
    found, links = inbound_trace(headers, "parent")
    assert links == []
    assert seen(get_current_span(found)) == seen(get_current_span(wanted))
    assert len(found) == len(wanted)


@pytest.mark.parametrize(
    "header",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-ff",
        f" 00-{TRACE}-{SPAN}-01\t",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-0\u0661",
        "",
        "x" * 1000,
    ],
)
@pytest.mark.parametrize("state", [None, "", "vendor=1,other=2", "=", "v=" + "1" * 600])
def test_a_header_is_read_as_the_propagator_reads_it(header: str, state: str | None) -> None:
    assert_read_alike({"traceparent": header} | ({} if state is None else {"tracestate": state}))


@given(st.from_regex(r"[ \t]?0[01]-[0-9a-f]{32}-[0-9a-fA-F]{15,17}-[0-9a-f]{2}(-x)?\n?", fullmatch=True))
def test_whatever_looks_like_a_header_is_read_as_the_propagator_reads_it(header: str) -> None:
    assert_read_alike({"traceparent": header})


def test_without_a_header_there_is_no_caller() -> None:
    assert_read_alike({})
    assert_read_alike({"tracestate": "vendor=1"})


def test_a_caller_who_is_not_trusted_is_only_pointed_to() -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    found, (link,) = inbound_trace(headers, "link")
    assert not found
    assert link.context.trace_id == int(TRACE, 16)
    assert inbound_trace(headers, "never") == (Context(), [])
    assert inbound_trace({}, "link") == (Context(), [])
