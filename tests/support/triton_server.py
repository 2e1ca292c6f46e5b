"""A real Triton on the CPU for a test session, or a skip that says why there is none.

Each is started at its first use: with the real model, or with the scripted
engine, whose delays and faults are exact; with the models of one contract, or
with those of all of them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import free_ports

__all__ = [
    "ALL_SLOTS",
    "SCRIPTED_SLOTS",
    "RealTriton",
    "all_scripted",
    "llama_triton",
    "running_all_scripted",
    "running_triton",
    "scripted_triton",
]

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
SERVE = ROOT / "scripts" / "triton" / "serve"
# Making the environment takes about a minute the first time.
SETUP_S = 600
READY_S = 60
STARTS = 4
LLAMA_SLOTS = 4
SCRIPTED_SLOTS = 16
ALL_SLOTS = 64
EXIT_UNSUPPORTED = 69


@dataclass(slots=True)
class RealTriton:
    """A running server: its gRPC address, its process and the engine's event log. `start` starts it once more."""

    url: str
    process: subprocess.Popen[bytes]
    event_log: Path
    ready_s: float
    start: Callable[[], subprocess.Popen[bytes]]

    @property
    def has_died(self) -> bool:
        """True if its process has ended, which nobody here asked it to do."""
        return self.process.poll() is not None

    def dies_within(self, seconds: float) -> bool:
        """Return whether it has died, or does so within so many seconds: the script around it takes a moment to end."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def revive(self) -> None:
        """Start it again at the same address, if it has died."""
        if self.has_died:
            self.process = self.start()

    def events(self, request_id: str) -> list[dict[str, Any]]:
        """Return what the engine did for one request so far; `t` is time.monotonic()."""
        return [line for line in self._lines() if line["id"] == request_id]

    def child_of(self, request_id: str) -> str:
        """Return the id that tensorrt_llm_bls gave its engine request for a request."""
        return next(str(line["child"]) for line in self.events(request_id) if line["event"] == "call")

    def running(self) -> int:
        """Return how many generations the engine has begun and not ended."""
        kinds = [line["event"] for line in self._lines()]
        return kinds.count("start") - kinds.count("end")

    def _lines(self) -> list[dict[str, Any]]:
        # A line that is being written has no end yet.
        text = self.event_log.read_text() if self.event_log.exists() else ""
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    def children(self) -> list[int]:
        """Return the pids of tritonserver and of its models' processes, which are one process group."""
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]

    def stub_of(self, model: str) -> psutil.Process:
        """Return the process that runs a model's Python code."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            # A stub that was killed stays as a zombie until the server ends.
            if child.status() != psutil.STATUS_ZOMBIE and f"/{model}/1/model.py" in " ".join(child.cmdline()):
                return child
        raise AssertionError(f"no process runs {model}")


@pytest.fixture(scope="session")
def llama_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTriton]:
    """The models of every contract, with the sample model in llama.cpp: about 1.5 GB of memory."""
    folder = tmp_path_factory.mktemp("triton")
    with running_triton(folder, "llamacpp", contract="all", bls_instances="1") as server:
        yield server


@pytest.fixture(scope="session")
def scripted_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTriton]:
    """The repository of the ensemble with the scripted engine, and models that can be loaded again."""
    with running_triton(tmp_path_factory.mktemp("triton"), "scripted", *loadable(["*"])) as server:
        yield server


@pytest.fixture(scope="session")
def all_scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTriton]:
    """The models of every contract with the scripted engine, which can be loaded again."""
    with running_all_scripted(tmp_path_factory.mktemp("triton")) as server:
        yield server


@contextmanager
def running_all_scripted(
    folder: Path, slots: int = ALL_SLOTS, models: Sequence[str] = ("*",), **settings: str
) -> Iterator[RealTriton]:
    """Run a Triton with `models` of all contracts' repository and the scripted engine; they can be loaded again."""
    with running_triton(folder, "scripted", *loadable(models), contract="all", slots=slots, **settings) as server:
        yield server


def loadable(models: Sequence[str]) -> list[str]:
    """Return the arguments with which tritonserver loads these models, and others when it is asked to."""
    return ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models)]


@contextmanager
def running_triton(
    folder: Path,
    engine: str,
    *arguments: str,
    contract: str = "ensemble",
    slots: int | None = None,
    ports: list[int] | None = None,
    **settings: str,
) -> Iterator[RealTriton]:
    """Run a Triton for the length of the block.

    `ports` are gRPC, HTTP and metrics, free ones by default; `settings` are
    variables of scripts/triton/serve without HEADRACE_TRITON_, in small letters.
    """
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    if contract == "ensemble":
        # Nobody calls the BLS model there, whose instances are processes.
        environ["HEADRACE_TRITON_BLS_INSTANCES"] = "1"
    environ["HEADRACE_TRITON_SLOTS"] = str(slots or (LLAMA_SLOTS if engine == "llamacpp" else SCRIPTED_SLOTS))
    environ |= {f"HEADRACE_TRITON_{name.upper()}": value for name, value in settings.items()}
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
        f"--contract={contract}",
        f"--grpc-port={grpc_port}",
        f"--http-port={http_port}",
        f"--metrics-port={metrics_port}",
        f"--event-log={event_log}",
        "--exit-timeout-s=1",
        "--",
        *arguments,
    ]

    def start() -> subprocess.Popen[bytes]:
        return _start_until_ready(command, environ, log, http_port)

    started_s = time.monotonic()
    server = RealTriton(f"127.0.0.1:{grpc_port}", start(), event_log, time.monotonic() - started_s, start)
    try:
        yield server
    finally:
        _end(server.process)


def _start_until_ready(
    command: list[str], environ: dict[str, str], log: Path, http_port: int
) -> subprocess.Popen[bytes]:
    """Return a server that is ready. One that ends before is started again: serve itself mends only some of that."""
    for start in range(1, STARTS + 1):
        process = _started(command, environ, log)
        try:
            if _is_ready(process, http_port):
                return process
        except BaseException:
            _end(process)
            raise
        if process.poll() is None:
            _end(process)
            why = f"was not ready after {READY_S} s"
            break
        why = f"ended with {process.returncode} before it was ready"
        logger.warning("Triton %s (start %d of %d); its log: %s", why, start, STARTS, log)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    pytest.fail(f"Triton {why} (start {start} of {STARTS}); the end of its log:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it without ceremony: in order it takes two seconds. A second signal is the script's to end it at once."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(0.05)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def _started(command: list[str], environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)


def _is_ready(process: subprocess.Popen[bytes], http_port: int) -> bool:
    """Wait until the server is ready; False if it ended before, or takes too long."""
    url = f"http://127.0.0.1:{http_port}/v2/health/ready"
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    return False
