"""Every snippet of the client's README runs."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.v1 import generation_pb2 as pb
from tests.support.fake_service import fake_service
from tests.support.service import running_service, simulated_model

README = (Path(__file__).parents[2] / "clients/python/README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^\$ ((?:headrace|cat) .*)$", README, re.MULTILINE)


async def run(address: str, folder: Path, *command: str) -> str:
    env = {**os.environ, "HEADRACE_TARGET": address}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, err.decode()
    return out.decode()


@asynccontextmanager
async def served(program: str) -> AsyncIterator[str]:
    """Yield the address of a service that has what `program` calls: the scripted one has no tokenizer."""
    if "tokenize" in program:
        async with running_service(simulated_model()) as service:
            yield f"127.0.0.1:{service.port}"
    else:
        async with fake_service() as fake:
            yield fake.address


def test_the_readme_has_snippets() -> None:
    assert (len(PROGRAMS), len(COMMANDS)) == (7, 8)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_of_the_readme_runs(program: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"")
    async with served(program) as address:
        program = program.replace("127.0.0.1:50051", address)
        program = program.replace("AsyncClient()", f"AsyncClient({address!r})")
        program = program.replace("generate_text(", f"generate_text(target={address!r}, prompt=")
        await run(address, tmp_path, sys.executable, "-W", "error", "-c", program)


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_of_the_readme_runs(command: str, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("The river")
    script = re.sub(r"\bheadrace\b", f"{shlex.quote(sys.executable)} -m headrace.cli", command, count=1)
    async with fake_service() as fake:
        fake.generations["gen-1"] = pb.GetGenerationResponse(state=pb.GENERATION_STATE_RUNNING)
        await run(fake.address, tmp_path, "sh", "-c", script)
