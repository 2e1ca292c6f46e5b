"""The processes under test, and what they cost by the operating system's own count."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psutil

__all__ = ["Path", "clean_environment", "end", "free_ports", "running_path", "service_of", "wait_until_answered"]

START_TIMEOUT_S = 60.0
# After SIGTERM.
END_S = 20.0


@dataclass(slots=True)
class Path:
    """A running service and gateway."""

    service: psutil.Process
    gateway: psutil.Process
    http_port: int
    grpc_port: int
    admin_port: int
    metrics_ports: tuple[int, ...] = ()

    def cpu_s(self) -> tuple[float, float]:
        """Return user + system seconds of service and gateway so far."""
        return _cpu_s(self.service), _cpu_s(self.gateway)

    def rss_mb(self) -> dict[str, float]:
        """Return the resident memory of both, in MB (10^6 bytes)."""
        return {
            "service": round(self.service.memory_info().rss / 1e6, 1),
            "gateway": round(self.gateway.memory_info().rss / 1e6, 1),
        }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def running_path(variables: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Start service (simulator, no delay of its own) and gateway on free ports; end them with the block.

    `variables` are settings of either process, which win over those of the bench.
    """
    grpc_port, http_port, admin_port = free_ports(3)
    environment = clean_environment() | {
        "HEADRACE_BACKEND": "simulator",
        "HEADRACE_TEMPLATE": "chatml",
        "HEADRACE_GRPC_PORT": str(grpc_port),
        "HEADRACE_ADMIN_PORT": str(admin_port),
        "HEADRACE_SIMULATOR_TOKEN_MS": "0",
        "HEADRACE_LOG_LEVEL": "warning",
        "HEADRACE_SHUTDOWN_GRACE_S": "0",
        "HEADRACE_GATEWAY_PORT": str(http_port),
        "HEADRACE_GATEWAY_TARGET": f"127.0.0.1:{grpc_port}",
        "HEADRACE_GATEWAY_LOG_LEVEL": "warning",
        "HEADRACE_GATEWAY_DRAIN_GRACE_S": "0",
        **(variables or {}),
    }
    started = [
        subprocess.Popen([sys.executable, "-m", module], env=environment, start_new_session=True)
        for module in ("service", "gateway")
    ]
    try:
        wait_until_answered(f"http://127.0.0.1:{http_port}/readyz", started, START_TIMEOUT_S)
        service, gateway = (psutil.Process(process.pid) for process in started)
        ports = tuple(
            int(environment[name])
            for name in ("HEADRACE_METRICS_PORT", "HEADRACE_GATEWAY_METRICS_PORT")
            if name in environment
        )
        yield Path(service, gateway, http_port, grpc_port, admin_port, ports)
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def service_of(models: pathlib.Path, **variables: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a service of the models file on a free port, and return it with the port; it may not answer yet."""
    (port,) = free_ports(1)
    environment = clean_environment() | {
        "HEADRACE_MODELS_FILE": str(models),
        "HEADRACE_GRPC_PORT": str(port),
        "HEADRACE_LOG_LEVEL": "error",
        "HEADRACE_SHUTDOWN_GRACE_S": "0",
        **variables,
    }
    return subprocess.Popen([sys.executable, "-m", "service"], env=environment, start_new_session=True), port


def end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_S)


def clean_environment() -> dict[str, str]:
    """Return the environment without what would change a server that is measured."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "OTEL_"))}


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def wait_until_answered(url: str, processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    """Return when `url` answers with a success. SystemExit when a process ends or the time is over."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if any(process.poll() is not None for process in processes):
            raise SystemExit("bench: a process ended while it started; its log is above")
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"bench: not ready after {timeout_s:.0f} s")
