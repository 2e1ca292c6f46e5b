"""A span that costs little while it is told things: only one that is exported is made a span of the SDK.

Of ten requests nine are dropped by the sampler, and nearly all of those are forgotten
when they end; the SDK's own span checks, copies and locks for each of them.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context, get_value
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.trace.propagation import _SPAN_KEY
from opentelemetry.util.types import Attributes, AttributeValue

from runtime import semconv

__all__ = ["RecordedSpan", "Request", "current_span"]


def current_span(context: Context | None) -> Span:
    """Return the span of a context, as the API's `get_current_span` does, without its look at what kind it is.

    That look goes through abstract classes, and is most of its cost; each value that is recorded asks for the span.
    """
    span: Span | None = get_value(_SPAN_KEY, context)  # type: ignore[assignment]
    return INVALID_SPAN if span is None else span


@dataclass(slots=True, eq=False)
class Request:
    """What the spans of one request in this process have in common, and those that wait for its local root's end.

    `is_kept`: whether its spans are exported; None until that is decided.
    """

    trace_id: int
    flags: TraceFlags
    state: TraceState | None
    is_kept: bool | None = None
    ended: list[RecordedSpan] = field(default_factory=list)


class RecordedSpan(Span):
    """A span as it was told. `above` is the span in this process that it is below, or the caller's context."""

    __slots__ = ("_above", "_context", "_make_id", "_on_end", "attributes", "end_ns", "events", "is_root", "kind",
                 "links", "name", "request", "scope", "start_ns", "status")  # fmt: skip

    def __init__(
        self,
        on_end: Callable[[RecordedSpan], None],
        scope: InstrumentationScope,
        request: Request,
        make_id: Callable[[], int],
        above: RecordedSpan | SpanContext | None,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link] | None,
        start_ns: int | None,
    ) -> None:
        self._on_end = on_end
        self.scope = scope
        self.request = request
        self._make_id = make_id
        self._above = above
        self._context: SpanContext | None = None
        self.is_root = not isinstance(above, RecordedSpan)
        self.name = name
        self.kind = kind
        self.attributes: dict[str, AttributeValue] = dict(attributes) if attributes else {}
        self.links = links
        self.events: list[Event] | None = None
        self.status: Status | None = None
        self.end_ns: int | None = None
        self.start_ns = time.time_ns() if start_ns is None else start_ns

    def get_span_context(self) -> SpanContext:
        """Return its context, which is made when it is first asked for: of what is dropped, nobody asks."""
        if self._context is None:
            request = self.request
            self._context = SpanContext(request.trace_id, self._make_id(), False, request.flags, request.state)
        return self._context

    def is_recording(self) -> bool:
        """Say whether it takes attributes: until it has ended."""
        return self.end_ns is None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Note an attribute."""
        if self.end_ns is None:
            self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Note attributes."""
        if self.end_ns is None:
            self.attributes.update(attributes)

    def update_name(self, name: str) -> None:
        """Give it another name."""
        if self.end_ns is None:
            self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Note the status; as in the SDK, OK is final and UNSET says nothing."""
        if not isinstance(status, Status):
            status = Status(status, description)
        is_final = self.status is not None and self.status.status_code is StatusCode.OK
        if self.end_ns is None and not is_final and status.status_code is not StatusCode.UNSET:
            self.status = status

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Note an event."""
        if self.end_ns is None:
            self.events = [*(self.events or ()), Event(name, attributes, timestamp or time.time_ns())]

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """Note a link."""
        if self.end_ns is None:
            self.links = [*(self.links or ()), Link(context, attributes)]

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Note an exception, by the names that the conventions have for it."""
        told: dict[str, AttributeValue] = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", {**told, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End it; what was told until now is final."""
        if self.end_ns is None:
            self.end_ns = time.time_ns() if end_time is None else end_time
            self._on_end(self)

    @property
    def is_notable(self) -> bool:
        """Whether this local root says that its request's trace is to be kept."""
        return semconv.KEEP in self.attributes or (
            self.status is not None and self.status.status_code is StatusCode.ERROR
        )

    def readable(self, resource: Resource, limits: SpanLimits) -> ReadableSpan:
        """Return it as a span of the SDK that was sampled: exporters take no others."""
        context, above = self.get_span_context(), self._above
        flags = TraceFlags(context.trace_flags | TraceFlags.SAMPLED)
        return ReadableSpan(
            name=self.name,
            context=SpanContext(context.trace_id, context.span_id, context.is_remote, flags, context.trace_state),
            parent=above.get_span_context() if isinstance(above, RecordedSpan) else above,
            resource=resource,
            attributes=BoundedAttributes(
                limits.max_span_attributes,
                self.attributes,
                immutable=True,
                max_value_len=limits.max_span_attribute_length,
            ),
            events=tuple(self.events or ()),
            links=tuple(self.links or ()),
            kind=self.kind,
            instrumentation_scope=self.scope,
            status=self.status or Status(StatusCode.UNSET),
            start_time=self.start_ns,
            end_time=self.end_ns,
        )
