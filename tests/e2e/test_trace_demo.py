"""`make trace-demo`: what is in its way is said in a line, and its requests are in the viewer when it says so."""

from __future__ import annotations

import re
import socket
import subprocess
from typing import Final

import pytest

from tests.support.processes import PYTHON, ROOT, clean_environment, free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

DEMO: Final = ROOT / "scripts" / "trace_demo.py"
INSTALLED: Final = ROOT / ".venv-phoenix" / ".made"
LINES: Final = {
    "a short question": "completed",
    "a long answer": "completed",
    "a question behind it": "completed",
    "a long prompt": "completed",
    "a client that leaves": "left",
    "a deadline that passes": "deadline_exceeded",
    "an engine that fails": "backend_error",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, str(DEMO), "--once", "--backend=simulator", *arguments]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=200, cwd=ROOT)


@pytest.mark.parametrize("option", ["--ui-port", "--otlp-port"])
def test_a_port_that_is_taken_is_named_with_its_option(option: str) -> None:
    ports = dict(zip(("--ui-port", "--otlp-port"), map(str, free_ports(2)), strict=True))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports[option] = str(taken.getsockname()[1])
        done = run(*(f"{name}={port}" for name, port in ports.items()))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"headrace: port {ports[option]}: Address already in use; choose another one with {option}\n"


@pytest.mark.skipif(not INSTALLED.exists(), reason="Phoenix is not installed: make trace-demo does that (650 MB)")
def test_every_request_is_a_trace_in_the_viewer_and_nothing_is_left_running() -> None:
    ui, otlp = free_ports(2)
    done = run(f"--ui-port={ui}", f"--otlp-port={otlp}")
    assert done.returncode == 0, done.stderr
    for name, end in LINES.items():
        line = next(line for line in done.stdout.splitlines() if line.startswith(name))
        spans = 8 if name == "a question behind it" else 7  # the one more is its wait
        pattern = rf"req_\w+ +\d+ ms  {end} +http://127\.0\.0\.1:{ui}/redirects/traces/[0-9a-f]{{32}} \({spans} spans\)"
        assert re.search(pattern, line), line
    for port in (ui, otlp):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
