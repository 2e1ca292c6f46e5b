"""Reads pages of metrics: over HTTP, in threads, each wait with an end; and what stands on one, as values.

The text is read by prometheus_client's parser. This knows no name of a metric but
those by which a page is known to be Headrace's.
"""

from __future__ import annotations

import base64
import http.client
import io
import math
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

import click

from headrace._version import __version__
from headrace.cli._rates import Key

__all__ = ["Address", "Answer", "Page", "Poller", "ScrapeError", "page_of", "reader_of"]

MAX_BYTES: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_COUNTED: Final = frozenset({"counter", "histogram"})
_TARGET: Final = "target_info"
_OURS: Final = ("headrace_", "gen_ai_", "http_server_", "rpc_server_")
# Half a page would look like a process that has started anew.
_CUT: Final = "the page is cut off"


class ScrapeError(Exception):
    """A page could not be read; the text says why, in a few words."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a page is. `shown` is for people, and has no credentials."""

    shown: str
    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def parsed(cls, text: str) -> Address:
        """Return the address in a text; `http://` and `/metrics` may be left out. ValueError if it is none."""
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.scheme not in {"http", "https"} or not parts.hostname or any(c.isspace() or c < " " for c in text):
            raise ValueError(f"{text.rpartition('@')[2]!r} is no http or https URL")  # what stands before it is secret
        _ = parts.port  # ValueError if it is none
        account, _at, place = parts.netloc.rpartition("@")
        shown = urlunsplit((parts.scheme, place, parts.path.rstrip("/") or "/metrics", parts.query, ""))
        token = base64.b64encode(unquote(account).encode()).decode()
        return cls(shown, f"Basic {token}" if account else None)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, so that no proxy is asked."""
        host = urlsplit(self.shown).hostname or ""
        return host in {"localhost", "::1"} or host.startswith("127.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What stood on a page. `counts` only grow while a process lives; `process` names it where the page does."""

    counts: Mapping[Key, float]
    gauges: Mapping[Key, float]
    process: str | None = None


def page_of(text: str) -> Page:
    """Return what stands on a page of Prometheus text. ScrapeError if it is none, or not one of Headrace."""
    from prometheus_client.parser import text_fd_to_metric_families as families_of

    counts: dict[Key, float] = {}
    gauges: dict[Key, float] = {}
    process: str | None = None
    is_ours = False
    try:
        for family in families_of(io.StringIO(text)):
            into = counts if family.type in _COUNTED else gauges
            is_ours = is_ours or family.name.startswith(_OURS) or family.name == _TARGET
            for sample in family.samples:
                if sample.name == _TARGET:
                    process = sample.labels.get("service_instance_id") or None
                elif math.isfinite(sample.value):
                    # An empty label is none, for Prometheus too: the exporter adds one to a series once another has it.
                    labels = sorted(label for label in sample.labels.items() if label[1])
                    into[sample.name, tuple(labels)] = sample.value
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # what the parser raises on other texts
        raise ScrapeError("what is there is no Prometheus text") from error
    if not text.strip():
        raise ScrapeError("the page is empty")
    if not is_ours:
        raise ScrapeError("what is there has no metrics of Headrace")
    return Page(counts=counts, gauges=gauges, process=process)


def reader_of(tls: ssl.SSLContext, timeout_s: float) -> Callable[[Address], Page]:
    """Return what reads a page, in about `timeout_s` at most; it raises ScrapeError."""
    try:  # here, because it takes a tenth of a second, for which the other commands need not wait
        import prometheus_client.parser  # noqa: F401
    except ModuleNotFoundError:
        raise click.ClickException("prometheus-client is missing: pip install 'headrace[cli]'") from None
    direct = _opener(tls, urllib.request.ProxyHandler({}))
    by_environment = _opener(tls, urllib.request.ProxyHandler())

    def read(address: Address) -> Page:
        give_up_s = time.monotonic() + timeout_s
        request = urllib.request.Request(  # noqa: S310 - an Address is http or https
            address.shown, headers={"Accept": "text/plain;version=0.0.4", "User-Agent": f"headrace/{__version__}"}
        )
        if address.authorization:
            request.add_unredirected_header("Authorization", address.authorization)
        opener = direct if address.is_local else by_environment
        try:
            with opener.open(request, timeout=timeout_s) as response:
                body = _body(response, give_up_s)
        except urllib.error.HTTPError as error:
            error.close()
            raise ScrapeError(f"it answers HTTP {error.code}") from error
        except TimeoutError as error:
            raise ScrapeError(f"no answer within {timeout_s:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ScrapeError(_told(error, timeout_s)) from error
        page = page_of(body.decode(errors="replace"))
        if not body.endswith(b"\n"):  # every line of Prometheus text has its end
            raise ScrapeError(_CUT)
        return page

    return read


def _opener(tls: ssl.SSLContext, proxies: urllib.request.ProxyHandler) -> urllib.request.OpenerDirector:
    """Return an opener of http and https alone: urllib's own would follow a redirect to ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        proxies,
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=tls),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _body(response: http.client.HTTPResponse, give_up_s: float) -> bytes:
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            raise ScrapeError(f"the page has more than {MAX_BYTES // 1024**2} MB")
        if time.monotonic() > give_up_s:
            raise TimeoutError
    if response.length:
        raise ScrapeError(_CUT)
    return bytes(body)


def _told(error: Exception, timeout_s: float) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(cause, http.client.RemoteDisconnected):
        return "it closes the connection without an answer"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return "it does not speak TLS"
    if isinstance(cause, http.client.HTTPException | ValueError):
        return "it does not speak HTTP"
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return " ".join(text.split())[:200].lower() or "it cannot be reached"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one reading of the page with that number: a page, or why there is none."""

    number: int
    found: Page | str


class Poller:
    """Reads several pages at once, one reading of each at a time.

    In threads that end with the process: a name that is not resolved or an answer
    that comes by the byte holds up nothing but its own page.
    """

    def __init__(self, addresses: Sequence[Address], read: Callable[[Address], Page]) -> None:
        self.addresses = tuple(addresses)
        self._read = read
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._asked_s: dict[int, float] = {}

    @property
    def asked_s(self) -> Mapping[int, float]:
        """The numbers of the pages that are being read, and since when, on the monotonic clock."""
        return self._asked_s

    def ask(self, now_s: float) -> None:
        """Begin to read each page that is not being read."""
        for number, address in enumerate(self.addresses):
            if number not in self._asked_s:
                self._asked_s[number] = now_s
                threading.Thread(target=self._run, args=(number, address), name="scrape", daemon=True).start()

    def take(self, timeout_s: float) -> list[Answer]:
        """Return what has come, waiting up to `timeout_s` for the first; empty where nothing has."""
        taken: list[Answer] = []
        try:
            taken.append(self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get_nowait())
            while True:
                taken.append(self._answers.get_nowait())
        except queue.Empty:
            pass
        for answer in taken:
            del self._asked_s[answer.number]
        return taken

    def _run(self, number: int, address: Address) -> None:
        try:
            found: Page | str = self._read(address)
        except ScrapeError as failure:
            found = str(failure)
        except Exception as error:  # else its page would stay asked for ever
            found = f"{type(error).__name__}: {error}"
        self._answers.put(Answer(number, found))
