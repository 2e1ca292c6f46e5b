"""What scripts/triton/serve does with a server that aborts while it starts; a stand-in for its binary."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Process, clean_environment, free_ports, wait_until

# Counts its starts in a file. The first ones end as they are told: before they are ready, or having said so once.
STAND_IN = """\
import os, pathlib, resource, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
starts, aborts, how = pathlib.Path(os.environ["STARTS"]), int(os.environ["ABORTS"]), os.environ["HOW"]
starts.open("a").write(".")
count = len(starts.read_text())
if count <= aborts and how == "abort":
    os.abort()
if count <= aborts and how == "leave":
    sys.exit(1)
port = next(int(a.partition("=")[2]) for a in sys.argv if a.startswith("--http-port="))

class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        self.wfile.flush()
        if count <= aborts and how == "abort_later":
            os.abort()

HTTPServer(("127.0.0.1", port), Ready).serve_forever()
"""
# `serve` but for the set-up of the environment, which the stand-in does not need.
DRIVER = """\
import argparse, pathlib, sys

sys.path.insert(0, {scripts!r})
import environment, server

environment.server_binary = lambda: pathlib.Path({binary!r})
environment.RUN = pathlib.Path({run!r})
options = argparse.Namespace(
    contract="vllm", bls_instances=4, grpc_port=1, http_port={port}, metrics_port=2, exit_timeout_s=1,
    engine="scripted", gguf="", event_log="", triton=[],
)
sys.exit(server.serve(options))
"""


class Serve:
    """The script with the stand-in, running or ended."""

    def __init__(self, folder: Path, *, aborts: int, how: str = "abort") -> None:
        self.starts = folder / "starts"
        binary = folder / "tritonserver"
        binary.write_text(f"#!{sys.executable}\n{STAND_IN}")
        binary.chmod(0o755)
        (self.port,) = free_ports(1)
        code = DRIVER.format(
            scripts=str(ROOT / "scripts" / "triton"), binary=str(binary), run=str(folder), port=self.port
        )
        self.log = folder / "log"
        with self.log.open("wb") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", code],
                env=clean_environment(STARTS=str(self.starts), ABORTS=str(aborts), HOW=how),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.process = Process("serve", self.popen, self.log, self.port)

    async def ended(self) -> int:
        return await self.process.ended(20)

    async def ready(self) -> None:
        await wait_until(f"http://127.0.0.1:{self.port}/v2/health/ready", 200, 20)

    def count(self) -> int:
        return len(self.starts.read_text())


@pytest.fixture
def serves(tmp_path: Path) -> Iterator[list[Serve]]:
    running: list[Serve] = []
    yield running
    for serve in running:
        if serve.popen.poll() is None:
            serve.popen.send_signal(signal.SIGTERM)
            serve.popen.wait(10)


async def test_a_server_that_aborts_before_it_is_ready_is_started_again_and_says_so(
    serves: list[Serve], tmp_path: Path
) -> None:
    serve = Serve(tmp_path, aborts=2)
    serves.append(serve)
    await serve.ready()
    serve.popen.send_signal(signal.SIGTERM)
    assert await serve.ended() == 0
    assert serve.count() == 3
    output = serve.process.output()
    assert "aborted before it was ready (start 1 of 4); starting it again" in output
    assert "aborted before it was ready (start 2 of 4); starting it again" in output


async def test_a_server_that_always_aborts_is_given_up(serves: list[Serve], tmp_path: Path) -> None:
    serve = Serve(tmp_path, aborts=99)
    serves.append(serve)
    assert await serve.ended() == 128 + signal.SIGABRT
    assert serve.count() == 4
    assert "(start 4 of 4); giving up" in serve.process.output()


async def test_a_server_that_leaves_by_itself_has_said_why_and_is_not_started_again(
    serves: list[Serve], tmp_path: Path
) -> None:
    serve = Serve(tmp_path, aborts=99, how="leave")
    serves.append(serve)
    assert await serve.ended() == 1
    assert serve.count() == 1


async def test_a_server_that_aborts_once_it_was_ready_is_not_started_again(serves: list[Serve], tmp_path: Path) -> None:
    serve = Serve(tmp_path, aborts=99, how="abort_later")
    serves.append(serve)
    assert await serve.ended() == 128 + signal.SIGABRT
    assert serve.count() == 1
