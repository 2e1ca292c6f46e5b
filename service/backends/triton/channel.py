"""How one Triton is reached: the long-lived channel, and two ways to read `ModelStreamInfer`.

Owns every channel argument and the reason for it. It knows no tensor, and
nothing of what a response means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

import grpc
from tritonclient.grpc import service_pb2

from headrace import TlsConfig
from headrace._http2.call import Call
from headrace._http2.channel import Http2Channel, open_http2_channel
from service.backends.triton.options import TritonOptions

__all__ = ["InferCall", "InferOpener", "address_of", "being_cancelled", "open_channel", "open_infer"]

_log = logging.getLogger(__name__)

Metadata = Sequence[tuple[str, str]]

_METHOD: Final = "inference.GRPCInferenceService/ModelStreamInfer"


class InferCall(Protocol):
    """One `ModelStreamInfer` whose only request is on its way, with the half-close behind it."""

    async def take(self, most: int) -> Sequence[Any]:
        """Return the `ModelStreamInferResponse`s that have arrived: at least one, at most `most`; none after OK.

        Waits for the first alone. Raises AioRpcError for every other status,
        after the responses before it. A cancelled wait cancels the call.
        """
        ...

    def cancel(self) -> None:
        """End the call as CANCELLED unless it ended; whoever waits is told. Idempotent, never waits."""
        ...


class InferOpener(Protocol):
    """Opens calls to one Triton; to be used and closed in the event loop that made it."""

    def open(self, message: Any, *, timeout_s: float, metadata: Metadata) -> InferCall:
        """Begin a call that sends one `ModelInferRequest`; what cannot be sent fails in `take`."""
        ...

    async def close(self) -> None:
        """End the calls as CANCELLED and give up what they used."""
        ...


def open_channel(options: TritonOptions) -> Any:
    """Return a `grpc.aio` channel; must be called in the running loop. Raises OSError for unreadable key files."""
    arguments: dict[str, Any] = {
        **_arguments(options),
        "grpc.initial_reconnect_backoff_ms": 200,
        "grpc.max_reconnect_backoff_ms": 2000,
        # A retry could start a generation twice.
        "grpc.enable_retries": 0,
        # Two backends never share a connection, and so neither its fate.
        "grpc.use_local_subchannel_pool": 1,
    }
    tls = _tls(options)
    if tls is None:
        return grpc.aio.insecure_channel(options.url, list(arguments.items()))
    if tls.server_name is not None:
        arguments["grpc.ssl_target_name_override"] = tls.server_name
    credentials = grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate_chain)
    return grpc.aio.secure_channel(options.url, credentials, list(arguments.items()))


def open_infer(options: TritonOptions, stub: Any) -> InferOpener:
    """Return what opens generations, over `options.transport`; `stub` is on the channel of `open_channel`.

    A target that only gRPC itself understands (xds, a proxy from the environment)
    is left to that. Raises OSError for unreadable key files and ValueError for
    ones that cannot be used.
    """
    if options.transport == "asyncio":
        # Of 0 bytes: no request is small enough to be sent again, which could start a generation twice. One
        # that Triton says it has not looked at (GOAWAY, REFUSED_STREAM) still moves on to a new connection.
        arguments = {**_arguments(options), "grpc.per_rpc_retry_buffer_size": 0}
        channel = open_http2_channel(options.url, _tls(options), arguments)
        if channel is not None:
            return _AsyncioOpener(channel)
        _log.info("%s is read through grpcio: the target needs it", options.url)
    return _GrpcioOpener(stub)


def address_of(url: str) -> tuple[str, int | None]:
    """Return host and port of a target; the port is None where it has none."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    if not host or not port.isdigit():
        return url, None
    return host.strip("[]"), int(port)


class _AsyncioOpener:
    """Over the event loop's own sockets: no thread between the socket and its reader."""

    def __init__(self, channel: Http2Channel) -> None:
        self._channel = channel

    def open(self, message: Any, *, timeout_s: float, metadata: Metadata) -> InferCall:
        # With one request and the half-close behind it, all kinds of methods are the same on the wire.
        parse = service_pb2.ModelStreamInferResponse.FromString
        body = message.SerializeToString()
        return _AsyncioCall(self._channel.call(_METHOD, body, parse, timeout_s=timeout_s, metadata=tuple(metadata)))

    async def close(self) -> None:
        await self._channel.close()


class _AsyncioCall:
    __slots__ = ("_call", "take")

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self.take = call.take

    def cancel(self) -> None:
        self._call.cancel("the call was cancelled")


class _GrpcioOpener:
    """Over the channel of the unary calls, which stays its owner's."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def open(self, message: Any, *, timeout_s: float, metadata: Metadata) -> InferCall:
        return _GrpcioCall(self._stub.ModelStreamInfer([message], timeout=timeout_s, metadata=tuple(metadata)))

    async def close(self) -> None:
        pass


def being_cancelled() -> bool:
    """Return whether somebody cancels this task.

    Asked here, because a frame that the end of a task passes must not hold the task by a name of its own: a cycle.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _GrpcioCall:
    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:
        self._call = call

    async def take(self, most: int) -> Sequence[Any]:  # noqa: ARG002 - it has no more than one at hand
        try:
            message = await self._call.read()
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            # This is also how it tells that the call, and not the task, was cancelled, by whichever side.
            raise _status(grpc.StatusCode.CANCELLED, "the call was cancelled") from None
        if message is grpc.aio.EOF:
            return ()
        if message is None:  # it logs what cannot be decoded, and goes on
            self._call.cancel()
            raise _status(grpc.StatusCode.INTERNAL, "the server sent a message that cannot be decoded")
        return (message,)

    def cancel(self) -> None:
        self._call.cancel()


def _status(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


def _arguments(options: TritonOptions) -> dict[str, str | int]:
    return {
        "grpc.keepalive_time_ms": int(options.keepalive_time_s * 1000),
        # Also TCP_USER_TIMEOUT: a peer that vanished is noticed this long after the next write.
        "grpc.keepalive_timeout_ms": int(options.keepalive_timeout_s * 1000),
        # Triton does not permit pings without calls.
        "grpc.keepalive_permit_without_calls": 0,
        "grpc.max_send_message_length": options.max_send_bytes,
        "grpc.max_receive_message_length": options.max_receive_bytes,
    }


def _tls(options: TritonOptions) -> TlsConfig | None:
    if options.root_certificates is None:
        return None
    return TlsConfig.from_files(
        ca=options.root_certificates,
        cert=options.client_certificate,
        key=options.client_key,
        server_name=options.server_name or None,
    )
