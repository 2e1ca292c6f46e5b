"""Runs tritonserver in the foreground and leaves nothing behind."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from pathlib import Path
from types import FrameType

import environment
import machine
import repository

__all__ = ["serve"]

# Beyond the exit timeout the server can wait for open streams: then it is ended.
_GRACE_S = 5.0


def serve(options: argparse.Namespace) -> int:
    """Serve until the server ends or a signal arrives, and return the exit code.

    SIGTERM and SIGINT are passed on; a second one ends the server at once.
    Raises OSError when the model repository cannot be made.
    """
    with repository.model_repository(options.contract, options.bls_instances) as folder:
        return _serve(options, folder)


def _serve(options: argparse.Namespace, folder: Path) -> int:
    prefix = f"headrace_triton_{os.getpid()}_"
    process = subprocess.Popen(
        _command(options, folder, prefix),
        env=_environ(options),
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509  no thread runs yet
    )
    signals = 0

    def forward(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            print("triton: stopping", flush=True)
            process.send_signal(signal.SIGTERM)
            timer = threading.Timer(options.exit_timeout_s + _GRACE_S, _end_group, [process.pid])
            timer.daemon = True
            timer.start()
        else:
            _end_group(process.pid)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    print(
        f"triton: serving {options.contract}: gRPC on 127.0.0.1:{options.grpc_port}, "
        f"HTTP on 127.0.0.1:{options.http_port}",
        flush=True,
    )
    try:
        code = process.wait()
    finally:
        # A stub that hangs outlives its server.
        _end_group(process.pid)
        for region in Path("/dev/shm").glob(f"{prefix}*"):
            region.unlink()
    return 0 if signals else code


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
