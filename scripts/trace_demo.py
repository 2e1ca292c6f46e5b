"""Requests that are fast, slow, queued, left, late and broken, and their traces in a viewer: `make trace-demo`.

It runs Phoenix, service and gateway, all on loopback, sends the requests over HTTP and prints for each one line with
the link to its trace. All of it ends with Ctrl-C, and nothing is kept. --once ends behind the last line.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import local_phoenix
from trace_requests import Caller, Told, send_all

from runtime import otel

ROOT = Path(__file__).resolve().parents[1]
START_S = 120.0
END_S = 20.0
# From the end of a request until its spans are in the viewer.
ARRIVAL_S = 15.0
PR_SET_PDEATHSIG = 1
LISTENS = {"service": r"serving on 127\.0\.0\.1:(\d+)", "gateway": r"running on http://127\.0\.0\.1:(\d+)"}

# One slot, so that a second request has to wait; and an engine that breaks, which no real one does when it is asked to.
MODELS = {
    "embedded": """
[[models]]
id = "gemma-3-270m"
aliases = ["default"]
backend = "llamacpp"
template = "gemma"
max_running = 1

[models.options]
slots = 1
""",
    "simulator": """
[[models]]
id = "simulated"
aliases = ["default"]
backend = "simulator"
template = "chatml"
max_running = 1

[models.options]
prefill_ms = 30
prefill_ms_per_token = 1
token_ms = 12
""",
}
BROKEN = """
[[models]]
id = "broken"
backend = "simulator"
template = "chatml"

[models.options]
token_ms = 20
fault = "error"
fault_after = 5
"""


class DemoError(Exception):
    """The demo cannot run; the text says why."""


@dataclass(slots=True)
class Child:
    """One process of the demo; its output goes to a file."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    def output(self) -> str:
        return self.log.read_text("utf-8", errors="replace")


@contextlib.contextmanager
def running(name: str, command: list[str], folder: Path, **variables: str) -> Iterator[Child]:
    """Run a process for the length of the block, and no longer, whatever becomes of this one."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "OTEL_", "PHOENIX_"))}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=kept | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which ends them in turn
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - no threads yet
        )
    try:
        yield Child(name, log, process)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_for(child: Child, check: Callable[[], Any]) -> Any:
    """Return what `check` returns once it is something; DemoError if the process ends, or takes too long."""
    give_up_s = time.monotonic() + START_S
    while not (found := check()):
        if child.process.poll() is not None or time.monotonic() > give_up_s:
            how = "ended" if child.process.poll() is not None else f"was not ready in {START_S:.0f} s"
            tail = "\n  ".join(child.output().splitlines()[-8:])
            raise DemoError(f"{child.name} {how}; the end of its log:\n  {tail}")
        time.sleep(0.1)
    return found


def port_of(child: Child) -> int:
    """Return the port that service or gateway took."""
    return int(wait_for(child, lambda: re.search(LISTENS[child.name], child.output()))[1])


def check_port(port: int, option: str) -> None:
    """Raise DemoError if somebody else listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DemoError(f"port {port}: {error.strerror}; choose another one with {option}") from None


def arrived(ui_port: int, told: Told) -> int:
    """Return how many spans of a trace the viewer has, once it has those of all processes."""
    give_up_s = time.monotonic() + ARRIVAL_S
    while True:
        names = local_phoenix.span_names(ui_port, told.trace_id)
        if told.case.name in names and names.count("headrace.v1.GenerationService/Generate") == 2:
            return len(names)
        if time.monotonic() > give_up_s:
            raise DemoError(f"of {told.request_id} only {sorted(names)} came to the viewer in {ARRIVAL_S:.0f} s")
        time.sleep(0.1)


def demonstrate(options: argparse.Namespace, folder: Path, opened: contextlib.ExitStack) -> None:
    """Run everything, send the requests and print a line for each. What it opens is closed by `opened`."""
    exported = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{options.otlp_port}",
        "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={local_phoenix.PROJECT}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    models = folder / "models.toml"
    models.write_text(MODELS[options.backend] + BROKEN)
    variables = local_phoenix.environment(options.ui_port, options.otlp_port, folder)
    print("Starting Phoenix, service and gateway ...", flush=True)
    phoenix = opened.enter_context(running("phoenix", local_phoenix.command(), folder, **variables))
    of_service = {"HEADRACE_MODELS_FILE": str(models), "HEADRACE_GRPC_PORT": "0", "HEADRACE_SHUTDOWN_GRACE_S": "1"}
    service = opened.enter_context(
        running("service", [sys.executable, "-m", "service"], folder, **of_service, **exported)
    )
    of_gateway = {
        "HEADRACE_GATEWAY_PORT": "0",
        "HEADRACE_GATEWAY_TARGET": f"127.0.0.1:{port_of(service)}",
        "HEADRACE_GATEWAY_DRAIN_GRACE_S": "1",
    }
    gateway = opened.enter_context(
        running("gateway", [sys.executable, "-m", "gateway"], folder, **of_gateway, **exported)
    )
    wait_for(phoenix, lambda: local_phoenix.is_ready(options.ui_port))
    port = port_of(gateway)
    os.environ.update(exported)
    telemetry = otel.configure("headrace-trace-demo", "0")
    print(f"\n{'':24}{'request id':30}{'first text':>12}  {'end':24}trace", flush=True)
    for told in send_all(Caller(port)):
        spans = arrived(options.ui_port, told)
        where = local_phoenix.link(options.ui_port, told.trace_id)
        print(
            f"{told.case.name:24}{told.request_id:30}{told.first:>12}  {told.end:24}{where} ({spans} spans)", flush=True
        )
    print(f"\nAll of them: http://127.0.0.1:{options.ui_port}/redirects/projects/{local_phoenix.PROJECT}")
    assert telemetry.tracers is not None
    if options.once:
        return
    print(f"Your own requests get traces too: http://127.0.0.1:{port}/v1 is the gateway. Ctrl-C ends it.", flush=True)
    while phoenix.process.poll() is None:
        time.sleep(0.2)
    raise DemoError(f"Phoenix ended with {phoenix.process.returncode}")


def main() -> int:
    """Return 0 behind the last line or Ctrl-C, 1 if something is missing."""
    parser = argparse.ArgumentParser(prog="trace_demo", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=sorted(MODELS), default="embedded", help="what generates")
    parser.add_argument("--ui-port", type=int, default=6006, help="of Phoenix's pages (%(default)s)")
    parser.add_argument("--otlp-port", type=int, default=4317, help="of Phoenix's receiver (%(default)s)")
    parser.add_argument("--once", action="store_true", help="end behind the last line")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        check_port(options.ui_port, "--ui-port")
        check_port(options.otlp_port, "--otlp-port")
        local_phoenix.install()
        with tempfile.TemporaryDirectory(prefix="headrace-traces-") as folder, contextlib.ExitStack() as opened:
            demonstrate(options, Path(folder), opened)
    except (DemoError, local_phoenix.NotInstalledError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
