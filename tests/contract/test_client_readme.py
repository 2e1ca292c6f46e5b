"""Every snippet of the client's README runs."""

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.fake_service import FakeService, fake_service

README = (Path(__file__).parents[2] / "clients/python/README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^\$ ((?:headrace|cat) .*)$", README, re.MULTILINE)


async def run(fake: FakeService, folder: Path, *command: str) -> str:
    env = {**os.environ, "HEADRACE_TARGET": fake.address}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_the_readme_has_snippets() -> None:
    assert (len(PROGRAMS), len(COMMANDS)) == (4, 5)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_of_the_readme_runs(program: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"")
    async with fake_service() as fake:
        program = program.replace("127.0.0.1:50051", fake.address)
        program = program.replace("AsyncClient()", f"AsyncClient({fake.address!r})")
        program = program.replace("generate_text(", f"generate_text(target={fake.address!r}, prompt=")
        await run(fake, tmp_path, sys.executable, "-W", "error", "-c", program)


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_of_the_readme_runs(command: str, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("The river")
    script = re.sub(r"\bheadrace\b", f"{shlex.quote(sys.executable)} -m headrace.cli", command, count=1)
    async with fake_service() as fake:
        await run(fake, tmp_path, "sh", "-c", script)
