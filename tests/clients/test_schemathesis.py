"""schemathesis against the published OpenAPI document: what the gateway answers is what its document says."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.clients.backends import Served
from tests.support.processes import clean_environment

FOLDER: Final = Path(__file__).parent / "schemathesis"
RUN_S: Final = 200


@pytest.mark.timeout(RUN_S + 20)
async def test_the_published_document_is_kept(simulated: Served, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        f"--config-file={FOLDER / 'schemathesis.toml'}",
        "run",
        f"{simulated.stack.url}/openapi.json",
        "--phases=examples,coverage",
        "--seed=1",
        "--workers=1",  # two threads rarely trip over hypothesis's own caches
        "--no-color",
        cwd=tmp_path,
        env=clean_environment(SCHEMATHESIS_HOOKS=str(FOLDER / "hooks.py")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RUN_S):
            said = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said
    assert "No issues found" in said, said
