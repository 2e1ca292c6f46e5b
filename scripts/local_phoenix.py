"""A Phoenix on this machine, for `make trace-demo`: its environment, how it is started, and what it has received.

It listens on loopback, keeps its data where it is told, and asks nothing of the internet. scripts/trace_demo.py owns
its process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PROJECT", "NotInstalledError", "command", "environment", "install", "is_ready", "link", "span_names"]

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-phoenix"
PYTHON = VENV / "bin" / "python"
PINS = ROOT / "scripts" / "phoenix-requirements.txt"
CONSTRAINTS = ROOT / "scripts" / "phoenix-constraints.txt"
MADE = VENV / ".made"
# 650 MB when it is installed, and what pip keeps meanwhile.
NEEDED_BYTES = 1_500_000_000
PROJECT = "headrace"

# Its gRPC receiver listens on every address, and has no setting for it; this one is for this machine only.
_ON_LOOPBACK = """
import grpc.aio, sys

make = grpc.aio.server

def server(*arguments, **options):
    made = make(*arguments, **options)
    listen = made.add_insecure_port
    made.add_insecure_port = lambda address: listen(address.replace("[::]:", "127.0.0.1:"))
    return made

grpc.aio.server = server
from phoenix.server.main import main

sys.argv = ["phoenix", "serve"]
main()
"""


class NotInstalledError(Exception):
    """Phoenix cannot be had here; the text says why, and what to do."""


def install() -> None:
    """Make the environment, where it is not there or another version is asked for. Says what it is about to do."""
    wanted = PINS.read_text("utf-8") + CONSTRAINTS.read_text("utf-8")
    if MADE.exists() and MADE.read_text("utf-8") == wanted:
        return
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES:
        raise NotInstalledError(
            f"Phoenix needs about 650 MB, and {NEEDED_BYTES / 1e9:.1f} GB while it is installed; "
            f"there are {free / 1e9:.1f} GB free at {ROOT}"
        )
    print("Installing the trace viewer Phoenix into .venv-phoenix: about 650 MB, once, a minute or two ...", flush=True)
    MADE.unlink(missing_ok=True)
    _run([sys.executable, "-m", "venv", str(VENV)], "the environment cannot be made")
    (VENV / ".gitignore").write_text("*\n")
    # --no-compile: most of its files are never imported.
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    _run([*pip, "--requirement", str(PINS), "--constraint", str(CONSTRAINTS)], "pip cannot install arize-phoenix")
    MADE.write_text(wanted)


def _run(arguments: Sequence[str], failure: str) -> None:
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    if done.returncode:
        told = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise NotInstalledError("\n  ".join([f"{failure}:", *told]))


def command() -> list[str]:
    """Return the command that serves it."""
    return [str(PYTHON), "-c", _ON_LOOPBACK]


def environment(ui_port: int, otlp_port: int, folder: Path) -> dict[str, str]:
    """Return its settings: where it listens, where its data is, and that it is to stay at home."""
    return {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(ui_port),
        "PHOENIX_GRPC_PORT": str(otlp_port),
        "PHOENIX_WORKING_DIR": str(folder),
        # The first ends the pixels that tell its makers who uses it, the second fonts and downloads.
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        "PHOENIX_ALLOWED_SANDBOX_PROVIDERS": "NONE",
        "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
        "PHOENIX_ENABLE_MCP_SERVER": "false",
    }


def is_ready(ui_port: int) -> bool:
    """Return whether it answers."""
    return _get(ui_port, "/healthz") is not None


def link(ui_port: int, trace_id: str) -> str:
    """Return the address of a trace in its pages."""
    return f"http://127.0.0.1:{ui_port}/redirects/traces/{trace_id}"


def span_names(ui_port: int, trace_id: str) -> list[str]:
    """Return the names of the spans that it has of a trace so far."""
    body = _get(ui_port, f"/v1/projects/{PROJECT}/spans?trace_id={trace_id}&limit=100")
    return [] if body is None else [str(span["name"]) for span in json.loads(body)["data"]]


def _get(port: int, path: str) -> bytes | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bytes(answer.read())
    except (OSError, urllib.error.HTTPError):
        return None
