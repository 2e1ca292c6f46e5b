"""The one long-lived channel to a Triton."""

from __future__ import annotations

from typing import Any

import grpc

from service.backends.triton.options import TritonOptions

__all__ = ["address_of", "open_channel"]


def open_channel(options: TritonOptions) -> Any:
    """Return a `grpc.aio` channel; must be called in the running loop. Raises OSError for unreadable key files."""
    arguments = [
        ("grpc.keepalive_time_ms", int(options.keepalive_time_s * 1000)),
        # Also TCP_USER_TIMEOUT: a peer that vanished is noticed this long after the next write.
        ("grpc.keepalive_timeout_ms", int(options.keepalive_timeout_s * 1000)),
        # Triton does not permit pings without calls.
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.max_send_message_length", options.max_send_bytes),
        ("grpc.max_receive_message_length", options.max_receive_bytes),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # A retry could start a generation twice.
        ("grpc.enable_retries", 0),
        # Two backends never share a connection, and so neither its fate.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if options.root_certificates is None:
        return grpc.aio.insecure_channel(options.url, arguments)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=options.root_certificates.read_bytes(),
        private_key=None if options.client_key is None else options.client_key.read_bytes(),
        certificate_chain=None if options.client_certificate is None else options.client_certificate.read_bytes(),
    )
    return grpc.aio.secure_channel(options.url, credentials, arguments)


def address_of(url: str) -> tuple[str, int | None]:
    """Return host and port of a target; the port is None where it has none."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    if not host or not port.isdigit():
        return url, None
    return host.strip("[]"), int(port)
