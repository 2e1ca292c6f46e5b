"""Traces that matter are exported although the sampler drops them; nothing else is, and memory is bounded."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags, TraceState

from runtime import semconv
from runtime.otel.tail import Tail
from runtime.otel.tracers import RecordingTracerProvider


class Traced:
    """A tracer whose spans go through the tail; `names` are those that were exported."""

    def __init__(self, sampler: Sampler = ALWAYS_OFF, **bounds: Any) -> None:
        self.exporter, self.counts = InMemorySpanExporter(), Counter[str]()
        exporting = SimpleSpanProcessor(self.exporter)
        self.sdk = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.sdk.add_span_processor(exporting)
        self.tail = Tail(lambda name: self.counts.update([name]), **bounds)
        self.provider = RecordingTracerProvider(self.sdk, exporting, self.tail, lambda name: self.counts.update([name]))
        self.start = self.provider.get_tracer("test").start_span

    def request(self, *marks: str, parent: Context | None = None) -> trace.Span:
        """Run a request of a root and two spans, and return its root, ended."""
        root = self.start("root", context=parent)
        inside = trace.set_span_in_context(root)
        child = self.start("child", context=inside)
        self.start("grandchild", context=trace.set_span_in_context(child)).end()
        child.end()
        if "slow" in marks:
            root.set_attribute(semconv.KEEP, "slow")
        if "error" in marks:
            root.set_status(StatusCode.ERROR)
        root.end()
        return root

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)


WHOLE = ["child", "grandchild", "root"]


@pytest.mark.parametrize(("mark", "kept"), [("", []), ("slow", WHOLE), ("error", WHOLE)])
def test_what_the_sampler_drops_is_exported_where_its_root_says_so(mark: str, kept: list[str]) -> None:
    traced = Traced()
    traced.request(mark)
    assert traced.names == kept
    assert traced.counts == {"kept" if kept else "dropped": 1}
    assert traced.tail.waiting == 0


def test_the_exported_spans_are_the_recorded_ones_and_say_that_they_are_sampled() -> None:
    traced = Traced()
    root = traced.request("slow").get_span_context()
    by_name = {span.name: span for span in traced.spans}
    assert all(span.context.trace_flags.sampled and span.context.trace_id == root.trace_id for span in traced.spans)
    assert by_name["root"].context.span_id == root.span_id
    assert by_name["child"].parent.span_id == root.span_id
    assert by_name["grandchild"].parent.span_id == by_name["child"].context.span_id
    assert all(span.end_time >= span.start_time > 0 for span in traced.spans)
    assert by_name["root"].attributes == {semconv.KEEP: "slow"}


def test_what_the_sampler_keeps_goes_straight_on() -> None:
    traced = Traced(ALWAYS_ON)
    root = traced.start("root")
    traced.start("child", context=trace.set_span_in_context(root)).end()
    assert traced.names == ["child"]
    root.end()
    assert traced.counts == {"sampled": 1}


def test_a_tenth_is_kept_and_every_slow_one_besides() -> None:
    traced = Traced(ParentBased(TraceIdRatioBased(0.1)))
    for number in range(1000):
        traced.request("slow" if number % 100 == 0 else "")
    roots = [span for span in traced.spans if span.name == "root"]
    assert sum(1 for span in roots if span.attributes) == 10
    assert traced.counts["sampled"] == sum(1 for span in roots) - traced.counts["kept"]
    assert 60 < traced.counts["sampled"] < 140
    assert traced.counts["sampled"] + traced.counts["kept"] + traced.counts["dropped"] == 1000


def test_a_local_root_has_its_parent_in_another_process() -> None:
    traced = Traced(ParentBased(ALWAYS_ON))
    caller = SpanContext(0x1234, 0x5678, is_remote=True, trace_flags=TraceFlags(0))
    theirs = trace.set_span_in_context(NonRecordingSpan(caller))
    # Two requests of one trace, as of an HTTP request with two prompts: each is judged by itself.
    traced.request(parent=theirs)
    traced.request("slow", parent=theirs)
    assert traced.names == WHOLE
    assert {span.context.trace_id for span in traced.spans} == {0x1234}


def test_a_span_that_ends_behind_its_root_follows_the_decision() -> None:
    traced = Traced()
    for mark, kept in (("", []), ("slow", ["late", "root"])):
        root = traced.start("root")
        late = traced.start("late", context=trace.set_span_in_context(root))
        if mark:
            root.set_attribute(semconv.KEEP, mark)
        root.end()
        late.end()
        assert traced.names == kept


def test_the_oldest_request_is_lost_where_too_many_wait() -> None:
    traced = Traced(max_requests=3)
    roots = [traced.start(f"root {number}") for number in range(5)]
    assert traced.tail.waiting == 3
    for root in roots:
        root.set_attribute(semconv.KEEP, "slow")
        root.end()
    assert traced.names == ["root 2", "root 3", "root 4"]
    assert traced.counts == {"lost": 2, "kept": 3}
    assert traced.tail.waiting == 0


def test_a_request_of_too_many_spans_keeps_the_first_ones_and_its_root() -> None:
    traced = Traced(max_spans=5)
    root = traced.start("root")
    for number in range(9):
        traced.start(f"child {number}", context=trace.set_span_in_context(root)).end()
    root.set_status(StatusCode.ERROR)
    root.end()
    assert traced.names == ["child 0", "child 1", "child 2", "child 3", "root"]


def test_no_more_are_kept_than_say_what_is_the_matter() -> None:
    now_s = 0.0
    traced = Traced(max_kept_per_s=2.0, clock=lambda: now_s)
    for _ in range(50):
        traced.request("slow")
    assert traced.counts == {"kept": 20, "lost": 30}  # ten seconds' worth at once
    now_s = 3.0
    for _ in range(10):
        traced.request("error")
    assert traced.counts == {"kept": 26, "lost": 34}


def test_nothing_is_remembered_of_what_has_ended() -> None:
    traced = Traced()
    for number in range(100):
        traced.request("slow" if number % 2 else "")
    assert traced.tail.waiting == 0


def tell_all(tracer: trace.Tracer) -> None:
    """Tell a span everything that the API has."""
    elsewhere = SpanContext(0x1, 0x2, is_remote=True, trace_flags=TraceFlags(1))
    root = tracer.start_span("root", kind=trace.SpanKind.SERVER, attributes={"a": 1}, links=[trace.Link(elsewhere)])
    root.set_attribute(semconv.KEEP, "slow")
    with trace.use_span(root, end_on_exit=True, record_exception=False):
        with tracer.start_as_current_span("all", attributes={"long": "x" * 100}) as span:
            span.set_attributes({"many": ["x", "y"], "yes": True, "share": 0.5})
            span.update_name("everything")
            span.add_event("happened", {"where": "here"})
            span.set_status(StatusCode.ERROR, "broken")
            span.set_status(StatusCode.UNSET)
        for status in (StatusCode.OK, StatusCode.ERROR):
            span.set_status(status)
        with pytest.raises(ValueError), tracer.start_as_current_span("raised", kind=trace.SpanKind.CLIENT):  # noqa: PT011
            raise ValueError("no good")
        final = tracer.start_span("final")
        final.set_status(StatusCode.OK)
        final.set_status(StatusCode.ERROR, "too late")
        assert final.is_recording()
        final.end()
        assert not final.is_recording()
        final.set_attribute("late", 1)
        final.add_event("late")
        final.update_name("late")
        final.end()


def told(span: ReadableSpan) -> dict[str, Any]:
    """Return a span without what differs each time."""
    found = json.loads(span.to_json())
    for name in ("context", "parent_id", "start_time", "end_time"):
        del found[name]
    for event in found["events"]:
        del event["timestamp"]
        event["attributes"].pop("exception.stacktrace", None)
    for link in found["links"]:
        link["attributes"] = link["attributes"] or {}
    return {**found, "scope": span.instrumentation_scope, "has_parent": span.parent is not None}


@pytest.mark.parametrize("limit", [None, "20"])
def test_what_is_kept_is_what_the_sdk_would_have_made_of_it(limit: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit is not None:
        monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", limit)
    kept, sampled, theirs = Traced(ALWAYS_OFF), Traced(ALWAYS_ON), Traced(ALWAYS_ON)
    spans = []
    for traced, provider in ((kept, kept.provider), (sampled, sampled.provider), (theirs, theirs.sdk)):
        tell_all(provider.get_tracer("test", "1", "https://example.test/schema"))
        spans.append(sorted((told(span) for span in traced.spans), key=lambda one: str(one["name"])))
    assert spans[0] == spans[1] == spans[2]
    assert [span["name"] for span in spans[0]] == ["everything", "final", "raised", "root"]


@pytest.mark.parametrize(
    "sampler",
    [
        ALWAYS_OFF,
        ALWAYS_ON,
        ParentBased(ALWAYS_OFF),
        ParentBasedTraceIdRatio(1.0),
        ParentBased(ALWAYS_ON, remote_parent_sampled=ALWAYS_OFF, remote_parent_not_sampled=ALWAYS_ON),
    ],
    ids=["dropped", "sampled", "by the caller, else dropped", "by the caller, else sampled", "against the caller"],
)
@pytest.mark.parametrize("caller_flags", [None, 0x00, 0x03])
def test_contexts_are_those_that_the_sdk_would_have_made(sampler: Sampler, caller_flags: int | None) -> None:
    state = TraceState([("vendor", "1")])
    flags = TraceFlags(caller_flags or 0)
    caller = SpanContext(0x1234, 0x5678, is_remote=True, trace_flags=flags, trace_state=state)
    parent = Context() if caller_flags is None else trace.set_span_in_context(NonRecordingSpan(caller))
    made = []
    for name in ("provider", "sdk"):
        start = getattr(Traced(sampler), name).get_tracer("test").start_span
        root = start("root", parent)
        child = start("child", trace.set_span_in_context(root))
        contexts = [span.get_span_context() for span in (root, child)]
        assert contexts[0].trace_id == contexts[1].trace_id
        assert contexts[0].span_id != contexts[1].span_id
        assert all(context.is_valid for context in contexts)
        made.append([(one.trace_flags, one.is_remote, one.trace_state, one.trace_id == 0x1234) for one in contexts])
    assert made[0] == made[1]


def test_nothing_is_recorded_of_what_is_dropped_where_nothing_may_be_kept() -> None:
    exporter = InMemorySpanExporter()
    sdk = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    tracer = RecordingTracerProvider(sdk, SimpleSpanProcessor(exporter)).get_tracer("test")
    root = tracer.start_span("root")
    child = tracer.start_span("child", trace.set_span_in_context(root))
    for span in (child, root):
        assert not span.is_recording()
        assert span.get_span_context().is_valid
        span.set_status(StatusCode.ERROR)
        span.end()
    assert child.get_span_context().trace_id == root.get_span_context().trace_id
    assert exporter.get_finished_spans() == ()


def test_contexts_that_travel_on_say_that_they_are_not_sampled() -> None:
    traced = Traced()
    root = traced.start("root")
    child = traced.start("child", context=trace.set_span_in_context(root))
    for span in (root, child):
        assert not span.get_span_context().trace_flags.sampled
        assert span.get_span_context().is_valid
        assert not span.get_span_context().is_remote
    assert child.get_span_context().trace_id == root.get_span_context().trace_id


def test_what_waits_at_the_end_is_forgotten() -> None:
    traced = Traced()
    traced.start("root")
    traced.provider.force_flush()
    assert traced.tail.waiting == 1
    traced.provider.shutdown()
    assert traced.tail.waiting == 0
    assert traced.names == []
