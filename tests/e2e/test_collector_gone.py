"""A collector that is not there, or takes nothing: no request is slower for it, and no process ends later."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.http_stream import open_stream
from tests.support.processes import refusing_port, stack
from tests.support.service import script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

GRACE_S: Final = 1.0
# What the end of the exporters may take beyond the grace.
MORE_S: Final = 5.0
REQUESTS: Final = 40


@contextmanager
def refusing() -> Iterator[str]:
    """A port on which nobody listens."""
    with refusing_port() as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def silent() -> Iterator[str]:
    """A port that takes every connection, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connections.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, name="silent collector", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for connection in connections:
                connection.close()


def chat(prompt: str, **members: Any) -> dict[str, Any]:
    return {"model": "simulator", "messages": [{"role": "user", "content": f"{prompt}\n"}], **members}


@pytest.mark.parametrize("collector", [refusing, silent])
async def test_a_collector_that_is_gone_holds_up_neither_requests_nor_the_end(collector: Any, tmp_path: Path) -> None:
    with collector() as endpoint:
        # Exported as soon as possible, and a small queue: both are full of what nobody takes.
        both = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            "OTEL_BSP_MAX_QUEUE_SIZE": "32",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16",
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
        }
        settings = {"backend": "simulator", "shutdown_grace_s": GRACE_S}
        with stack(tmp_path, both=both, front={"drain_grace_s": GRACE_S}, **settings) as running:
            took_s = []
            for _ in range(REQUESTS):
                began_s = time.monotonic()
                async with open_stream(running.gateway.port, chat(script(token_ms=0, output_tokens=5))) as stream:
                    events = await stream.rest()
                assert events[-1] == "[DONE]"
                took_s.append(time.monotonic() - began_s)
            # A busy machine makes some slow; a wait for the collector would make all of them.
            assert sorted(took_s)[REQUESTS // 2] < 0.05, took_s
            assert max(took_s) < 2, took_s
            request = chat(script(token_ms=20), max_tokens=4000)
            async with open_stream(running.gateway.port, request) as stream:
                await stream.until_text()
                for process in (running.gateway, running.service):
                    process.send(signal.SIGTERM)
                began_s = time.monotonic()
                events = await stream.rest()
                assert "draining" in events[-1]
            for process in (running.service, running.gateway):
                assert await process.ended() == 0
                assert time.monotonic() - began_s < GRACE_S + MORE_S, process.name
