"""Keep the traces that matter although the sampler drops them: decided when a request ends.

A sampler decides before anything is known, so that at ten percent nine of ten slow
requests are lost. Here the spans of what it drops are noted down, wait in memory until the
local root of their trace has ended (the span whose parent is in another process, or
nowhere), and are exported after all if that root is marked with `headrace.sampling.keep`
or has failed. What the sampler keeps is the SDK's from its beginning.

Nine of ten requests come this way and nearly all of them are forgotten, so that a note
is far less than a span of the SDK: it is made into one only if it is exported.

Bounded: so many requests wait, with so many spans each, and so many are kept a second;
what has no room is lost, and counted.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Tracer, get_current_span, use_span
from opentelemetry.trace import TracerProvider as TracerProviderApi
from opentelemetry.util.types import Attributes

from runtime.otel.noted import NotedRequest, NotedSpan

__all__ = ["TailTracerProvider"]

# In an outage every request fails, and the first hundreds of them say it all.
_MAX_KEPT_PER_S: Final = 50.0
_BURST_S: Final = 10.0
# A request has fewer than ten spans; with several prompts a few for each.
_MAX_SPANS: Final = 128
_MAX_REQUESTS: Final = 8192


class _TailTracer(Tracer):
    """The SDK's tracer where the sampler says yes; notes where it says no."""

    def __init__(self, inner: Tracer, scope: InstrumentationScope, tail: TailTracerProvider, ids: IdGenerator) -> None:
        self._inner = inner
        self._tail = tail
        self._noted = partial(NotedSpan, tail.ended, scope)
        self._span_id = ids.generate_span_id

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """Start a span; the sampler is asked once for each request in this process, as its local root begins."""
        parent = get_current_span(context)
        theirs = parent.get_span_context()
        if isinstance(parent, NotedSpan):
            ours = SpanContext(theirs.trace_id, self._span_id(), False, theirs.trace_flags, theirs.trace_state)
            return self._noted(parent.request, ours, theirs, name, kind, attributes, links, start_time, is_root=False)
        span = self._inner.start_span(
            name, context, kind, attributes, links, start_time, record_exception, set_status_on_exception
        )
        is_root = not theirs.is_valid or theirs.is_remote
        if not isinstance(span, NonRecordingSpan):
            if is_root:
                self._tail.count("sampled")
            return span
        if not is_root:
            return span  # below a span of nobody's that is not recorded either
        ours = span.get_span_context()
        above = theirs if theirs.is_valid else None
        request = self._tail.begun(ours.span_id)
        return self._noted(request, ours, above, name, kind, attributes, links, start_time, is_root=True)

    @contextmanager
    def start_as_current_span(  # type: ignore[override]  # the API's own kind is private, and decorates coroutines too
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[Span]:
        """Start a span and make it current for the block."""
        span = self.start_span(
            name, context, kind, attributes, links, start_time, record_exception, set_status_on_exception
        )
        with use_span(span, end_on_exit, record_exception, set_status_on_exception) as current:
            yield current


class TailTracerProvider(TracerProviderApi):
    """A provider of the SDK, whose dropped requests are exported after all where they are worth it.

    `exporting` takes the spans of those. `count` is told once for each request:
    sampled, kept, dropped or lost. Thread-safe.
    """

    def __init__(
        self,
        inner: TracerProvider,
        exporting: SpanProcessor,
        count: Callable[[str], None] = lambda _: None,
        *,
        max_requests: int = _MAX_REQUESTS,
        max_spans: int = _MAX_SPANS,
        max_kept_per_s: float = _MAX_KEPT_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._exporting = exporting
        self.count = count
        self._limits = SpanLimits()
        self._max_requests = max_requests
        self._max_spans = max_spans
        self._per_s = max_kept_per_s
        self._clock = clock
        self._allowed = max_kept_per_s * _BURST_S
        self._allowed_at_s = clock()
        self._lock = Lock()
        # By the id of their local root, in the order in which they began.
        self._waiting: OrderedDict[int, NotedRequest] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Requests whose end is awaited."""
        return len(self._waiting)

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> Tracer:
        """Return a tracer."""
        told = (instrumenting_module_name, instrumenting_library_version or "", schema_url or "", attributes)
        return _TailTracer(self._inner.get_tracer(*told), InstrumentationScope(*told), self, self._inner.id_generator)

    def begun(self, root_id: int) -> NotedRequest:
        """Note that a request has begun whose spans are not sampled."""
        request = NotedRequest()
        lost = False
        with self._lock:
            self._waiting[root_id] = request
            if len(self._waiting) > self._max_requests:
                # The oldest: a stream that runs for long is one that the others must not wait for.
                _, oldest = self._waiting.popitem(last=False)
                oldest.is_kept, lost = False, True
                oldest.ended.clear()
        if lost:
            self.count("lost")
        return request

    def ended(self, span: NotedSpan) -> None:
        """Let a span wait for its request's end, or decide at this end what becomes of all of them."""
        request = span.request
        kept: Sequence[NotedSpan] = ()
        decision = None
        with self._lock:
            if request.is_kept is None:
                if span.is_root or len(request.ended) < self._max_spans - 1:
                    request.ended.append(span)
                if span.is_root:
                    self._waiting.pop(span.get_span_context().span_id, None)
                    request.is_kept = span.is_notable and self._may_keep()
                    decision = "kept" if request.is_kept else "lost" if span.is_notable else "dropped"
                    kept = request.ended if request.is_kept else ()
                    request.ended = []
            elif request.is_kept:
                kept = [span]  # ended behind its root
        for noted in kept:
            self._exporting.on_end(noted.readable(self._inner.resource, self._limits))
        if decision is not None:
            self.count(decision)

    def _may_keep(self) -> bool:
        now_s = self._clock()
        grown = self._allowed + (now_s - self._allowed_at_s) * self._per_s
        self._allowed, self._allowed_at_s = min(grown, self._per_s * _BURST_S), now_s
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def shutdown(self) -> None:
        """Forget what waits, and end the provider and its exporter."""
        with self._lock:
            self._waiting.clear()
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what was handed on; what waits for its end goes on waiting."""
        return self._inner.force_flush(timeout_millis)
