"""OpenAI's package for Node and Vercel's AI SDK: the files beside it under node/, each run by Node's test runner."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.clients.backends import ANSWER, ANSWER_TOKENS, MODEL, TOOLS_MODEL, Served
from tests.support.processes import clean_environment

NODE: Final = Path(__file__).parent / "node"
RUN_S: Final = 100
_COUNTS: Final = re.compile(r"^# (tests|pass|fail|cancelled|skipped) (\d+)$", re.MULTILINE)
pytestmark = pytest.mark.timeout(RUN_S + 20)


def told(served: Served) -> str:
    """Return what the files need to know, as they read it."""
    return json.dumps(
        {
            "name": served.name,
            "url": served.url,
            "model": MODEL,
            "toolsModel": TOOLS_MODEL,
            "answer": ANSWER,
            "answerTokens": ANSWER_TOKENS,
            "count": served.count,
            "prompt": served.prompt,
            "endless": served.endless,
            "abilities": [ability.name for ability in served.abilities],
        }
    )


async def passes(served: Served, file: str) -> None:
    """Run one file; every test in it has to pass, but for those that its backend cannot play."""
    process = await asyncio.create_subprocess_exec(
        "node",
        "--test",
        "--test-reporter=tap",
        file,
        cwd=NODE,
        env=clean_environment(SERVED=told(served), NODE_NO_WARNINGS="1"),
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
    counts = {name: int(number) for name, number in _COUNTS.findall(said)}
    assert process.returncode == 0, said
    assert counts["fail"] == counts["cancelled"] == 0, said
    assert counts["pass"] == counts["tests"] - counts["skipped"] > 0, said


async def left(served: Served, request_id: str) -> None:
    """Assert that a request which the client gave up was stopped in the service."""
    line = await served.stack.service.line(request_id=request_id, logger="headrace.request")
    assert (line["outcome"], line["status"]) == ("client_cancelled", "CANCELLED")
    assert line["output_tokens"] < 1000


async def test_openai_for_node(served: Served) -> None:
    await passes(served, "openai.test.mjs")
    for kind in ("left", "aborted"):
        await left(served, f"node-{kind}-{served.name}")


async def test_the_vercel_ai_sdk(served: Served) -> None:
    await passes(served, "ai_sdk.test.mjs")
    await left(served, f"ai-sdk-left-{served.name}")
