"""Client, gateway, service and a real Triton as processes; an independent collector hands their telemetry to a sink."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.support.http_stream import open_stream
from tests.support.otlp_sink import OtlpSink, Span, otlp_sink
from tests.support.processes import Stack, stack
from tests.support.rotel import running_rotel
from tests.support.service import eventually
from tests.support.triton_server import RealTriton, running_triton

__all__ = [
    "CLIENT",
    "ENGINE",
    "FIRST",
    "GATEWAY",
    "HTTP",
    "MODELS",
    "PHASES",
    "REST",
    "RPC",
    "SERVICE",
    "TRITON",
    "Caller",
    "Site",
    "ask",
    "chat",
    "of_trace",
    "running_site",
    "spans_of",
    "through_all",
    "tree",
]

CLIENT, GATEWAY, SERVICE, TRITON = "client", "headrace-gateway", "headrace-service", "triton-inference-server"
HTTP, RPC, ENGINE = "POST /v1/chat/completions", "headrace.v1.GenerationService/Generate", "chat wide"
FIRST, REST = "await first token", "stream tokens"
PHASES: Final = ((SERVICE, FIRST), (SERVICE, REST))
# All are the one engine; the second is for what is counted, the third has one slot and no line.
MODELS: Final = {"wide": "", "counted": "", "narrow": "max_running = 1\nmax_waiting = 0\n"}
_MODEL = """
[[models]]
id = "{id}"
backend = "triton"
template = "chatml"
{limits}
[models.options]
url = "{url}"
model = "ensemble"
"""
_PREFIXES: Final = ("HEADRACE", "HEADRACE_GATEWAY")
# Nothing that a request can do may make a process log one of these.
_BUGS: Final = ("Failed to detach", "Exception while exporting", "could not be exported")


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that runs. `client` makes the callers' spans, which are exported like those of any process."""

    triton: RealTriton
    sink: OtlpSink
    client: TracerProvider
    stack: Stack
    exported: Mapping[str, object]
    settings: Mapping[str, object]

    @property
    def port(self) -> int:
        """Of the gateway."""
        return self.stack.gateway.port

    @contextmanager
    def another_stack(self, folder: Path, **settings: object) -> Iterator[Stack]:
        """Run one more service and gateway, to be ended by the test."""
        with _clean_stack(folder, self.exported, **self.settings, **settings) as running:
            yield running


@contextmanager
def running_site(folder: Path, **variables: str) -> Iterator[Site]:
    """Run everything for the length of the block; `variables` are service's and gateway's, without HEADRACE_."""
    with contextlib.ExitStack() as opened:
        sink = opened.enter_context(otlp_sink())
        rotel = opened.enter_context(running_rotel(folder, sink.endpoint))
        client = TracerProvider(resource=Resource({"service.name": CLIENT}), shutdown_on_exit=False)
        client.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(rotel.endpoint, insecure=True)))
        opened.callback(client.shutdown)
        # rate=0: Triton traces the requests that come with a context, and no others.
        tracing = ["mode=opentelemetry", "rate=0", "count=-1", "level=TIMESTAMPS"]
        tracing += [f"opentelemetry,url={rotel.traces_url}", "opentelemetry,bsp_schedule_delay=50"]
        arguments = [f"--trace-config={setting}" for setting in tracing]
        triton = opened.enter_context(running_triton(folder, "scripted", *arguments))
        models = folder / "models.toml"
        models.write_text(
            "".join(_MODEL.format(id=name, limits=limits, url=triton.url) for name, limits in MODELS.items())
        )
        exported = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": rotel.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        }
        exported |= {f"{of}_{name}": value for name, value in variables.items() for of in _PREFIXES}
        # An engine that was killed is found again within this.
        settings: dict[str, object] = {"models_file": models, "health_interval_s": 1}
        running = opened.enter_context(_clean_stack(folder, exported, **settings))
        yield Site(triton, sink, client, running, exported, settings)


@contextmanager
def _clean_stack(folder: Path, exported: Mapping[str, object], **settings: object) -> Iterator[Stack]:
    with stack(folder, both=exported, **settings) as running:
        yield running
    for process in (running.service, running.gateway):
        for sign in _BUGS:
            assert sign not in process.output(), f"{process.name}: {sign}"


class Caller:
    """A request's caller, with a span of its own."""

    def __init__(self, site: Site, *, is_sampled: bool = True) -> None:
        self.span = site.client.get_tracer("test").start_span("ask", kind=SpanKind.CLIENT)
        self.trace_id = format_trace_id(self.span.get_span_context().trace_id)
        self.headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(self.headers, set_span_in_context(self.span))
        if not is_sampled:
            self.headers["traceparent"] = self.headers["traceparent"][:-2] + "00"


def chat(model: str = "wide", script: str = "token_ms=1", tokens: int = 5) -> dict[str, Any]:
    """Return a request; `script` is what the engine is to do."""
    return {"model": model, "messages": [{"role": "user", "content": script}], "max_tokens": tokens}


def tree(model: str, *leaves: tuple[str, str]) -> set[tuple[str, str]]:
    """Return the spans of our processes for one request over HTTP."""
    return {(GATEWAY, HTTP), (GATEWAY, RPC), (SERVICE, RPC), (SERVICE, f"chat {model}"), *leaves}


async def ask(site: Site, caller: Caller, body: dict[str, Any], **headers: str) -> list[str]:
    """Stream one to its end, and return its events."""
    async with open_stream(site.port, body, headers=caller.headers | headers) as stream:
        return await stream.rest()


async def spans_of(
    site: Site, trace_id: str, places: set[tuple[str, str]], timeout_s: float = 10
) -> dict[tuple[str, str], Span]:
    """Wait for the spans of one trace that are at `places`, and return all of it but what lies within Triton."""
    found: dict[tuple[str, str], Span] = {}

    def are_there() -> bool:
        mine = [s for s in of_trace(site, trace_id) if s.source != TRITON or s.raw.name == "InferRequest"]
        found.update({(span.source, span.raw.name): span for span in mine})
        assert len(found) == len(mine), f"twice the same: {sorted((span.source, span.raw.name) for span in mine)}"
        return places <= found.keys()

    with contextlib.suppress(TimeoutError, AssertionError):
        await eventually(are_there, timeout_s)
    assert are_there(), f"{sorted(places - found.keys())} did not come in {timeout_s} s"
    return found


def of_trace(site: Site, trace_id: str, *sources: str) -> list[Span]:
    """Return what has come of a trace, from all processes or from some."""
    spans = [span for span in tuple(site.sink.spans) if span.raw.trace_id.hex() == trace_id]
    return [span for span in spans if not sources or span.source in sources]


async def through_all(site: Site) -> tuple[Caller, dict[tuple[str, str], Span]]:
    """Ask until a trace has come from every process, and return its spans.

    On a machine with far too much to do Triton's own have failed to come, though it had the context: then another
    request is made. Ours have to come each time.
    """
    for _ in range(3):
        caller = Caller(site)
        assert (await ask(site, caller, chat()))[-1] == "[DONE]"
        caller.span.end()
        spans = await spans_of(site, caller.trace_id, {(CLIENT, "ask"), *tree("wide", *PHASES)})
        with contextlib.suppress(AssertionError):
            return caller, await spans_of(site, caller.trace_id, spans.keys() | {(TRITON, "InferRequest")}, 5)
    raise AssertionError("no spans of Triton's own")
