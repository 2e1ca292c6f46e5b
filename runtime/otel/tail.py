"""Keep the traces that matter although the sampler drops them: decided when a request ends.

A sampler decides before anything is known, so that at ten percent nine of ten slow
requests are lost. Here what it drops is still recorded, waits in memory until the
local root of its trace has ended (the span whose parent is in another process, or
nowhere), and is exported after all if that root is marked with `headrace.sampling.keep`
or has failed. What the sampler keeps goes straight to the exporter.

Bounded: so many requests wait, with so many spans each, and so many are kept a second;
what has no room is lost, and counted. The SDK's own part of this is a sampler and a span processor.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
)
from opentelemetry.util.types import Attributes

from runtime import semconv

__all__ = ["RecordingSampler", "TailProcessor"]

# In an outage every request fails, and the first hundreds of them say it all.
_MAX_KEPT_PER_S: Final = 50.0
_BURST_S: Final = 10.0
# A request has fewer than ten spans; with several prompts a few for each.
_MAX_SPANS: Final = 128
_MAX_REQUESTS: Final = 8192


class RecordingSampler(Sampler):
    """Another sampler, whose DROP is taken as "record, and do not export"."""

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Return the inner sampler's decision; what it drops is recorded."""
        result = self._inner.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)
        if result.decision is Decision.DROP:
            return SamplingResult(Decision.RECORD_ONLY, attributes, result.trace_state)
        return result

    def get_description(self) -> str:
        """Return the inner one's description, marked."""
        return f"Recording{{{self._inner.get_description()}}}"


@dataclass(slots=True, eq=False)
class _Request:
    """The spans of one request in this process, by its local root."""

    root_id: int
    ended: list[ReadableSpan] = field(default_factory=list)
    is_kept: bool | None = None  # None until the root has ended


class TailProcessor(SpanProcessor):
    """Hands spans on to `inner`: sampled ones at their end, the others when their request is worth it.

    `count` is told once for each request: sampled, kept, dropped or lost. Thread-safe.
    """

    def __init__(
        self,
        inner: SpanProcessor,
        count: Callable[[str], None] = lambda _: None,
        *,
        max_requests: int = _MAX_REQUESTS,
        max_spans: int = _MAX_SPANS,
        max_kept_per_s: float = _MAX_KEPT_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._count = count
        self._max_requests = max_requests
        self._max_spans = max_spans
        self._per_s = max_kept_per_s
        self._clock = clock
        self._allowed = max_kept_per_s * _BURST_S
        self._allowed_at_s = clock()
        self._lock = Lock()
        # Open spans that are not sampled, by id.
        self._by_span: dict[int, _Request] = {}
        self._waiting: OrderedDict[int, _Request] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Requests whose end is awaited."""
        return len(self._waiting)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Put the span to its request, or begin one."""
        self._inner.on_start(span, parent_context)
        context = span.get_span_context()
        assert context is not None
        if context.trace_flags.sampled:
            if _is_local_root(span):
                self._count("sampled")
            return
        parent = get_current_span(parent_context).get_span_context()
        lost = False
        with self._lock:
            request = self._by_span.get(parent.span_id) if parent.is_valid and not parent.is_remote else None
            if request is None:
                request = _Request(context.span_id)
                self._waiting[context.span_id] = request
                if len(self._waiting) > self._max_requests:
                    # The oldest: a stream that runs for long is one that the others must not wait for.
                    _, oldest = self._waiting.popitem(last=False)
                    oldest.is_kept, lost = False, True
                    oldest.ended.clear()
            self._by_span[context.span_id] = request
        if lost:
            self._count("lost")

    def on_end(self, span: ReadableSpan) -> None:
        """Hand a sampled span on; let any other wait for its request's end."""
        context = span.get_span_context()
        assert context is not None
        if context.trace_flags.sampled:
            self._inner.on_end(span)
            return
        export: list[ReadableSpan] = []
        decision = None
        with self._lock:
            request = self._by_span.pop(context.span_id, None)
            if request is None:
                return
            if request.is_kept is None:
                is_root = context.span_id == request.root_id
                if is_root or len(request.ended) < self._max_spans - 1:
                    request.ended.append(span)
                if is_root:
                    self._waiting.pop(request.root_id, None)
                    is_notable = _is_notable(span)
                    request.is_kept = is_notable and self._may_keep()
                    decision = "kept" if request.is_kept else "lost" if is_notable else "dropped"
                    export = request.ended if request.is_kept else []
                    request.ended = []
            elif request.is_kept:
                export = [span]  # ended behind its root
        for kept in export:
            self._inner.on_end(_sampled(kept))
        if decision is not None:
            self._count(decision)

    def _may_keep(self) -> bool:
        now_s = self._clock()
        grown = self._allowed + (now_s - self._allowed_at_s) * self._per_s
        self._allowed, self._allowed_at_s = min(grown, self._per_s * _BURST_S), now_s
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def shutdown(self) -> None:
        """Forget what waits, and end the inner one."""
        with self._lock:
            self._by_span.clear()
            self._waiting.clear()
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what was handed on; what waits for its end goes on waiting."""
        return self._inner.force_flush(timeout_millis)


def _is_local_root(span: ReadableSpan) -> bool:
    return span.parent is None or span.parent.is_remote


def _is_notable(root: ReadableSpan) -> bool:
    return root.status.status_code is StatusCode.ERROR or semconv.KEEP in (root.attributes or {})


def _sampled(span: ReadableSpan) -> ReadableSpan:
    """Return the span as one that was sampled: exporters take no others."""
    context = span.get_span_context()
    assert context is not None
    flags = TraceFlags(context.trace_flags | TraceFlags.SAMPLED)
    return ReadableSpan(
        name=span.name,
        context=SpanContext(context.trace_id, context.span_id, context.is_remote, flags, context.trace_state),
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        instrumentation_scope=span.instrumentation_scope,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
    )
