"""Runs service and gateway together, as `make run` does: one terminal, one Ctrl-C.

With --contract it runs the CPU Triton of deploy/triton too. Settings come from
HEADRACE_* variables, as for each process alone. If one process ends, the others
are ended too. A signal lets running requests finish within their grace; a
second one ends everything at once.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import local_triton

# Loading a large model takes minutes; the banner waits for it, the processes do not.
READY_POLL_S = 0.2
EXIT_POLL_S = 0.05
DEFAULT_GRACE_S = "30"
# prctl(2): the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG = 1
# Of service and gateway, unless they are told others.
METRICS_PORTS = ("9464", "9465")
# Two signals that come together are one to who gets them.
SIGNAL_GAP_S = 0.2
# After a second signal, until it is killed.
LAST_WORDS_S = 4.0
# After SIGTERM, what the processes' own grace needs, and a little more.
EXIT_SLACK_S = 10.0


@dataclass(slots=True)
class Child:
    """One process. `grace_s` is what it may take to end after SIGTERM."""

    name: str
    command: list[str]
    grace_s: float
    log: Path | None = None
    process: subprocess.Popen[bytes] = field(init=False)
    signals: int = 0

    def start(self) -> None:
        """Start it, in a session of its own: Ctrl-C reaches this process alone, which then ends them in turn."""
        with contextlib.ExitStack() as opened:
            output = None if self.log is None else opened.enter_context(self.log.open("wb"))
            # Unsafe beside threads only, and this process has none.
            self.process = subprocess.Popen(
                self.command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509
            )

    def ask_to_end(self) -> None:
        """Send it a signal; the second one asks for the end at once."""
        self.signals += 1
        self.process.send_signal(signal.SIGTERM)

    def end_at_once(self) -> None:
        """End it without grace, and wait: by its second signal, so that it can tell its callers; else by a kill."""
        while self.signals < 2 and not self._has_ended(SIGNAL_GAP_S):
            self.ask_to_end()
        # A Triton behind a script needs longer, and a kill would leave it behind.
        if not self._has_ended(LAST_WORDS_S if self.log is None else EXIT_SLACK_S):
            self.process.kill()
            self.process.wait()

    def _has_ended(self, within_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        return self.process.poll() is not None


def main() -> int:
    """Return 0 after a signal, 1 after two, else the exit code of the process that ended first."""
    contract = _contract()
    if contract is None:
        return 2
    signals = 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    # `headrace top` and Prometheus read there.
    for port, variable in zip(METRICS_PORTS, ("HEADRACE_METRICS_PORT", "HEADRACE_GATEWAY_METRICS_PORT"), strict=True):
        os.environ.setdefault(variable, port)
    addresses = [_grpc(), _http(), *_admin(), *_metrics(), *(local_triton.addresses() if contract else ())]
    ports = Counter(port for _, port in addresses if port != "0")
    if twice := [port for port, times in ports.items() if times > 1]:
        print(f"headrace: port {' and '.join(twice)} is set for two of the listeners", file=sys.stderr)
        return 2
    taken = [f"{host}:{port}" for host, port in addresses if port != "0" and _is_taken(host, port)]
    if taken:
        # Else the banner would greet whoever else answers there.
        print(f"headrace: {' and '.join(taken)} already taken: is another one running?", file=sys.stderr)
        return 1
    # The gateway follows the service to where it listens, and has the same grace.
    os.environ.setdefault("HEADRACE_GATEWAY_TARGET", _reached(_grpc()))
    os.environ.setdefault(
        "HEADRACE_GATEWAY_DRAIN_GRACE_S", os.environ.get("HEADRACE_SHUTDOWN_GRACE_S", DEFAULT_GRACE_S)
    )
    if contract:
        code = local_triton.make_ready(contract)
        if code or signals:
            return code
        os.environ.update(local_triton.service_settings(contract))
        print(
            f"headrace: starting a Triton that serves {contract}; it writes to {_shown(local_triton.LOG)}", flush=True
        )
    children = _children(contract)
    for child in children:
        child.start()
    code = _watch(children, lambda: signals > 0)
    for child in reversed(children):
        if child.process.poll() is None:
            child.ask_to_end()
        give_up_s = time.monotonic() + child.grace_s + EXIT_SLACK_S
        while child.process.poll() is None:
            if signals > 1 or time.monotonic() > give_up_s:
                child.end_at_once()
                code = code or 1
            time.sleep(EXIT_POLL_S)
    return code


def _contract() -> str | None:
    """Return the contract of the command line, "" without one, None where it cannot be served (and say why)."""
    parser = argparse.ArgumentParser(prog="serve", description=__doc__.splitlines()[0])
    parser.add_argument("--contract", default="", help=f"start a Triton too: {', '.join(local_triton.CONTRACTS)}")
    contract: str = parser.parse_args().contract
    problem = ""
    if contract and contract not in local_triton.CONTRACTS:
        problem = f"unknown contract {contract!r}; there are {', '.join(local_triton.CONTRACTS)}"
    elif contract and os.environ.get("HEADRACE_BACKEND", "triton") != "triton":
        problem = f"a contract is for BACKEND=triton, not for {os.environ['HEADRACE_BACKEND']}"
    if problem:
        print(f"headrace: {problem}", file=sys.stderr)
        return None
    return contract


def _children(contract: str) -> list[Child]:
    """Return the processes in the order in which they are started; they end in the opposite one."""
    back_s = _seconds("HEADRACE_DRAIN_DELAY_S", "0") + _seconds("HEADRACE_SHUTDOWN_GRACE_S", DEFAULT_GRACE_S)
    front_s = _seconds("HEADRACE_GATEWAY_DRAIN_DELAY_S", "0") + _seconds(
        "HEADRACE_GATEWAY_DRAIN_GRACE_S", DEFAULT_GRACE_S
    )
    children = [
        Child("service", [sys.executable, "-m", "service"], back_s),
        Child("gateway", [sys.executable, "-m", "gateway"], front_s),
    ]
    if contract:
        triton = Child("Triton", local_triton.command(contract), local_triton.grace_s(), local_triton.LOG)
        children.insert(0, triton)
    return children


def _watch(children: list[Child], is_asked_to_end: Callable[[], bool]) -> int:
    """Wait for a signal or the end of a child, and return the exit code. Greets when all is ready."""
    is_ready = False
    while not is_asked_to_end():
        ended = next((child for child in children if child.process.poll() is not None), None)
        if ended is not None:
            code = ended.process.returncode
            how = f"signal {-code}" if code < 0 else f"code {code}"
            others = " and ".join(f"the {child.name}" for child in children if child is not ended)
            where = "" if ended.log is None else f"; see {_shown(ended.log)}"
            print(f"headrace: the {ended.name} ended ({how}){where}; stopping {others}", file=sys.stderr)
            return code if code > 0 else 1
        if not is_ready and _is_ready():
            is_ready = True
            _banner()
        time.sleep(READY_POLL_S)
    return 0


def _seconds(name: str, default: str) -> float:
    try:
        return float(os.environ.get(name) or default)
    except ValueError:  # the processes say what is wrong with it
        return float(default)


def _end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is killed outright (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _grpc() -> tuple[str, str]:
    return os.environ.get("HEADRACE_HOST", "127.0.0.1"), os.environ.get("HEADRACE_GRPC_PORT", "50051")


def _http() -> tuple[str, str]:
    return os.environ.get("HEADRACE_GATEWAY_HOST", "127.0.0.1"), os.environ.get("HEADRACE_GATEWAY_PORT", "8080")


def _admin() -> list[tuple[str, str]]:
    port = os.environ.get("HEADRACE_ADMIN_PORT")
    return [(os.environ.get("HEADRACE_ADMIN_HOST", "127.0.0.1"), port)] if port else []


def _metrics() -> list[tuple[str, str]]:
    return [
        (os.environ.get(f"HEADRACE_{process}METRICS_HOST", "127.0.0.1"), port)
        for process in ("", "GATEWAY_")
        if (port := os.environ.get(f"HEADRACE_{process}METRICS_PORT"))
    ]


def _is_taken(host: str, port: str) -> bool:
    """Return whether the address cannot be listened on; False for what is no address, which the processes name."""
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    except (ValueError, OverflowError):
        return False
    return False


def _shown(path: Path) -> str:
    return os.path.relpath(path)


def _reached(address: tuple[str, str]) -> str:
    host, port = address
    return f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"


def _base_url() -> str:
    return f"http://{_reached(_http())}"


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"{_base_url()}/readyz", timeout=1) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):  # nobody, or who speaks no HTTP
        return False


def _banner() -> None:
    grpc = _reached(_grpc())
    target = "" if grpc == "127.0.0.1:50051" else f" --target {grpc}"
    print(
        f"""
Headrace is ready: gRPC on {grpc}, OpenAI-shaped HTTP on {_base_url()} (docs at /docs). Ctrl-C ends it.

  curl -N {_base_url()}/v1/chat/completions -H 'Content-Type: application/json' {_credentials()}-d '{{
    "model": "{_model()}", "stream": true,
    "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  .venv/bin/headrace generate{target} 'The capital of France is' --max-tokens 8
""",
        flush=True,
    )


def _credentials() -> str:
    """Return what a curl line needs besides, where the service asks who calls; `headrace` reads the same variable."""
    if os.environ.get("HEADRACE_KEYS_FILE") or os.environ.get("HEADRACE_JWT_ISSUER"):
        return '-H "Authorization: Bearer $HEADRACE_API_KEY" '
    return ""


def _model() -> str:
    """Return a name that requests can use: the one that the documentation uses, where it exists or nobody tells."""
    if _credentials():
        return "default"
    for path, name in (("models/default", "default"), ("models", None)):
        try:
            with urllib.request.urlopen(f"{_base_url()}/v1/{path}", timeout=2) as response:
                return name or str(json.load(response)["data"][0]["id"])
        except (OSError, ValueError, LookupError):
            continue
    return "default"


if __name__ == "__main__":
    sys.exit(main())
