"""What tests of retained generations ask for, over gRPC."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import grpc

from headrace.v1 import generation_pb2 as gen
from tests.support.service import Failure, GenerateRequest, RunningService

__all__ = ["attached", "keyed", "refused"]


def keyed(prompt: str, key: str = "k1", **fields: Any) -> GenerateRequest:
    """Return a request with an idempotency key."""
    return GenerateRequest(model="sim", prompt=prompt, idempotency_key=key, **fields)


async def attached(service: RunningService, after: int = 0, **target: Any) -> list[gen.GenerateResponse]:
    """Return the events of a generation behind one; `target` names it."""
    metadata = target.pop("metadata", ())
    call = service.generation.AttachGeneration(
        gen.AttachGenerationRequest(after_sequence=after, **target), timeout=20, metadata=metadata
    )
    return [event async for event in call]


async def refused(awaitable: Awaitable[Any]) -> Failure:
    """Return the failure that a call ends with."""
    try:
        await awaitable
    except grpc.aio.AioRpcError as error:
        return Failure(error, 0)
    raise AssertionError("the call did not fail")
