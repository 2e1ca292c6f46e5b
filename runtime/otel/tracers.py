"""A tracer provider whose spans cost little; samplers, limits, resources and exporters are the SDK's.

The sampler is asked once for each request in this process, as its local root begins;
what is below follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    use_span,
)
from opentelemetry.trace import TracerProvider as TracerProviderApi
from opentelemetry.util.types import Attributes

from runtime.otel.span import RecordedSpan, Request, current_span
from runtime.otel.tail import Tail

__all__ = ["RecordingTracerProvider"]


class _Tracer(Tracer):
    """Starts spans that say of themselves that they are of `scope`."""

    def __init__(self, provider: RecordingTracerProvider, scope: InstrumentationScope, inner: TracerProvider) -> None:
        self._provider = provider
        self._scope = scope
        self._sampler = inner.sampler
        self._ids = inner.id_generator
        self._span_id = inner.id_generator.generate_span_id

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
        """Start a span."""
        parent = current_span(context)
        request: Request | None
        above: RecordedSpan | SpanContext | None
        if isinstance(parent, RecordedSpan):
            request, above = parent.request, parent
        else:
            caller = parent.get_span_context()
            above = caller if caller.is_valid else None
            trace_id = self._ids.generate_trace_id() if above is None else above.trace_id
            result = self._sampler.should_sample(context, trace_id, name, kind, attributes, links)
            is_sampled = result.decision is Decision.RECORD_AND_SAMPLE
            if is_sampled:
                attributes = result.attributes  # a sampler may add some
            is_random = self._ids.is_trace_id_random() if above is None else above.trace_flags.random_trace_id
            flags = TraceFlags(
                (TraceFlags.SAMPLED if is_sampled else 0) | (TraceFlags.RANDOM_TRACE_ID if is_random else 0)
            )
            request = self._provider.begun(Request(trace_id, flags, result.trace_state, is_sampled or None))
            if request is None:
                return NonRecordingSpan(SpanContext(trace_id, self._span_id(), False, flags, result.trace_state))
        return RecordedSpan(
            self._provider.ended, self._scope, request, self._span_id, above, name, kind, attributes, links, start_time
        )

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


class RecordingTracerProvider(TracerProviderApi):
    """A provider over the SDK's `inner`, one of whose processors is `exporting`: it takes what ends and is exported.

    With a `tail`, what the sampler drops is recorded too, and the tail says which of it
    is exported after all. `count` is told of each request that was sampled. Thread-safe.
    """

    def __init__(
        self,
        inner: TracerProvider,
        exporting: SpanProcessor,
        tail: Tail | None = None,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._inner = inner
        self._exporting = exporting
        self._tail = tail
        self._count = count
        self._limits = SpanLimits()

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> Tracer:
        """Return a tracer."""
        scope = InstrumentationScope(
            instrumenting_module_name, instrumenting_library_version or "", schema_url or "", attributes
        )
        return _Tracer(self, scope, self._inner)

    def begun(self, request: Request) -> Request | None:
        """Note that a request begins, and return it; None if nothing of it is recorded."""
        if request.is_kept:
            self._count("sampled")
        elif self._tail is None:
            return None
        else:
            self._tail.begun(request)
        return request

    def ended(self, span: RecordedSpan) -> None:
        """Export a span that has ended, with others that have waited for it, or let it wait."""
        spans = [span] if span.request.is_kept or self._tail is None else self._tail.ended(span)
        for one in spans:
            self._exporting.on_end(one.readable(self._inner.resource, self._limits))

    def shutdown(self) -> None:
        """Forget what waits, and end the provider and its exporter."""
        if self._tail is not None:
            self._tail.forget()
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what was handed on; what waits for its end goes on waiting."""
        return self._inner.force_flush(timeout_millis)
