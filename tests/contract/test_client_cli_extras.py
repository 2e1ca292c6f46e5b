"""What the command line draws, and what it gives a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.service import RunningService, service

__all__ = ["service"]

FAST = ("--runs", "2", "--long", "20", "--max-tokens", "4")


@pytest.mark.parametrize(("name", "begin"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml")])
async def test_ttft_is_drawn_beside_its_table(name: str, begin: bytes, service: RunningService, tmp_path: Path) -> None:
    path = tmp_path / name
    done = await run(f"127.0.0.1:{service.port}", "ttft", *FAST, "--json", "--plot", str(path))
    assert done.code == 0
    assert len(json.loads(done.out)["cases"]) == 2
    assert f"drawn to {path}" in done.err
    assert path.read_bytes().startswith(begin)


@pytest.mark.parametrize("name", ["out.gif", "no/such/folder/out.png"])
async def test_a_picture_that_cannot_be_written_is_said_before_anything_is_measured(name: str, tmp_path: Path) -> None:
    done = await run("127.0.0.1:1", "ttft", "--plot", str(tmp_path / name))
    assert done.code == 2
    assert "is no .png, .svg or .pdf in a folder that there is" in done.err.replace("\n", " ")


async def test_the_completion_of_a_shell_is_printed() -> None:
    done = await run("127.0.0.1:1", "completion", "bash")
    assert done.code == 0
    assert "_HEADRACE_COMPLETE=bash_complete" in done.out


@pytest.mark.parametrize(("words", "expected"), [("headrace do", "doctor"), ("headrace ttft --pl", "--plot")])
def test_commands_and_options_are_completed(words: str, expected: str) -> None:
    asked = {"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    completed = subprocess.run(
        [sys.executable, "-m", "headrace.cli"], env={**os.environ, **asked}, capture_output=True, text=True, timeout=30
    )
    assert f"plain,{expected}" in completed.stdout
