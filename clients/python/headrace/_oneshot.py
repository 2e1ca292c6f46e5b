"""Single calls for scripts that have no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, Unpack

import grpc

from headrace._aio import DEFAULT_TARGET, AsyncClient
from headrace._channel import TlsConfig
from headrace._requests import RequestFields
from headrace._unary import CallMetadata
from headrace.errors import Cancelled
from headrace.v1 import generation_pb2 as pb

__all__ = ["cancel_generation", "generate_text", "get_generation"]

T = TypeVar("T")


def generate_text(
    prompt: str | None = None,
    /,
    *,
    target: str = DEFAULT_TARGET,
    tls: TlsConfig | None = None,
    metadata: CallMetadata = (),
    timeout_s: float | None = None,
    **fields: Unpack[RequestFields],
) -> str:
    """Run one generation to its end and return its text.

    Without `model` the first ready one is taken. Takes the fields of
    `AsyncClient.generate`, raises what it raises, and RuntimeError inside a
    running event loop. A generation that somebody stops with
    `cancel_generation` raises Cancelled: a text alone cannot tell that it is
    not the whole.
    """
    if prompt is not None:
        fields["prompt"] = prompt

    async def use(client: AsyncClient) -> str:
        if not fields.get("model"):
            fields["model"] = await client.default_model()
        async with client.generate(timeout_s=timeout_s, **fields) as stream:
            text = await stream.text()
            if stream.finish_reasons.get(0) == "CANCELLED":
                raise Cancelled(
                    f"generation {stream.generation_id} was stopped by CancelGeneration",
                    status=grpc.StatusCode.CANCELLED,
                )
            return text

    return _run("generate_text", use, target, tls, metadata)


def get_generation(
    generation_id: str,
    *,
    target: str = DEFAULT_TARGET,
    tls: TlsConfig | None = None,
    metadata: CallMetadata = (),
    timeout_s: float | None = None,
) -> pb.GetGenerationResponse:
    """Do what `AsyncClient.get_generation` does. Raises RuntimeError inside a running event loop."""

    async def use(client: AsyncClient) -> pb.GetGenerationResponse:
        return await client.get_generation(generation_id, timeout_s=timeout_s)

    return _run("get_generation", use, target, tls, metadata)


def cancel_generation(
    generation_id: str,
    *,
    target: str = DEFAULT_TARGET,
    tls: TlsConfig | None = None,
    metadata: CallMetadata = (),
    timeout_s: float | None = None,
) -> pb.CancelGenerationResponse:
    """Do what `AsyncClient.cancel_generation` does. Raises RuntimeError inside a running event loop."""

    async def use(client: AsyncClient) -> pb.CancelGenerationResponse:
        return await client.cancel_generation(generation_id, timeout_s=timeout_s)

    return _run("cancel_generation", use, target, tls, metadata)


def _run(
    name: str,
    use: Callable[[AsyncClient], Awaitable[T]],
    target: str,
    tls: TlsConfig | None,
    metadata: CallMetadata,
) -> T:
    if _is_loop_running():  # before a coroutine exists, which would warn that nobody awaited it
        raise RuntimeError(f"{name} cannot run inside a running event loop; use AsyncClient there")

    async def run() -> T:
        async with AsyncClient(target, tls=tls, metadata=metadata) as client:
            return await use(client)

    return asyncio.run(run())


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
