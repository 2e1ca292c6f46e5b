"""What a caller's trace is to ours, by how far callers are trusted."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import get_current_span

from runtime.inbound import inbound_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_caller_is_a_parent_or_only_pointed_to_or_nothing() -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    found, links = inbound_trace(headers, "parent")
    assert links == []
    assert get_current_span(found).get_span_context().span_id == int(SPAN, 16)
    found, (link,) = inbound_trace(headers, "link")
    assert not found
    assert link.context.trace_id == int(TRACE, 16)
    assert inbound_trace(headers, "never") == inbound_trace({}, "link") == (Context(), [])
