"""How a channel to the service is set up: transport options, retries, TLS.

It owns every channel argument and the reason for it. It must not know calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from headrace._version import __version__

__all__ = ["DEFAULT_OPTIONS", "ChannelOptions", "TlsConfig", "host_and_port", "open_channel"]

ChannelOptions = Sequence[tuple[str, str | int]] | Mapping[str, str | int]

TARGET_SCHEME: Final = re.compile(r"^(dns|ipv4|ipv6|xds):(//[^/]*/)?")
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024

# gRPC repeats a call only while nothing has come back: the service sends no initial metadata before its first event,
# so the whole waiting line is covered.
RETRY_MAX_ATTEMPTS: Final = 3
RETRY_FIRST_BACKOFF_S: Final = 0.2
RETRY_MAX_BACKOFF_S: Final = 2.0
RETRY_BACKOFF_FACTOR: Final = 2
# UNAVAILABLE alone, says AIP-194. CANCELLED besides, since a C core server that stops says so to calls which it has
# accepted and nobody has looked at; a cancel by this side ends a call without another attempt.
RETRIABLE_STATUSES: Final = ("UNAVAILABLE", "CANCELLED")
# While most calls fail, none is repeated: each failure costs a token, each success earns a tenth.
RETRY_TOKENS: Final = 10
RETRY_TOKEN_RATIO: Final = 0.1
RETRY_POLICY: Final = {
    "maxAttempts": RETRY_MAX_ATTEMPTS,
    "initialBackoff": f"{RETRY_FIRST_BACKOFF_S}s",
    "maxBackoff": f"{RETRY_MAX_BACKOFF_S}s",
    "backoffMultiplier": RETRY_BACKOFF_FACTOR,
    "retryableStatusCodes": list(RETRIABLE_STATUSES),
}
SERVICE_CONFIG: Final = {
    # No timeout in here: as a service config it does not work with grpc.aio. It goes with every call.
    "methodConfig": [
        {
            "name": [
                {"service": f"headrace.v1.{name}"} for name in ("GenerationService", "ModelService", "TokenizeService")
            ],
            "retryPolicy": RETRY_POLICY,
        }
    ],
    "retryThrottling": {"maxTokens": RETRY_TOKENS, "tokenRatio": RETRY_TOKEN_RATIO},
    # A target with several addresses (dns:///headless-service:50051) uses them all.
    "loadBalancingConfig": [{"round_robin": {}}],
}

DEFAULT_OPTIONS: Final[Mapping[str, str | int]] = {
    "grpc.service_config": json.dumps(SERVICE_CONFIG),
    "grpc.enable_retries": 1,
    # A request larger than this is never retried; the library's default of 256 KiB is a long chat.
    "grpc.per_rpc_retry_buffer_size": 4 * 1024 * 1024,
    # The library's defaults are 4 MiB in and no limit out.
    "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
    "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
    # A gRPC server with default settings answers more than two pings within 5 minutes of silence
    # with GOAWAY too_many_pings, which kills a call that waits for a slot: 30 s was cut after 120 s.
    # Where the server is known to allow it, set grpc.keepalive_time_ms to 30000 and notice a dead one sooner.
    "grpc.keepalive_time_ms": 310_000,
    "grpc.keepalive_timeout_ms": 20_000,
    # The bandwidth probe widens the window as data flows, so a reader that stalls would let the server
    # run tens of thousands of tokens ahead; tokens need latency, not bandwidth, and probes cost pings.
    "grpc.http2.bdp_probe": 0,
    # The library waits up to two minutes before it tries a server again that was gone.
    "grpc.initial_reconnect_backoff_ms": 200,
    "grpc.min_reconnect_backoff_ms": 1_000,
    "grpc.max_reconnect_backoff_ms": 3_000,
    "grpc.primary_user_agent": f"headrace-python/{__version__}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS towards the service; every field is PEM and optional.

    Without `root_certificates` the library's own roots are trusted. A client
    certificate (mutual TLS) takes both `certificate_chain` and `private_key`.
    `server_name` is the name to verify when it is not the one in the target.
    """

    root_certificates: bytes | None = None
    certificate_chain: bytes | None = None
    private_key: bytes | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate_chain is None) != (self.private_key is None):
            raise ValueError("a client certificate needs both certificate_chain and private_key")

    @classmethod
    def from_files(
        cls,
        *,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        server_name: str | None = None,
    ) -> TlsConfig:
        """Read the PEM files that are given. Raises OSError for one that cannot be read."""
        return cls(
            root_certificates=Path(ca).read_bytes() if ca else None,
            certificate_chain=Path(cert).read_bytes() if cert else None,
            private_key=Path(key).read_bytes() if key else None,
            server_name=server_name,
        )


def open_channel(target: str, tls: TlsConfig | None, options: ChannelOptions) -> grpc.aio.Channel:
    """Open a channel that belongs to the running event loop; `options` win over the defaults."""
    merged = {**DEFAULT_OPTIONS, **dict(options)}
    if tls is None:
        return grpc.aio.insecure_channel(target, options=list(merged.items()))
    if tls.server_name:
        merged["grpc.ssl_target_name_override"] = tls.server_name
    credentials = grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate_chain)
    return grpc.aio.secure_channel(target, credentials, options=list(merged.items()))


def host_and_port(target: str) -> tuple[str, int | None]:
    """Split a gRPC target into what telemetry calls server.address and server.port."""
    if target.startswith("unix:"):
        return target.removeprefix("unix:").removeprefix("//"), None
    address = TARGET_SCHEME.sub("", target).partition(",")[0]
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
        return address.strip("[]"), None
    return host.strip("[]"), int(port)
