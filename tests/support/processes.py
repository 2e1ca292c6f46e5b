"""Service, gateway and `scripts/serve.py` as a user starts them: subprocesses, on free ports.

Every process gets an environment without settings of the person who runs the
tests, writes into a file that a failing test shows, and is ended by its pid.
It knows nothing of what the processes say but their log lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

__all__ = [
    "PYTHON",
    "ROOT",
    "STARTED",
    "Process",
    "Stack",
    "clean_environment",
    "clean_log",
    "free_ports",
    "gateway",
    "process",
    "refusing_port",
    "service",
    "stack",
    "state_of",
    "wait_until",
]

ROOT: Final = Path(__file__).resolve().parents[2]
# Runs the servers: this interpreter, unless the tests run in an environment that has no servers.
PYTHON: Final = os.environ.get("SERVER_PYTHON") or sys.executable
# The embedded model loads in 5 to 7 s on two idle cores.
START_S: Final = 60.0
# After SIGTERM; every process here gets a grace of about a second.
END_S: Final = 15.0
_POLL_S: Final = 0.01
_SERVING: Final = re.compile(r"serving on 127\.0\.0\.1:(\d+)")
_RUNNING: Final = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
# Nothing that a user can do may make a process log one of these ...
_BUGS: Final = ("Traceback (most recent call last)", "was never retrieved", "was never awaited", "Fatal Python error")
# ... but asking the simulator to crash, or a BLS model for an error, which it gives as a traceback of its own.
_ASKED_FOR: Final = ("scripted secret", "/tensorrt_llm_bls")

# What runs now, for whoever shows the logs of a failing test.
STARTED: Final[list[Process]] = []


def clean_environment(**variables: str) -> dict[str, str]:
    """Return this environment without its HEADRACE_* and OTEL_* variables, and with `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "OTEL_"))}
    return kept | variables


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now, for processes that have to be told one."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections, and that no other test is given meanwhile: bound, and never listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@dataclass(slots=True, eq=False)
class Process:
    """One running or ended process. `log` has its stdout and stderr together."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    port: int = 0
    shown_from: int = field(default=0, repr=False)

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        """Return everything that it wrote until now."""
        return self.log.read_text(errors="replace")

    def lines(self, **fields: Any) -> list[dict[str, Any]]:
        """Return the JSON lines of the log that have all of `fields`."""
        whole = self.output().rpartition("\n")[0].splitlines()
        found = [json.loads(line) for line in whole if line.startswith("{")]
        return [line for line in found if all(line.get(name) == value for name, value in fields.items())]

    async def line(self, *, timeout_s: float = 10.0, **fields: Any) -> dict[str, Any]:
        """Return the first log line that has all of `fields`; waits for it."""
        give_up_s = time.monotonic() + timeout_s
        while not (found := self.lines(**fields)):
            assert time.monotonic() < give_up_s, f"{self.name} logged no line with {fields} in {timeout_s} s"
            await asyncio.sleep(_POLL_S)
        return found[0]

    def wait_for(self, pattern: re.Pattern[str], timeout_s: float = START_S) -> re.Match[str]:
        """Return the first match in the output; fails if the process ends without one."""
        give_up_s = time.monotonic() + timeout_s
        while True:
            has_ended = not self.is_running
            if match := pattern.search(self.output()):
                return match
            assert not has_ended, f"{self.name} ended with {self.popen.returncode}"
            assert time.monotonic() < give_up_s, f"{self.name} did not write {pattern.pattern!r} in {timeout_s} s"
            time.sleep(_POLL_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.is_running:
            self.popen.send_signal(number)

    async def ended(self, timeout_s: float = END_S) -> int:
        """Return the exit code; waits for it without blocking the loop."""
        return await asyncio.to_thread(self.popen.wait, timeout_s)

    def end(self) -> int:
        """Ask it to end, wait, and return the exit code. Killed and failed if it takes longer than END_S."""
        self.send(signal.SIGTERM)
        try:
            return self.popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(5)
            pytest.fail(f"{self.name} did not end {END_S:.0f} s after SIGTERM\n{self.recent()}")

    def recent(self) -> str:
        """Return what it wrote since the test began, at most the last 60 lines."""
        return "\n".join(self.output()[self.shown_from :].splitlines()[-60:])


@contextmanager
def process(
    name: str, command: list[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run `command` for the length of the block; it has to survive until then or be ended by the test."""
    number = sum(1 for _ in folder.glob(f"{name}*.log"))
    log = folder / f"{name}{number}.log"
    with log.open("wb") as output:
        popen = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment or clean_environment()),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal of the test run is for pytest alone.
            start_new_session=True,
        )
    running = Process(name, popen, log)
    STARTED.append(running)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def service(folder: Path, *, port: int = 0, **settings: object) -> Iterator[Process]:
    """Run `python -m service`; `settings` are its flags' variables without the prefix.

    Yields once it serves. At the end it must leave with 0, unless the test ended
    it by other means, and never have logged a bug.
    """
    variables = {"grpc_port": port, "shutdown_grace_s": 1, **settings}
    with _server("service", "HEADRACE_", variables, folder, _SERVING) as running:
        yield running


@contextmanager
def gateway(folder: Path, target: int, *, port: int = 0, **settings: object) -> Iterator[Process]:
    """Run `python -m gateway` towards the service on port `target`; like `service`."""
    variables = {"port": port, "target": f"127.0.0.1:{target}", "drain_grace_s": 1, **settings}
    with _server("gateway", "HEADRACE_GATEWAY_", variables, folder, _RUNNING) as running:
        yield running


@contextmanager
def _server(
    module: str, prefix: str, settings: Mapping[str, object], folder: Path, ready: re.Pattern[str]
) -> Iterator[Process]:
    given = {name if name.isupper() else prefix + name.upper(): str(value) for name, value in settings.items()}
    with process(module, [PYTHON, "-m", module], folder, clean_environment(**given)) as running:
        running.port = int(running.wait_for(ready)[1])
        yield running
        if running.is_running:
            assert running.end() == 0, f"{module} did not end well\n{running.recent()}"
    clean_log(running)


def clean_log(running: Process) -> None:
    """Fail if the process logged what only a bug makes it log."""
    output = "\n".join(line for line in running.output().splitlines() if not any(text in line for text in _ASKED_FOR))
    for sign in _BUGS:
        assert sign not in output, f"{running.name} logged a bug:\n{output[max(0, output.find(sign) - 500) :][:4000]}"


@dataclass(frozen=True, slots=True)
class Stack:
    """A service with a gateway in front."""

    service: Process
    gateway: Process

    @property
    def target(self) -> str:
        """gRPC target of the service."""
        return f"127.0.0.1:{self.service.port}"

    @property
    def url(self) -> str:
        """Base address of the gateway, without a trailing slash."""
        return f"http://127.0.0.1:{self.gateway.port}"


@contextmanager
def stack(
    folder: Path, *, both: Mapping[str, object] | None = None, front: Mapping[str, object] | None = None, **back: object
) -> Iterator[Stack]:
    """Run both. `back` are settings of the service, `front` of the gateway, `both` whole variables for each."""
    shared = both or {}
    with service(folder, **back, **shared) as inner, gateway(folder, inner.port, **(front or {}), **shared) as outer:
        yield Stack(inner, outer)


async def wait_until(url: str, status: int, timeout_s: float = 10.0) -> float:
    """Wait until a GET of `url` is answered with `status`; return the seconds that it took."""
    began_s = time.monotonic()
    while (seen := await state_of(url)) != status:
        assert time.monotonic() < began_s + timeout_s, f"{url} still says {seen} after {timeout_s} s, not {status}"
        await asyncio.sleep(_POLL_S)
    return time.monotonic() - began_s


async def state_of(url: str) -> int | None:
    """Return the status of a GET on 127.0.0.1; None if nobody answers."""
    port, path = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/.*)", url).groups()  # type: ignore[union-attr]
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
    except (ConnectionError, TimeoutError):
        return None
    return int(answer.split(b" ", 2)[1]) if answer else None
