"""A real nginx in front of a gateway, for the length of a test."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import ROOT, Process, process

__all__ = ["EXAMPLE", "bare", "example", "nginx"]

EXAMPLE: Final = ROOT / "deploy" / "nginx" / "headrace.conf"
# Read before the tests clear such variables away.
_IS_SKIPPED: Final = os.environ.get("HEADRACE_TEST_NGINX") == "skip"
_START_S: Final = 10.0
_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def example(port: int, gateway: int) -> str:
    """Return the example of deploy/nginx for these ports; nothing else in it is changed."""
    text = EXAMPLE.read_text()
    for there, here in (("server 127.0.0.1:8080 ", f"server 127.0.0.1:{gateway} "), ("listen 80;", f"listen {port};")):
        assert text.count(there) == 1, f"{EXAMPLE} has no single {there!r}"
        text = text.replace(there, here)
    return text


def bare(port: int, gateway: int, *lines: str) -> str:
    """Return the least that passes requests on, with nginx's defaults, buffering among them, and `lines`."""
    inside = "".join(f" {line}" for line in lines)
    return f"server {{ listen {port}; location / {{ proxy_pass http://127.0.0.1:{gateway};{inside} }} }}\n"


@contextmanager
def nginx(folder: Path, text: str, port: int) -> Iterator[Process]:
    """Run nginx with `text` in its http block until the end of this one; yields when it listens on `port`."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("nginx", path=path)
    if program is None:
        if _IS_SKIPPED:
            pytest.skip("HEADRACE_TEST_NGINX=skip, and there is no nginx")
        pytest.fail("there is no nginx; install it (Debian: apt-get install nginx), or set HEADRACE_TEST_NGINX=skip")
    (folder / "site.conf").write_text(text)
    temporary = " ".join(f"{name}_temp_path {folder}/{name};" for name in _TEMPORARY)
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr warn;\n"
        "events { worker_connections 256; }\n"
        f"http {{ access_log off; {temporary} include {folder}/site.conf; }}\n"
    )
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    with process("nginx", command, folder) as running:
        running.port = port
        _wait_until_it_listens(running)
        yield running
        assert running.end() == 0


def _wait_until_it_listens(running: Process) -> None:
    give_up_s = time.monotonic() + _START_S
    while True:
        assert running.is_running, f"nginx ended:\n{running.output()}"
        try:
            socket.create_connection(("127.0.0.1", running.port), 1).close()
        except OSError:
            assert time.monotonic() < give_up_s, f"nginx does not listen after {_START_S} s:\n{running.output()}"
            time.sleep(0.01)
        else:
            return
