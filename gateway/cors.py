"""Which pages of other origins may call the gateway: the CORS protocol of the Fetch standard, by configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

__all__ = ["with_cors"]

# What a page may read of a response besides its body; the SDKs run in pages too.
_EXPOSED_HEADERS: Final = (
    "idempotent-replayed",
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "server-timing",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-should-retry",
)
# Browsers keep a preflight's answer at most this long.
_PREFLIGHT_AGE_S: Final = 7200


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return `app` behind the answers to preflights of `origins` (`*`: any); `app` itself if there are none.

    A preflight carries no credentials, so it is answered before anything asks
    for them. Credentials of the browser's own, such as cookies, are not allowed.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST", "OPTIONS"),
        # Answers with the names that were asked for, as `*` would leave out Authorization: the SDKs add headers with
        # every release.
        allow_headers=("*",),
        expose_headers=_EXPOSED_HEADERS,
        max_age=_PREFLIGHT_AGE_S,
    )
