"""Serves a request by one call that no engine works for: its answer, unless the client leaves before."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

from gateway.exchange import client_left
from gateway.lifetime import Lifetime

__all__ = ["while_client_waits"]

T = TypeVar("T")


async def while_client_waits(request: Request, answer: Awaitable[T]) -> T:
    """Return the answer to a request whose body has been read. ApiError (499) if the client leaves: the call is over.

    Cancelling cancels the call.
    """
    async with Lifetime(request.receive, set()) as lifetime:
        result = await answer
        lifetime.finish()
    if lifetime.cause is not None:
        raise client_left("The client left before its answer was there.")
    return result
