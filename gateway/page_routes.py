"""The web page: its files, and the headers that keep it to them.

The files lie in `gateway/page`, are read once, and are sent as they are. It knows
nothing of what the page does: that is a client of the API like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from typing import Final, Self

from fastapi import FastAPI, Request
from starlette.responses import Response

from gateway.refusals import unknown_url

__all__ = ["Page", "add_page"]

_INDEX: Final = "index.html"
_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Everything from here and nothing from elsewhere; no script in the markup, and no text that becomes markup.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    # Kept, and asked for again each time, which costs a 304: the files of one version belong together.
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def _suffix(name: str) -> str:
    return PurePath(name).suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, name: str, body: bytes) -> Self:
        digest = hashlib.sha256(body).hexdigest()[:32]
        return cls(body=body, media_type=_MEDIA_TYPES[_suffix(name)], etag=f'"{digest}"')


class Page:
    """The files of the page, by name."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._files = {name: _File.of(name, body) for name, body in contents.items()}

    @classmethod
    def packaged(cls) -> Self:
        """Read the files of this package."""
        folder = files("gateway") / "page"
        return cls({item.name: item.read_bytes() for item in folder.iterdir() if _suffix(item.name) in _MEDIA_TYPES})

    def index(self, request: Request) -> Response | None:
        """Return the page to who asks for HTML, as browsers do; None to everybody else."""
        if "text/html" not in request.headers.get("accept", ""):
            return None
        response = self._response(request, self._files[_INDEX])
        response.headers["vary"] = "accept"
        return response

    def part(self, request: Request, name: str) -> Response:
        """Return a file that the page is made of. ApiError (404) if there is none of this name."""
        found = self._files.get(name)
        if found is None or name == _INDEX:  # whose addresses are relative to `/`
            raise unknown_url(request)
        return self._response(request, found)

    @staticmethod
    def _response(request: Request, file: _File) -> Response:
        headers = {**_HEADERS, "etag": file.etag}
        if _has(request.headers.get("if-none-match", ""), file.etag):
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)


def add_page(api: FastAPI, page: Page) -> None:
    """Register the route of the page's files; `/` is the application's own."""

    @api.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str, request: Request) -> Response:
        """Get a file of the web page."""
        return page.part(request, name)


def _has(if_none_match: str, etag: str) -> bool:
    """Return whether a client has this version; compared weakly (RFC 9110 13.1.2), as a proxy may have weakened it."""
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in known or "*" in known
