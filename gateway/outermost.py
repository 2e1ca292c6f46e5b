"""The outermost layer of the application: every request and every response passes it.

Gives a request its id and its exchange, answers HEAD where GET is served, and
sees to it that a request is recorded once, when its response has ended or its
client has left. A plain ASGI middleware: of a stream it touches the first
message only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.exchange import Exchange, request_id_from
from gateway.http_protocol import ABORT, ARRIVED_S
from gateway.lifetime import EndCause
from gateway.openai.errors import internal
from gateway.telemetry import GatewayTelemetry

__all__ = ["OutermostLayer"]

logger = logging.getLogger(__name__)


class OutermostLayer:
    """ASGI middleware. While `is_draining` says so, connections are closed after their response."""

    def __init__(self, app: ASGIApp, telemetry: GatewayTelemetry, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._telemetry = telemetry
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        span, context = self._telemetry.start(scope, headers)
        extensions = scope.get("extensions", {})
        exchange = Exchange(
            began_s=extensions.get(ARRIVED_S, time.perf_counter()),
            request_id=request_id_from(headers),
            send=send,
            abort=extensions.get(ABORT),
            context=context,
        )
        # The server itself keeps bodies from a response to HEAD; it holds the
        # original scope.
        inner: Scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        exchange.put_into(inner)

        async def send_first(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                own = [(b"x-request-id", exchange.request_id.encode("ascii"))]
                if self._is_draining():
                    own.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        try:
            await self._app(inner, receive, send_first)
        except asyncio.CancelledError:
            # Only the end of the server cancels a request.
            exchange.outcome = EndCause.DRAINED.value
            raise
        except Exception:
            # Handlers answer what they expect; this is a bug, logged once, and the
            # caller has been told nothing of it but the status.
            exchange.fail(internal())
            logger.exception("a request failed", extra={"request_id": exchange.request_id})
            await exchange.cut()
        finally:
            if exchange.status is None and exchange.outcome == "completed":
                exchange.outcome = "client_cancelled"
            route = getattr(inner.get("route"), "path_format", None)
            self._telemetry.end(scope, exchange, span, route)
            exchange.let_go(inner)
