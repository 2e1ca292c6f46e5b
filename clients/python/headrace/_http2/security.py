"""TLS for asyncio's sockets from the client's `TlsConfig`."""

from __future__ import annotations

import ssl
import tempfile
from typing import Final

from headrace._channel import TlsConfig

__all__ = ["ALPN", "ssl_context"]

ALPN: Final = "h2"


def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return a context that verifies certificate and name. Without roots of its own it trusts the system's.

    Raises ValueError for PEM that cannot be used.
    """
    try:
        return _ssl_context(tls)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ValueError(f"the certificates or the key for TLS cannot be used: {error}") from error


def _ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    roots = tls.root_certificates.decode("ascii") if tls.root_certificates is not None else None
    context = ssl.create_default_context(cadata=roots)
    context.set_alpn_protocols([ALPN])
    if tls.certificate_chain is not None and tls.private_key is not None:
        # The ssl module takes a certificate of its own from files alone; this one only its owner can read.
        with tempfile.NamedTemporaryFile() as file:
            file.write(tls.private_key + b"\n" + tls.certificate_chain)
            file.flush()
            context.load_cert_chain(file.name)
    return context
