"""The HTTP/1.1 server's connection: what uvicorn's protocol lacks for a public listener.

Cutting: ASGI has no word for it, but a response that cannot be completed must
not look complete, and a client that takes nothing must not hold a connection
whose buffer never drains (closing would wait for it). Bounds: heads and
trailers are bounded in size, heads and the client's taking of what was sent in
time, and a connection has to say something. Order: what comes behind a request
is not looked at before its response has ended, so that nothing in it can
disturb the response, and reading goes on, so that a client's leaving is seen.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http_cycle import Cycle, Flow, OldCycle, target_scope
from gateway.http_refusal import MAX_HEAD_BYTES, check_host, head_too_large, head_too_slow, response_bytes
from gateway.http_sending import SendWatch, set_up_sending
from gateway.openai.errors import ApiError, invalid_request

__all__ = ["ABORT", "ARRIVED_S", "BoundedProtocol", "protocol_class"]

# In scope["extensions"]: a function without arguments that cuts the connection.
ABORT: Final = "headrace.connection.abort"
# And when the head of the request had arrived, seconds of `time.perf_counter`.
ARRIVED_S: Final = "headrace.request.arrived_s"

# Of what comes behind a running request; above it reading pauses.
_MAX_AHEAD_BYTES: Final = 64 * 1024
# For a client that still sends to read its refusal (RFC 9112 9.6).
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 32 * 1024 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol on httptools, bounded, which offers `ABORT` and `ARRIVED_S` to the application."""

    # `gateway.config` has the reasons.
    send_timeout_s = 30.0  # how long a client may take nothing
    head_timeout_s = 15.0  # from a head's first byte to its last

    _active: Cycle | None = None  # the one whose application runs
    _is_reading_head = False
    _is_upgrade = False
    _is_lingering = False
    _head_bytes = -1  # of further pieces in which an unfinished head came; -1 before the first one's end
    _field_bytes = 0  # of the fields in a head, or in trailers
    _has_body_piece = False  # in what is parsed
    _loose_bytes = 0  # received since then: framing and trailers
    _linger_bytes = 0
    _ahead = b""
    _refusal: ApiError | None = None  # told when the responses before it have ended
    _timer: asyncio.TimerHandle | None = None  # of the head, or of lingering
    _sending: SendWatch

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection; it is closed if no request begins within the keep-alive time."""
        super().connection_made(transport)
        set_up_sending(transport, self.send_timeout_s)
        self._sending = SendWatch(transport, self.loop, self.send_timeout_s)
        self.flow = Flow(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection and its timers, and tell the application that runs."""
        self._stop_timer()
        self._sending.stop()
        self._unset_keepalive_if_required()
        if self._active is not None:
            self._active.leave()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, or keep for later what comes behind a running request."""
        if self._is_lingering:
            self._linger_bytes += len(data)
            if self._linger_bytes > _LINGER_BYTES:
                self.transport.abort()
        elif self._active is not None and not self._active.more_body:
            self._ahead += data
            if len(self._ahead) > _MAX_AHEAD_BYTES:
                self.flow.pause_reading()
        else:
            self._feed(data)

    def eof_received(self) -> None:
        """Take the end of what a client sends for its leaving, at once: closing would wait until it has read."""
        if self._active is not None:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        if self._active is None:
            self._unset_keepalive_if_required()
        self._is_reading_head = True
        self._head_bytes, self._field_bytes = -1, 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are counted and dropped (RFC 9110 6.5.1: they must not pass for headers)."""
        self._count(len(name) + len(value) + 4)
        if self._is_reading_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind those that came in the same piece."""
        if self.parser.should_upgrade():
            self._is_upgrade = True
            return
        self._is_reading_head = False
        self._field_bytes = self._loose_bytes = 0
        self._stop_timer()
        version = self.parser.get_http_version()
        check_host(self.headers, version)
        method = self.parser.get_method().decode("ascii")
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # its TypedDict knows the standard extensions
        scope |= {
            "extensions": {ABORT: self.transport.abort, ARRIVED_S: time.perf_counter()},
            "method": method,
            "http_version": version,
            **target_scope(self.url, self.root_path),
        }
        self.cycle = (OldCycle if version == "1.0" else Cycle)(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and version != "1.0",
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if self._active is None:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._has_body_piece = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self._is_upgrade:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with what came behind the request; after an early response nothing can."""
        active, self._active = self._active, None
        super().on_response_complete()
        if not self.transport.is_closing():
            if active is not None and active.is_early:
                self._linger()
            elif self._active is None and self._refusal is not None:
                self._refuse(self._refusal)
            elif self._ahead or self._is_reading_head:
                ahead, self._ahead = self._ahead, b""
                self._feed(ahead)
        self._sending.start()

    def pause_writing(self) -> None:
        """Note that the client does not keep up; whoever writes a response watches that itself."""
        super().pause_writing()
        if self._active is None:
            self._sending.start()

    def resume_writing(self) -> None:
        """Note that the client took what was sent."""
        super().resume_writing()
        self._sending.stop()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that says nothing."""
        super().timeout_keep_alive_handler()
        self._sending.start()

    def shutdown(self) -> None:
        """Close the connection behind the response that runs."""
        if self._active is not None:
            self._active.keep_alive = False
        else:
            self.transport.close()
            self._sending.start()

    def cut(self, *, if_idle: bool = False) -> None:
        """Cut the connection, whatever is unsent; with `if_idle` not while a response is made."""
        if self._active is None or not if_idle:
            self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        assert isinstance(cycle, Cycle)
        self._active = cycle
        self._unset_keepalive_if_required()
        self._sending.stop()
        super()._start_asgi_task(cycle, app)

    def _feed(self, data: bytes) -> None:
        self._has_body_piece = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            problem = error.__context__
            if not isinstance(problem, ApiError):
                problem = invalid_request("Invalid HTTP request received.")
            self._refuse(problem)
            return
        if self._is_reading_head:
            # Of the piece in which a head begins, its fields are what is known.
            self._head_bytes = self._head_bytes + len(data) if self._head_bytes >= 0 else 0
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(head_too_large())
            elif self._timer is None and self._active is None:
                self._timer = self.loop.call_later(self.head_timeout_s, self._on_slow_head)
        elif self._active is not None and self._active.more_body:
            self._loose_bytes = 0 if self._has_body_piece else self._loose_bytes + len(data)
            if self._loose_bytes > MAX_HEAD_BYTES:
                self._refuse(head_too_large())

    def _on_slow_head(self) -> None:
        self._timer = None
        self._refuse(head_too_slow(self.head_timeout_s))

    def _count(self, size: int) -> None:
        # One piece may hold more than a head may have.
        self._field_bytes += size
        if self._field_bytes > MAX_HEAD_BYTES:
            raise head_too_large()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Serve the request as if it had not offered another protocol (RFC 9110 7.8); its parser cannot."""
        self._is_upgrade = False
        offered = self.parser
        method = offered.get_method()
        if method == b"CONNECT":
            self._refuse(invalid_request("CONNECT requests are not accepted."))
            return
        lines = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade")
        version = offered.get_http_version().encode("ascii")
        # The parser of a connection that ends with its first request takes no second one.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"%s %s HTTP/%s\r\n%s\r\n%s" % (method, self.url, version, lines, rest))

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request, behind the responses before it; the connection ends with it."""
        active = self._active
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        if active is not None and not active.more_body:
            self._refusal = error
            return
        if active is not None:
            self._active = None
            active.leave()
            if active.response_started:
                self.transport.close()
                self._sending.start()
                return
        self.transport.write(response_bytes(error))
        self._linger()
        self._sending.start()

    def _linger(self) -> None:
        self._is_lingering = True
        self._ahead = b""
        self._unset_keepalive_if_required()
        self._stop_timer()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def protocol_class(*, send_timeout_s: float, head_timeout_s: float) -> type[BoundedProtocol]:
    """Return the protocol with its bounds in time, seconds."""
    return type(
        "BoundedProtocol", (BoundedProtocol,), {"send_timeout_s": send_timeout_s, "head_timeout_s": head_timeout_s}
    )
