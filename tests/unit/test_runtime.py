"""Logs that machines and people can read, and a telemetry end that keeps nobody waiting."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from runtime import logs, otel


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, uvicorn_level = root.handlers[:], root.level, logging.getLogger("uvicorn").level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(uvicorn_level)


def test_a_json_line_has_its_fields_and_a_time_that_orders(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logging.getLogger("a").info("hello %s", "you", extra={"request_id": "r1", "color_message": "x"})
    logging.getLogger("a").debug("not this one")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("Z")
    assert record == {"level": "INFO", "logger": "a", "message": "hello you", "request_id": "r1"}


def test_a_text_line_shows_the_fields_that_are_set(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logging.getLogger("a").info("hello", extra={"request_id": "r1", "reason": None})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("a: hello request_id=r1")


class Stuck:
    """A provider whose collector is gone."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def force_flush(self, timeout_ms: int) -> bool:
        self.release.wait(30)
        return False

    def shutdown(self) -> None:
        pass


async def test_a_collector_that_is_gone_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otel, "_FLUSH_TIMEOUT_MS", 100)
    stuck = Stuck()
    begin = time.monotonic()
    await otel.Telemetry(tracers=stuck).shutdown()  # type: ignore[arg-type]
    assert time.monotonic() - begin < 5
    assert "could not be exported in time" in caplog.text
    stuck.release.set()


def test_nothing_is_set_up_without_an_endpoint() -> None:
    assert otel.configure("x", "1") == otel.Telemetry()


def test_a_protocol_that_is_not_served_is_a_clear_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with pytest.raises(otel.TelemetryError, match="use grpc"):
        otel.configure("x", "1")


def test_an_exporter_that_is_not_there_is_a_clear_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    with pytest.raises(otel.TelemetryError, match="OTEL_METRICS_EXPORTER=console is not supported: use otlp or none"):
        otel.configure("x", "1")


def test_no_exporter_is_nothing_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "None")
    assert otel.configure("x", "1") == otel.Telemetry()
