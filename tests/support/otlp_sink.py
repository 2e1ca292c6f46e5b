"""Collectors: they keep the spans and metrics that processes export."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc

__all__ = ["OtlpSink", "Span", "json_sink", "otlp_sink"]


@dataclass(frozen=True, slots=True)
class Span:
    """One exported span, unpacked. `source` is the process's service.name."""

    source: str
    raw: Any

    @property
    def attributes(self) -> dict[str, Any]:
        return {item.key: _value(item.value) for item in self.raw.attributes}


@dataclass(slots=True)
class OtlpSink:
    """What came in so far. `exported` are the requests byte for byte."""

    endpoint: str = ""
    exported: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    # The newest state of each metric of each process, by (source, name).
    metrics: dict[tuple[str, str], Any] = field(default_factory=dict)

    def trace(self, trace_id: str, names: set[tuple[str, str]], timeout_s: float = 10.0) -> dict[tuple[str, str], Span]:
        """Wait for all spans of one trace that are in `names` (source, name), and return every span of it."""
        give_up_s = time.monotonic() + timeout_s
        while True:
            mine = [span for span in tuple(self.spans) if span.raw.trace_id.hex() == trace_id]
            found = {(span.source, span.raw.name): span for span in mine}
            if names <= found.keys():
                assert len(found) == len(mine), f"twice the same: {[(s.source, s.raw.name) for s in mine]}"
                return found
            assert time.monotonic() < give_up_s, f"only {sorted(found)} of {sorted(names)} came in {timeout_s} s"
            time.sleep(0.01)

    def points(self, source: str, name: str, **attributes: Any) -> list[Any]:
        """Return the newest data points of a metric that have all of `attributes`."""
        metric = self.metrics.get((source, name))
        if metric is None:
            return []
        points = getattr(metric, metric.WhichOneof("data")).data_points
        wanted = {(key.replace("__", "."), value) for key, value in attributes.items()}
        return [p for p in points if wanted <= {(item.key, _value(item.value)) for item in p.attributes}]


class _Traces(traces_grpc.TraceServiceServicer):
    def __init__(self, sink: OtlpSink) -> None:
        self._sink = sink

    def Export(self, request: Any, context: Any) -> Any:
        self._sink.exported.append(request.SerializeToString())
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self._sink.spans += [Span(_source(resource), span) for span in scope.spans]
        return traces.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, sink: OtlpSink) -> None:
        self._sink = sink

    def Export(self, request: Any, context: Any) -> Any:
        self._sink.exported.append(request.SerializeToString())
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self._sink.metrics |= {(_source(resource), metric.name): metric for metric in scope.metrics}
        return metrics.ExportMetricsServiceResponse()


@contextmanager
def otlp_sink() -> Iterator[OtlpSink]:
    """Collect for the length of the block; `endpoint` is for OTEL_EXPORTER_OTLP_ENDPOINT."""
    sink = OtlpSink()
    server = grpc.server(ThreadPoolExecutor(4))
    traces_grpc.add_TraceServiceServicer_to_server(_Traces(sink), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(sink), server)
    sink.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield sink
    finally:
        server.stop(1).wait(5)


def _source(resource: Any) -> str:
    return next(item.value.string_value for item in resource.resource.attributes if item.key == "service.name")


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def json_sink() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Collect spans as Triton exports them, as OTLP/JSON over HTTP; yields the URL and the spans so far."""
    spans: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["content-length"])))
            for resource in document["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    spans.extend(scope["spans"])
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="OTLP/JSON sink")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()
