"""Reads small JSON documents from a file or over HTTP, for a thread that may block."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from runtime.addresses import is_loopback

__all__ = ["FetchError", "fetch_document", "url_problem"]

_MAX_BYTES: Final = 1024 * 1024
_PIECE_BYTES: Final = 64 * 1024


class FetchError(Exception):
    """There is no such document, or nobody answers; the text says which without what was answered."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keys come from where the operator said, and from nowhere that somebody there points to."""

    def redirect_request(self, *_: object) -> None:
        return None


# Plain HTTP is for this machine alone, where no proxy is asked.
_OPENERS: Final = {
    "https": urllib.request.build_opener(_NoRedirects),
    "http": urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({})),
}


def url_problem(text: str) -> str | None:
    """Return what is wrong with an address that keys are to come from; None if it is a good one."""
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        return "is no URL"
    if parts.username is not None or parts.password is not None:
        return "must not have a user name or password in it"
    if parts.scheme == "https" and host:
        return None
    if parts.scheme == "http" and is_loopback(host):
        return None
    return "must be an https URL, or an http one of this machine"


def fetch_document(place: str, limit_s: float) -> dict[str, Any]:
    """Return the JSON object at a URL, or in a file if `place` is none. Raises `FetchError`.

    Blocks for about `limit_s` at most.
    """
    data = _over_http(place, limit_s) if "://" in place else _from_file(Path(place))
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise FetchError(f"{place}: not JSON") from None
    if not isinstance(document, dict):
        raise FetchError(f"{place}: not a JSON object")
    return document


def _from_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise FetchError(f"{path}: {error.strerror}") from None


def _over_http(url: str, limit_s: float) -> bytes:
    give_up_s = time.monotonic() + limit_s
    request = urllib.request.Request(url, headers={"accept": "application/json", "user-agent": "headrace"})  # noqa: S310 - see url_problem
    data = bytearray()
    try:
        with _OPENERS[request.type].open(request, timeout=limit_s) as response:
            while piece := response.read1(_PIECE_BYTES):
                data += piece
                if len(data) > _MAX_BYTES:
                    raise FetchError(f"{url}: more than {_MAX_BYTES} bytes")
                if time.monotonic() > give_up_s:
                    raise FetchError(f"{url}: not read within {limit_s:g} s")
    except urllib.error.HTTPError as error:
        error.close()
        raise FetchError(f"{url}: HTTP {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise FetchError(f"{url}: {getattr(error, 'reason', None) or type(error).__name__}") from None
    return bytes(data)
