"""Which connection a call takes: all addresses of a target, in turn.

It owns the endpoints, name resolution, and the calls that wait for a
connection (each bounded by its own deadline). It must not know frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc

from headrace._channel import DEFAULT_OPTIONS, ChannelOptions, TlsConfig
from headrace._http2.call import Call, Limits
from headrace._http2.endpoint import Dialing, Endpoint
from headrace._http2.keepalive import KeepaliveTimes
from headrace._http2.metadata import Metadata, encode_prefix
from headrace._http2.outcome import Outcome
from headrace._http2.retry import RetryThrottle
from headrace._http2.security import ssl_context
from headrace._http2.target import Target, parse_target, resolve, uses_proxy

__all__ = ["Http2Channel", "open_http2_channel"]

T = TypeVar("T")

RESOLVE_TIMEOUT_S: Final = 20.0
RESOLVE_AGAIN_S: Final = 30.0  # least time between two resolutions, as in gRPC
CLOSE_TIMEOUT_S: Final = 1.0

# The channel arguments that mean something here, or nothing; with any other one the caller wants gRPC itself.
UNDERSTOOD: Final = frozenset(
    {
        "grpc.keepalive_time_ms",
        "grpc.keepalive_timeout_ms",
        "grpc.keepalive_permit_without_calls",
        "grpc.max_receive_message_length",
        "grpc.max_send_message_length",
        "grpc.per_rpc_retry_buffer_size",
        "grpc.primary_user_agent",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    keepalive: KeepaliveTimes
    limits: Limits
    user_agent: str


def open_http2_channel(target: str, tls: TlsConfig | None, options: ChannelOptions) -> Http2Channel | None:
    """Return a channel for the running loop; None for a target or options that need gRPC itself."""
    given = dict(options)
    parsed = parse_target(target)
    if parsed is None or given.keys() - UNDERSTOOD or uses_proxy(parsed):
        return None
    return Http2Channel(parsed, tls, _options({**DEFAULT_OPTIONS, **given}))


def _options(values: dict[str, str | int]) -> _Options:
    def bytes_of(name: str) -> int:
        number = int(values[name])
        return number if number >= 0 else 2**31 - 1  # -1 is no limit

    interval_ms = int(values["grpc.keepalive_time_ms"])
    return _Options(
        keepalive=KeepaliveTimes(
            interval_s=interval_ms / 1000 if 0 < interval_ms < 2**31 - 1 else None,
            timeout_s=int(values["grpc.keepalive_timeout_ms"]) / 1000,
            is_always_on=bool(values.get("grpc.keepalive_permit_without_calls", 0)),
        ),
        limits=Limits(
            received_bytes=bytes_of("grpc.max_receive_message_length"),
            sent_bytes=bytes_of("grpc.max_send_message_length"),
            retried_bytes=bytes_of("grpc.per_rpc_retry_buffer_size"),
        ),
        user_agent=str(values["grpc.primary_user_agent"]),
    )


class Http2Channel:
    """Makes calls to one target, over as many connections as it has addresses."""

    def __init__(self, target: Target, tls: TlsConfig | None, options: _Options) -> None:
        self._target = target
        self._options = options
        self._loop = asyncio.get_running_loop()
        server_name = tls.server_name if tls else None
        # A resolved address is still verified by the name that was asked for.
        self._dialing = Dialing(
            ssl_context(tls) if tls else None, server_name or target.name or None, options.keepalive
        )
        self._authority = server_name or target.authority
        self._throttle = RetryThrottle()
        self._endpoints = [Endpoint(address, self._dialing, self._on_change) for address in target.addresses]
        self._leaving: list[Endpoint] = []  # their names no longer resolve to them
        self._turn = 0
        self._calls: set[Call[object]] = set()
        self._waiting: dict[Call[object], None] = {}  # in order
        self._resolving: asyncio.Task[None] | None = None
        self._resolve_at_s = 0.0
        self._failure = ""
        self._is_serving_due = False
        self._is_closed = False

    def call(
        self, method: str, request: bytes, parse: Callable[[bytes], T], *, timeout_s: float, metadata: Metadata
    ) -> Call[T]:
        """Begin a server-streaming call. It ends by itself with its deadline, or with `close`."""
        secured = self._dialing.context is not None
        prefix = encode_prefix(f"/{method}", self._authority, self._options.user_agent, is_secure=secured)
        call = Call(self, self._options.limits, self._throttle, parse)
        self._calls.add(call)
        call.begin(prefix, request, timeout_s, metadata)
        return call

    async def close(self) -> None:
        """End all calls as cancelled; return when no socket, task or timer is left."""
        self._is_closed = True
        for call in list(self._calls):
            call.cancel("the client was closed")
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.wait([self._resolving])
        endpoints = [*self._endpoints, *self._leaving]
        await asyncio.gather(*(endpoint.aclose(CLOSE_TIMEOUT_S) for endpoint in endpoints))

    # What calls ask for.

    def route(self, call: Call[object]) -> None:
        """Give the call a connection: now, or later, or tell it that there is none."""
        self._repair()
        if self._waiting or not self._send(call):
            self._waiting[call] = None
            self._serve()

    def forget(self, call: Call[object]) -> None:
        """Note that a call has ended."""
        self._waiting.pop(call, None)
        self._calls.discard(call)

    # Who gets which connection.

    def _send(self, call: Call[object]) -> bool:
        count = len(self._endpoints)
        for step in range(1, count + 1):
            turn = (self._turn + step) % count
            connection = self._endpoints[turn].connection_with_room()
            if connection is not None:
                self._turn = turn
                call.send(connection)
                return True
        return False

    def _on_change(self) -> None:
        # Soon and once, not now: this is called from within the connection's own work.
        if self._waiting and not self._is_serving_due:
            self._is_serving_due = True
            self._loop.call_soon(self._serve_due)

    def _serve_due(self) -> None:
        self._is_serving_due = False
        self._serve()

    def _serve(self) -> None:
        """Send what waits as far as there is room; connect for the rest, or fail it."""
        while self._waiting:
            call = next(iter(self._waiting))
            is_sent = self._send(call)
            if not is_sent and self._seek():
                return
            self._waiting.pop(call, None)
            if not is_sent:
                call.on_end(Outcome(grpc.StatusCode.UNAVAILABLE, self._why()), was_seen=True)

    def _seek(self) -> bool:
        """Try to get more room; return whether there is something to wait for."""
        self._resolve_if_due()
        # All of them, not the first that may help: every address is to be used.
        is_hopeful = [endpoint.connect() for endpoint in self._endpoints]
        return any(is_hopeful) or (not self._endpoints and self._resolving is not None)

    def _repair(self) -> None:
        """Connect again to addresses that were lost, also while others take the calls."""
        lost = [endpoint for endpoint in self._endpoints if not endpoint.is_connected]
        if lost:
            self._resolve_if_due()
        for endpoint in lost:
            endpoint.connect()

    def _why(self) -> str:
        failures = [endpoint.failure for endpoint in self._endpoints if endpoint.failure]
        return failures[0] if failures else self._failure or "no connection to the service"

    # Names.

    def _resolve_if_due(self) -> None:
        if not self._target.name or self._resolving is not None or self._loop.time() < self._resolve_at_s:
            return
        self._resolve_at_s = self._loop.time() + (RESOLVE_AGAIN_S if self._endpoints else 1.0)
        self._resolving = self._loop.create_task(self._resolve(), name=f"headrace: resolve {self._target.name}")

    async def _resolve(self) -> None:
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                addresses = await resolve(self._target.name, self._target.port)
        except (OSError, UnicodeError) as error:  # also TimeoutError; a name may be no name at all
            self._failure = f"cannot resolve {self._target.name}: {error or 'no answer'}"
        else:
            self._resolve_at_s = self._loop.time() + RESOLVE_AGAIN_S
            known = {endpoint.address: endpoint for endpoint in self._endpoints}
            self._endpoints = [
                known.pop(address) if address in known else Endpoint(address, self._dialing, self._on_change)
                for address in addresses
            ]
            for endpoint in known.values():
                endpoint.close()
            self._leaving = [endpoint for endpoint in self._leaving if not endpoint.is_gone] + list(known.values())
        finally:
            self._resolving = None
        self._on_change()
