"""A collector that nobody here wrote: Rotel, in Rust, as its wheel brings it. What passes it was good OTLP."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes import Process, clean_environment, free_ports, process

__all__ = ["Rotel", "running_rotel"]

_READY_S = 10.0


@dataclass(frozen=True, slots=True)
class Rotel:
    """Where it takes OTLP: over gRPC, and over HTTP for traces, which is all that Triton speaks."""

    endpoint: str
    traces_url: str
    process: Process


@contextmanager
def running_rotel(folder: Path, sink: str) -> Iterator[Rotel]:
    """Run one that hands everything on to `sink` over gRPC; a skip that says why where there is none."""
    grpc_port, http_port = free_ports(2)
    command = [
        str(_agent()),
        "start",
        f"--otlp-grpc-endpoint=127.0.0.1:{grpc_port}",
        f"--otlp-http-endpoint=127.0.0.1:{http_port}",
        "--exporter=otlp",
        "--otlp-exporter-protocol=grpc",
        f"--otlp-exporter-endpoint={sink}",
        "--batch-timeout=20ms",
        f"--pid-file={folder / 'rotel.pid'}",
        f"--log-file={folder / 'rotel-agent.log'}",
    ]
    # Nobody takes logs: without this it says so for each of its own lines.
    with process("rotel", command, folder, clean_environment(RUST_LOG="warn")) as running:
        _await_port(running, grpc_port)
        running.port = grpc_port
        yield Rotel(f"http://127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}/v1/traces", running)


def _agent() -> Path:
    found = find_spec("rotel")
    if found is None or found.origin is None:
        pytest.skip("rotel is not installed: it has wheels for Linux with glibc 2.34 or newer only")
    return Path(found.origin).with_name("rotel-agent")


def _await_port(running: Process, port: int) -> None:
    give_up_s = time.monotonic() + _READY_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert running.is_running, f"rotel ended with {running.popen.returncode}\n{running.recent()}"
        assert time.monotonic() < give_up_s, f"rotel did not listen in {_READY_S} s"
        time.sleep(0.02)
