"""What goes with a call to the service that no engine works for: its deadline, and what is handed on of its request."""

from __future__ import annotations

from starlette.requests import Request

from gateway.config import GatewaySettings
from gateway.exchange import exchange_of
from gateway.timeouts import timeout_s
from gateway.upstream import CallOptions, metadata_from

__all__ = ["short_call_options"]


def short_call_options(request: Request, settings: GatewaySettings) -> CallOptions:
    """Return the options of the call that serves `request`. ApiError for a deadline that is none."""
    limit_s = timeout_s(request.headers, default_s=settings.unary_timeout_s, max_s=settings.max_timeout_s)
    exchange = exchange_of(request.scope)
    metadata = metadata_from(request.headers, exchange.request_id)
    return CallOptions(timeout_s=limit_s, metadata=metadata, context=exchange.context)
