"""Runs service and gateway together, as `make run` does: one terminal, one Ctrl-C.

Settings come from HEADRACE_* variables, as for each process alone. If either
process ends, the other one is ended too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import FrameType

# Loading a large model takes minutes; the banner waits for it, the processes do not.
READY_POLL_S = 0.2
# After SIGTERM, what the processes' own grace needs, and a little more.
EXIT_SLACK_S = 10.0


def main() -> int:
    """Return 0 after a signal, else the exit code of the process that ended first."""
    grace_s = float(os.environ.get("HEADRACE_SHUTDOWN_GRACE_S", "30"))
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # The gateway follows the service to where it listens.
    os.environ.setdefault("HEADRACE_GATEWAY_TARGET", _grpc_address())
    # A session of its own each: Ctrl-C reaches this process alone, which then
    # stops the gateway first and the service after it.
    service = subprocess.Popen([sys.executable, "-m", "service"], start_new_session=True)
    gateway = subprocess.Popen([sys.executable, "-m", "gateway"], start_new_session=True)
    is_ready = False
    code = 0
    while not stopping:
        ended = next((process for process in (service, gateway) if process.poll() is not None), None)
        if ended is not None:
            code = ended.returncode or 1
            break
        if not is_ready and _is_ready():
            is_ready = True
            _banner()
        time.sleep(READY_POLL_S)
    for process in (gateway, service):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(grace_s + EXIT_SLACK_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = code or 1
    return code


def _base_url() -> str:
    host = os.environ.get("HEADRACE_GATEWAY_HOST", "127.0.0.1")
    return f"http://{host}:{os.environ.get('HEADRACE_GATEWAY_PORT', '8080')}"


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"{_base_url()}/readyz", timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _grpc_address() -> str:
    return f"{os.environ.get('HEADRACE_HOST', '127.0.0.1')}:{os.environ.get('HEADRACE_GRPC_PORT', '50051')}"


def _banner() -> None:
    print(
        f"""
Headrace is ready: gRPC on {_grpc_address()}, OpenAI-shaped HTTP on {_base_url()} (docs at /docs). Ctrl-C ends it.

  curl -N {_base_url()}/v1/chat/completions -H 'Content-Type: application/json' -d '{{
    "model": "default", "stream": true,
    "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  .venv/bin/headrace generate 'Q: What is the capital of Italy?\\nA:'
""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
