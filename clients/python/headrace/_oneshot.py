"""One call for scripts that have no event loop."""

from __future__ import annotations

import asyncio
from typing import Unpack

from headrace._aio import DEFAULT_TARGET, AsyncClient
from headrace._channel import TlsConfig
from headrace._requests import RequestFields

__all__ = ["generate_text"]


def generate_text(
    prompt: str | None = None,
    /,
    *,
    target: str = DEFAULT_TARGET,
    tls: TlsConfig | None = None,
    timeout_s: float | None = None,
    **fields: Unpack[RequestFields],
) -> str:
    """Run one generation to its end and return its text.

    Without `model` the first ready one is taken. Takes the fields of
    `AsyncClient.generate`, raises what it raises, and RuntimeError inside a
    running event loop.
    """
    if _is_loop_running():  # before the coroutine exists, which would warn that nobody awaited it
        raise RuntimeError("generate_text cannot run inside a running event loop; use AsyncClient there")
    if prompt is not None:
        fields["prompt"] = prompt

    async def run() -> str:
        async with AsyncClient(target, tls=tls) as client:
            if not fields.get("model"):
                fields["model"] = await client.default_model()
            async with client.generate(timeout_s=timeout_s, **fields) as stream:
                return await stream.text()

    return asyncio.run(run())


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
