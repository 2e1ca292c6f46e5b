"""Runs service and gateway together, as `make run` does: one terminal, one Ctrl-C.

Settings come from HEADRACE_* variables, as for each process alone. If either
process ends, the other one is ended too. A signal lets running requests finish
within their grace; a second one ends both at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import FrameType

# Loading a large model takes minutes; the banner waits for it, the processes do not.
READY_POLL_S = 0.2
EXIT_POLL_S = 0.05
DEFAULT_GRACE_S = "30"
# prctl(2): the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG = 1
# After SIGTERM, what the processes' own grace needs, and a little more.
EXIT_SLACK_S = 10.0


def main() -> int:
    """Return 0 after a signal, 1 after two, else the exit code of the process that ended first."""
    signals = 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    taken = [f"{host}:{port}" for host, port in (_grpc(), _http()) if port != "0" and _is_taken(host, int(port))]
    if taken:
        # Else the banner would greet whoever else answers there.
        print(f"headrace: {' and '.join(taken)} already taken: is another one running?", file=sys.stderr)
        return 1
    # The gateway follows the service to where it listens, and has the same grace.
    os.environ.setdefault("HEADRACE_GATEWAY_TARGET", _reached(_grpc()))
    os.environ.setdefault(
        "HEADRACE_GATEWAY_DRAIN_GRACE_S", os.environ.get("HEADRACE_SHUTDOWN_GRACE_S", DEFAULT_GRACE_S)
    )
    # A session of its own each: Ctrl-C reaches this process alone, which then
    # stops the gateway first and the service after it.
    service, gateway = _start("service"), _start("gateway")
    is_ready = False
    code = 0
    while not signals:
        ended = next((process for process in (service, gateway) if process.poll() is not None), None)
        if ended is not None:
            code = ended.returncode if ended.returncode > 0 else 1
            how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"code {ended.returncode}"
            which, other = ("service", "gateway") if ended is service else ("gateway", "service")
            print(f"headrace: the {which} ended ({how}); stopping the {other}", file=sys.stderr)
            break
        if not is_ready and _is_ready():
            is_ready = True
            _banner()
        time.sleep(READY_POLL_S)
    front_s = _seconds("HEADRACE_GATEWAY_DRAIN_DELAY_S", "0") + _seconds(
        "HEADRACE_GATEWAY_DRAIN_GRACE_S", DEFAULT_GRACE_S
    )
    for process, grace_s in ((gateway, front_s), (service, _seconds("HEADRACE_SHUTDOWN_GRACE_S", DEFAULT_GRACE_S))):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        give_up_s = time.monotonic() + grace_s + EXIT_SLACK_S
        while process.poll() is None:
            if signals > 1 or time.monotonic() > give_up_s:
                process.kill()
                process.wait()
                code = code or 1
            time.sleep(EXIT_POLL_S)
    return code


def _seconds(name: str, default: str) -> float:
    try:
        return float(os.environ.get(name) or default)
    except ValueError:  # the processes say what is wrong with it
        return float(default)


def _start(module: str) -> subprocess.Popen[bytes]:
    # Unsafe beside threads only, and this process has none.
    return subprocess.Popen(
        [sys.executable, "-m", module],
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509
    )


def _end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is killed outright (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _grpc() -> tuple[str, str]:
    return os.environ.get("HEADRACE_HOST", "127.0.0.1"), os.environ.get("HEADRACE_GRPC_PORT", "50051")


def _http() -> tuple[str, str]:
    return os.environ.get("HEADRACE_GATEWAY_HOST", "127.0.0.1"), os.environ.get("HEADRACE_GATEWAY_PORT", "8080")


def _is_taken(host: str, port: int) -> bool:
    """Return whether the address cannot be listened on; False for what is no address, which the processes name."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    except (ValueError, OverflowError):
        return False
    return False


def _reached(address: tuple[str, str]) -> str:
    host, port = address
    return f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"


def _base_url() -> str:
    return f"http://{_reached(_http())}"


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"{_base_url()}/readyz", timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _banner() -> None:
    grpc = _reached(_grpc())
    target = "" if grpc == "127.0.0.1:50051" else f" --target {grpc}"
    print(
        f"""
Headrace is ready: gRPC on {grpc}, OpenAI-shaped HTTP on {_base_url()} (docs at /docs). Ctrl-C ends it.

  curl -N {_base_url()}/v1/chat/completions -H 'Content-Type: application/json' -d '{{
    "model": "{_first_model()}", "stream": true,
    "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  .venv/bin/headrace generate{target} 'The capital of France is' --max-tokens 8
""",
        flush=True,
    )


def _first_model() -> str:
    """Return a name that requests can use."""
    try:
        with urllib.request.urlopen(f"{_base_url()}/v1/models", timeout=2) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, LookupError):
        return "default"


if __name__ == "__main__":
    sys.exit(main())
