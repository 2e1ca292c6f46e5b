"""The requests of `make trace-demo`: what each is like, how it is sent, and what its caller sees.

Each begins a trace: its first span is the caller's own, which no server can record. It knows nothing of processes and
viewers.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry import propagate, trace

__all__ = ["Caller", "Case", "Told", "send_all"]


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `what` is said of it in the viewer, in place of its prompt."""

    name: str
    what: str
    prompt: str = "Name three rivers."
    model: str = "default"
    max_tokens: int = 24
    timeout_ms: int | None = None
    leaves_after: int | None = None  # pieces of text


@dataclass(slots=True)
class Told:
    """What the caller saw of one request."""

    case: Case
    trace_id: str
    request_id: str = ""
    first_s: float | None = None
    end: str = "completed"

    @property
    def first(self) -> str:
        """When the first text came, for people."""
        return "none" if self.first_s is None else f"{1000 * self.first_s:.0f} ms"


LONG_PROMPT = "Say in one sentence what this is about.\n\n" + "Water is led to the mill in a channel. " * 90
WARM_UP = Case("the first one warms the engine up", "nothing to see here", max_tokens=2)
FAST = Case("a short question", "the engine is free, and the prompt short")
HOLDER = Case("a long answer", "it has the only slot for a while", "Count from one to one hundred.", max_tokens=100)
QUEUED = Case("a question behind it", "it waits for the slot that the long answer has")
CASES = [
    Case("a long prompt", "its 800 words are read before there is a token", LONG_PROMPT),
    Case("a client that leaves", "it closes the connection behind the fifth piece", max_tokens=400, leaves_after=5),
    Case("a deadline that passes", "the caller gives it 900 ms", max_tokens=2000, timeout_ms=900),
    Case("an engine that fails", "it breaks behind the fifth token", model="broken"),
]


class Caller:
    """Sends requests to the gateway on `port`, each in a trace of its own that begins here."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tracer = trace.get_tracer("headrace.trace_demo")

    def send(self, case: Case, on_first: Callable[[], None] = lambda: None) -> Told:
        """Send one and read its answer. `on_first` is called at the first text."""
        # The three attributes make the viewer's list readable; it shows two of them as columns.
        span = self._tracer.start_span(
            case.name,
            kind=trace.SpanKind.CLIENT,
            attributes={"openinference.span.kind": "CHAIN", "input.value": case.what},
        )
        told = Told(case, trace.format_trace_id(span.get_span_context().trace_id))
        headers = {"Content-Type": "application/json"}
        propagate.inject(headers, trace.set_span_in_context(span))
        try:
            self._exchange(case, headers, told, on_first)
        finally:
            span.set_attribute("output.value", f"{told.end}, first text: {told.first}")
            if told.end not in {"completed", "left"}:
                span.set_status(trace.StatusCode.ERROR, told.end)
            span.end()
        return told

    def _exchange(self, case: Case, headers: dict[str, str], told: Told, on_first: Callable[[], None]) -> None:
        if case.timeout_ms is not None:
            headers["Request-Timeout-Ms"] = str(case.timeout_ms)
        body = {
            "model": case.model,
            "messages": [{"role": "user", "content": case.prompt}],
            "max_tokens": case.max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        began_s, pieces = time.monotonic(), 0
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            told.request_id = answer.headers["x-request-id"]
            for event in _events(answer):
                if "error" in event:
                    told.end = str(event["error"]["code"])
                elif _text(event):
                    pieces += 1
                    if told.first_s is None:
                        told.first_s = time.monotonic() - began_s
                        on_first()
                if pieces == case.leaves_after:
                    told.end = "left"
                    return
        finally:
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield what the answer says: its events, or the one document of a refusal."""
    if answer.status != 200:
        yield json.loads(answer.read())
        return
    while line := answer.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def _text(event: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))


def send_all(caller: Caller) -> Iterator[Told]:
    """Send them in turn, and yield what was seen of each; of two the second has to wait for the first."""
    caller.send(WARM_UP)
    yield caller.send(FAST)
    begun = threading.Event()
    held: list[Told] = []
    holder = threading.Thread(target=lambda: held.append(caller.send(HOLDER, begun.set)), name="holder")
    holder.start()
    begun.wait(30)
    queued = caller.send(QUEUED)
    holder.join()
    yield from [*held, queued]
    for case in CASES:
        yield caller.send(case)
