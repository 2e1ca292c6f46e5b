"""What goes with the calls that serve a request: their time, and what is handed on of it."""

from __future__ import annotations

from starlette.requests import Request

from gateway.config import GatewaySettings
from gateway.exchange import exchange_of
from gateway.timeouts import Budget, time_limit_s, timeout_s
from gateway.upstream import CallOptions, metadata_from

__all__ = ["generation_options", "short_call_options"]


def generation_options(request: Request, settings: GatewaySettings) -> CallOptions:
    """Return the options of a generation. ApiError (400, 431) for a time that is none, or credentials too long."""
    return _options(request, settings, default_s=settings.default_timeout_s, soft_s=time_limit_s(request.headers))


def short_call_options(request: Request, settings: GatewaySettings) -> CallOptions:
    """Return the same for a call that no engine works for, which has a shorter time if the caller sets none."""
    return _options(request, settings, default_s=settings.unary_timeout_s)


def _options(
    request: Request, settings: GatewaySettings, *, default_s: float, soft_s: float | None = None
) -> CallOptions:
    exchange = exchange_of(request.scope)
    limit_s = timeout_s(request.headers, default_s=default_s, max_s=settings.max_timeout_s)
    return CallOptions(
        budget=Budget.of(exchange.began_s, limit_s, settings.deadline_margin_ms / 1000, soft_s),
        metadata=metadata_from(request.headers, exchange.request_id),
        context=exchange.context,
        trailers=exchange.trailers,
    )
