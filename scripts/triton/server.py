"""Runs tritonserver in the foreground and leaves nothing behind."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import http.client
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import FrameType

import environment
import machine
import repository

__all__ = ["serve"]

# Beyond the exit timeout the server can wait for open streams: then it is ended.
_GRACE_S = 5.0
# While it starts the processes of its models on a busy machine, 2.51 now and then aborts in the memory that it
# shares with them ("boost::interprocess::lock_exception"). What it does after this time is no part of its start.
_STARTS = 4
_START_S = 120.0
_LOOK_EVERY_S = 0.25


def serve(options: argparse.Namespace) -> int:
    """Serve until the server ends or a signal arrives, and return the exit code.

    SIGTERM and SIGINT are passed on; a second one ends the server at once. A
    server that aborts before it was ready is started again, four times in all.
    Raises OSError when the model repository cannot be made.
    """
    with repository.model_repository(options.contract, options.bls_instances) as folder:
        server = _Server(options, folder)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.forward)
        print(
            f"triton: serving {options.contract}: gRPC on 127.0.0.1:{options.grpc_port}, "
            f"HTTP on 127.0.0.1:{options.http_port}",
            flush=True,
        )
        for start in range(1, _STARTS + 1):
            code = server.run()
            if server.signals:
                return 0
            if server.was_ready or code != -signal.SIGABRT:
                break
            left = "starting it again" if start < _STARTS else "giving up"
            print(f"triton: the server aborted before it was ready (start {start} of {_STARTS}); {left}", flush=True)
        # As a shell says it, where a signal ended it.
        return code if code >= 0 else 128 - code


class _Server:
    """One tritonserver after the other, until one is asked to stop. Signals come in the thread that calls `run`."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._shm_prefix = f"headrace_triton_{os.getpid()}_"
        self._command = _command(options, folder, self._shm_prefix)
        self._process: subprocess.Popen[bytes] | None = None
        self.signals = 0
        self.was_ready = False

    def forward(self, _number: int, _frame: FrameType | None) -> None:
        """Pass a signal on; the second one ends the server at once."""
        self.signals += 1
        if self.signals == 1:
            print("triton: stopping", flush=True)
        if self._process is None:
            return
        if self.signals > 1:
            _end_group(self._process.pid)
            return
        self._process.send_signal(signal.SIGTERM)
        timer = threading.Timer(self._options.exit_timeout_s + _GRACE_S, _end_group, [self._process.pid])
        timer.daemon = True
        timer.start()

    def run(self) -> int:
        """Start it, wait for its end, leave nothing behind, and return its exit code: minus a signal's number."""
        process = subprocess.Popen(
            self._command,
            env=_environ(self._options),
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  no thread runs yet
        )
        self._process = process
        if self.signals:  # it came while the process was made
            _end_group(process.pid)
        try:
            self._wait_until_ready(process)
            return process.wait()
        finally:
            self._process = None
            # A stub that hangs outlives its server.
            _end_group(process.pid)
            for region in Path("/dev/shm").glob(f"{self._shm_prefix}*"):
                region.unlink(missing_ok=True)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Return once it is ready, has ended, or has had the time for it."""
        give_up_s = time.monotonic() + _START_S
        while not self.was_ready and process.poll() is None:
            self.was_ready = time.monotonic() > give_up_s or self._is_ready()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_EVERY_S)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._options.http_port, timeout=1)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _command(options: argparse.Namespace, folder: Path, shm_prefix: str) -> list[str]:
    return [
        str(environment.server_binary()),
        f"--model-repository={folder}",
        f"--backend-directory={environment.backend_folder()}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={options.grpc_port}",
        "--http-address=127.0.0.1",
        f"--http-port={options.http_port}",
        "--metrics-address=127.0.0.1",
        f"--metrics-port={options.metrics_port}",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        # The configurations here are complete. To complete one, each model's code is run in a process of its own first:
        # twice the processes and three times the start, and so more of the aborts.
        "--disable-auto-complete-config",
        *options.triton,
    ]


def _environ(options: argparse.Namespace) -> dict[str, str]:
    environ = dict(os.environ)
    # The stub embeds Python, ignores PYTHONPATH and asks the first python3 on PATH for its packages.
    environ["PATH"] = f"{environment.VENV / 'bin'}{os.pathsep}{environ.get('PATH', '')}"
    environ.pop("PYTHONHOME", None)
    folder = machine.libpython_folder()
    if folder:
        environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [folder, environ.get("LD_LIBRARY_PATH", "")]))
    environ["HEADRACE_TRITON_ENGINE"] = options.engine
    if options.gguf:
        environ["HEADRACE_TRITON_GGUF"] = str(Path(options.gguf).resolve())
    if options.event_log:
        environ["HEADRACE_TRITON_EVENT_LOG"] = str(Path(options.event_log).resolve())
    return environ


def _end_with_parent() -> None:
    """Have the kernel end the server when this process dies without a word (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
