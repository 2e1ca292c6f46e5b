"""The `headrace` command in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

__all__ = ["WAIT_S", "Done", "end", "read", "run", "start"]

WAIT_S = 30


@dataclass(frozen=True)
class Done:
    """How it ended: its exit code, and what it wrote to standard output and standard error."""

    code: int
    out: str
    err: str


async def start(address: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start the command against a service."""
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "HEADRACE_TARGET": address, "PYTHONUNBUFFERED": ""}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.cli", *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=env
    )


async def end(process: asyncio.subprocess.Process, stdin: str = "") -> Done:
    """Write the rest of its input and wait for its end."""
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), WAIT_S)
    assert process.returncode is not None
    assert "Traceback" not in err.decode()
    return Done(process.returncode, out.decode(), err.decode())


async def run(address: str, *arguments: str, stdin: str = "") -> Done:
    """Run the command to its end."""
    return await end(await start(address, *arguments), stdin)


async def read(process: asyncio.subprocess.Process, expected: str) -> None:
    """Wait for text on its standard output."""
    assert process.stdout is not None
    got = await asyncio.wait_for(process.stdout.readexactly(len(expected)), WAIT_S)
    assert got.decode() == expected
