"""A real Triton on the CPU for a test session, or a skip that says why there is none.

Two of them, each started at its first use: one with the real model, and one
with the scripted engine, whose delays are exact.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import free_ports

__all__ = ["SCRIPTED_SLOTS", "RealTriton", "llama_triton", "running_triton", "scripted_triton"]

ROOT = Path(__file__).resolve().parents[2]
SERVE = ROOT / "scripts" / "triton" / "serve"
# Making the environment takes about a minute the first time.
SETUP_S = 600
READY_S = 60
SCRIPTED_SLOTS = 16
EXIT_UNSUPPORTED = 69


@dataclass(frozen=True, slots=True)
class RealTriton:
    """A running server: its gRPC address, its process and the engine's event log."""

    url: str
    process: subprocess.Popen[bytes]
    event_log: Path
    ready_s: float

    def events(self, request_id: str) -> list[dict[str, Any]]:
        """Return what the engine did for one request so far; `t` is time.monotonic()."""
        lines = map(json.loads, self.event_log.read_text().splitlines()) if self.event_log.exists() else iter(())
        return [line for line in lines if line["id"] == request_id]

    def running(self) -> int:
        """Return how many generations the engine has begun and not ended."""
        kinds = [json.loads(line)["event"] for line in self.event_log.read_text().splitlines()]
        return kinds.count("start") - kinds.count("end")

    def stub_of(self, model: str) -> psutil.Process:
        """Return the process that runs a model's Python code."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            # A stub that was killed stays as a zombie until the server ends.
            if child.status() != psutil.STATUS_ZOMBIE and f"/{model}/1/model.py" in " ".join(child.cmdline()):
                return child
        raise AssertionError(f"no process runs {model}")


@pytest.fixture(scope="session")
def llama_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTriton]:
    """The repository as it is served: llama.cpp with the sample model."""
    with running_triton(tmp_path_factory.mktemp("triton"), "llamacpp") as server:
        yield server


@pytest.fixture(scope="session")
def scripted_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTriton]:
    """The same repository with the scripted engine, and models that can be loaded again."""
    with running_triton(
        tmp_path_factory.mktemp("triton"), "scripted", "--model-control-mode=explicit", "--load-model=*"
    ) as server:
        yield server


@contextmanager
def running_triton(folder: Path, engine: str, *arguments: str, ports: list[int] | None = None) -> Iterator[RealTriton]:
    """Run a Triton for the length of the block; `ports` are gRPC, HTTP and metrics, free ones by default."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    environ["HEADRACE_TRITON_SLOTS"] = "4" if engine == "llamacpp" else str(SCRIPTED_SLOTS)
    setup = subprocess.run(
        [sys.executable, str(SERVE), "--setup-only", "--engine", engine],
        env=environ,
        capture_output=True,
        text=True,
        timeout=SETUP_S,
    )
    if setup.returncode == EXIT_UNSUPPORTED:
        pytest.skip(setup.stderr.strip())
    assert setup.returncode == 0, setup.stdout + setup.stderr
    grpc_port, http_port, metrics_port = ports or free_ports(3)
    log, event_log = folder / "server.log", folder / "events.jsonl"
    command = [
        sys.executable,
        str(SERVE),
        f"--engine={engine}",
        f"--grpc-port={grpc_port}",
        f"--http-port={http_port}",
        f"--metrics-port={metrics_port}",
        f"--event-log={event_log}",
        "--exit-timeout-s=1",
        "--",
        *arguments,
    ]
    started_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)
    try:
        _await_ready(process, f"http://127.0.0.1:{http_port}/v2/health/ready", log)
        yield RealTriton(f"127.0.0.1:{grpc_port}", process, event_log, time.monotonic() - started_s)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # a second one ends the server at once
            process.wait(5)


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    pytest.fail(f"Triton did not become ready in {READY_S} s; the end of its log:\n{tail}")
