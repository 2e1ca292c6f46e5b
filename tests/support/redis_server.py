"""A real Redis on loopback, which a test may stop, freeze and start anew."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

__all__ = ["RedisServer", "redis_server"]

_START_S: Final = 10.0


class RedisServer:
    """One process that keeps nothing on disk; every start is empty."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([*command, str(self._folder)], stdout=log, stderr=log)
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"redis did not start: {(self._folder / 'redis.log').read_text()}")

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def flush(self) -> None:
        """Empty it, in the middle of its life."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(16).startswith(b"+OK")

    def freeze(self) -> None:
        """Let it take connections and bytes, and answer nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, with what has come meanwhile first."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def redis_server(folder: Path, *, is_started: bool = True) -> Iterator[RedisServer]:
    """Run a Redis for the length of the block; without the program the test is skipped, and says so."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("there is no redis-server; install it (Debian: apt-get install redis-server)")
    server = RedisServer(program, folder)
    if is_started:
        server.start()
    try:
        yield server
    finally:
        server.kill()
