"""Pages of metrics as the service writes them, made to measure; and who serves what a test wants to be read."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

__all__ = ["MetricsPage", "PageServer", "serving_pages"]

TTFT = "gen_ai_server_time_to_first_token_seconds"


class MetricsPage:
    """A page of one process, built up sample by sample; `labels` of each are those of model `m` unless given."""

    def __init__(self, process: str = "host:1", model: str = "m") -> None:
        self._model = {"gen_ai_request_model": model}
        self._lines = ["# TYPE target_info gauge", f'target_info{{service_instance_id="{process}"}} 1']

    def add(self, name: str, value: float, kind: str = "counter", **labels: str) -> MetricsPage:
        """Add one sample."""
        told = ",".join(f'{label}="{text}"' for label, text in (self._model | labels).items())
        self._lines += [f"# TYPE {name} {kind}", f"{name}{{{told}}} {value}"]
        return self

    def load(
        self,
        *,
        ready: int = 1,
        running: int = 0,
        slots: int = 4,
        waiting: int = 0,
        oldest_s: float = 0,
        priority: str = "interactive",
    ) -> MetricsPage:
        """Add the gauges of a model."""
        self.add("headrace_server_model_ready", ready, "gauge", gen_ai_provider_name="p")
        for name, value in (("slots_used", running), ("slots_limit", slots), ("queue_size", waiting)):
            self.add(f"headrace_server_{name}", value, "gauge", headrace_priority=priority)
        return self.add("headrace_server_queue_age_seconds", oldest_s, "gauge", headrace_priority=priority)

    def ended(self, count: int, outcome: str = "completed", reason: str = "") -> MetricsPage:
        """Add how many interactive generations have ended in a way."""
        labels = {"headrace_stream_outcome": outcome, "headrace_error_reason": reason}
        return self.add("headrace_server_generations_total", count, headrace_priority="interactive", **labels)

    def ttft(self, *buckets: tuple[str, int], total: float = 0, priority: str = "interactive") -> MetricsPage:
        """Add the histogram of the time to first token, as counts by upper edge; the last one is +Inf."""
        labels = f'gen_ai_request_model="{self._model["gen_ai_request_model"]}",headrace_priority="{priority}"'
        self._lines.append(f"# TYPE {TTFT} histogram")
        self._lines += [f'{TTFT}_bucket{{{labels},le="{edge}"}} {count}' for edge, count in buckets]
        self._lines += [f"{TTFT}_count{{{labels}}} {buckets[-1][1]}", f"{TTFT}_sum{{{labels}}} {total}"]
        return self

    def text(self) -> str:
        """Return the page."""
        return "\n".join(self._lines) + "\n"


@dataclass(slots=True, eq=False)
class PageServer:
    """Answers every request with `page`, whose text may be made anew for each; with `raw` bytes if there are any.

    `heads` are the heads of the requests. `drip` follows an answer again and again.
    `is_down` cuts connections.
    """

    page: Callable[[], str] = lambda: ""
    raw: bytes | None = None
    drip: bytes = b""
    is_down: bool = False
    port: int = 0
    heads: list[str] = field(default_factory=list)
    answering: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a connection, in a task that is ended with the server."""
        task = asyncio.create_task(self._answer(reader, writer))
        self.answering.add(task)
        task.add_done_callback(self.answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                if not self.is_down:
                    writer.write(self.raw if self.raw is not None else whole(self.page()))
                    await writer.drain()
                while self.drip:
                    writer.write(self.drip)
                    await writer.drain()
                    await asyncio.sleep(0.05)
        finally:
            writer.close()


def whole(body: str, status: str = "200 OK") -> bytes:
    """Return an answer of HTTP."""
    content = body.encode()
    return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


@asynccontextmanager
async def serving_pages(
    page: Callable[[], str] = lambda: "", *, raw: bytes | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[PageServer]:
    """Serve pages for the length of the block."""
    pages = PageServer(page=page, raw=raw)
    server = await asyncio.start_server(pages.begin, "127.0.0.1", 0, ssl=tls)
    pages.port = server.sockets[0].getsockname()[1]
    try:
        yield pages
    finally:
        for task in pages.answering:
            task.cancel()
        await asyncio.gather(*pages.answering, return_exceptions=True)
        server.close()
        await server.wait_closed()
