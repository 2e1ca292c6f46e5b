"""A gateway that others can reach, and whether that is all right.

The gateway checks no credentials, so it cannot know whether anybody does. It asks as
a stranger would: a call without credentials that is answered shows that everybody
is served, and that is for the operator to say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final

from opentelemetry.context import Context

from gateway.config import GatewaySettings
from gateway.openai.errors import ApiError
from gateway.server import GatewayServer
from gateway.timeouts import Budget
from gateway.upstream import CallOptions, Upstream
from runtime.addresses import is_loopback

__all__ = ["serve_guarded"]

logger = logging.getLogger(__name__)

_ASK_S: Final = 2.0
_ASK_AGAIN_S: Final = 1.0
_REFUSALS: Final = (401, 403)
_OPEN: Final = (
    "others can reach %s, and the service at %s takes calls without credentials. Have the service check them "
    "(HEADRACE_KEYS_FILE or HEADRACE_JWT_ISSUER there), or listen on 127.0.0.1, or take the risk with "
    "HEADRACE_GATEWAY_ALLOW_INSECURE=true"
)


async def serve_guarded(server: GatewayServer, settings: GatewaySettings, *, ask_again_s: float = _ASK_AGAIN_S) -> int:
    """Serve, and return the exit code: 1 if the address can be reached from elsewhere and the service is open to all.

    A service that does not answer yet is asked again every `ask_again_s`, while requests
    are served: each of them it judges itself.
    """
    if is_loopback(settings.host):
        await server.serve()
        return 0
    if settings.allow_insecure:
        logger.warning("others can reach %s, and whether somebody checks who calls is not looked at", settings.host)
        await server.serve()
        return 0
    upstream = Upstream(settings)
    try:
        found = await _is_open(upstream)
        if found:
            logger.error(_OPEN, settings.host, settings.target)
            return 1
        logger.warning("others can reach %s, and HTTP is not encrypted here: put TLS in front", settings.host)
        if found is not None:
            await server.serve()
            return 0
        return await _serve_watched(server, upstream, settings, ask_again_s)
    finally:
        await upstream.close()


async def _serve_watched(
    server: GatewayServer, upstream: Upstream, settings: GatewaySettings, ask_again_s: float
) -> int:
    async def watch() -> bool:
        found = None
        while found is None:
            await asyncio.sleep(ask_again_s)
            found = await _is_open(upstream)
        if found:
            logger.error(_OPEN, settings.host, settings.target)
            server.stop()
            server.stop()  # at once: what runs was asked for by anybody
        return found

    watching = asyncio.create_task(watch())
    try:
        await server.serve()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return 1 if not watching.cancelled() and watching.result() else 0


async def _is_open(upstream: Upstream) -> bool | None:
    """Return whether the service answers who sends no credentials; None if it cannot be asked now."""
    budget = Budget.of(time.perf_counter(), _ASK_S, 0.0)
    try:
        await upstream.list_models(CallOptions(budget=budget, metadata=(), context=Context()))
    except ApiError as error:
        return False if error.http_status in _REFUSALS else None
    return True
