"""Between the framework and what stands in front of it: runs what a route leaves to be done behind it.

The framework wraps a request in two dozen coroutines and as many closures. While a
stream waits for its next token they would hold 10 KiB, and every event would pass them.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.exchange import exchange_of

__all__ = ["Handover"]


class Handover:
    """ASGI middleware around the framework: `Exchange.work`, if a route has set it, answers the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        if scope["type"] == "http" and (work := exchange_of(scope).work) is not None:
            await work(scope, receive, send)
