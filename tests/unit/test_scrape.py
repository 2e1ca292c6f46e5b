"""The port for Prometheus: what it shows, and that nobody can hold it up."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from runtime.otel import scrape
from runtime.otel.scrape import MetricsPort


@pytest.fixture
def port() -> Iterator[MetricsPort]:
    registry = CollectorRegistry()
    Counter("asked", "How often.", registry=registry).inc(3)
    opened = MetricsPort("127.0.0.1", 0, registry)
    yield opened
    opened.close()


def read(port: MetricsPort, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port.port}{path}", timeout=5) as response:
        return str(response.read().decode())


def test_metrics_are_read_there_and_nothing_else(port: MetricsPort) -> None:
    assert "asked_total 3.0" in read(port)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        read(port, "/debug")
    assert "asked_total 3.0" in read(port)


def test_many_readers_at_once_each_get_a_whole_page(port: MetricsPort) -> None:
    pages: list[str] = []
    threads = [threading.Thread(target=lambda: pages.append(read(port))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(pages) == 8
    assert all("asked_total 3.0" in page for page in pages)


def test_clients_who_say_nothing_are_bounded_and_let_go(port: MetricsPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape._Handler, "timeout", 0.3)
    idle = [socket.create_connection(("127.0.0.1", port.port), timeout=5) for _ in range(scrape._MAX_CONNECTIONS + 4)]
    began_s = time.monotonic()
    # Those above the bound are closed at once, the others when their time is over; then it answers again.
    for connection in idle:
        connection.recv(1)
        connection.close()
    assert time.monotonic() - began_s < 5
    assert "asked_total 3.0" in read(port)


def test_a_port_that_is_taken_is_an_error(port: MetricsPort) -> None:
    with pytest.raises(OSError, match="in use"):
        MetricsPort("127.0.0.1", port.port, CollectorRegistry())
