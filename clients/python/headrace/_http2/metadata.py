"""Call metadata as HTTP/2 header fields, and back. Pure.

Requests are written without a compression table: literals that are not
indexed. So a header block depends on nothing that was sent before, credentials
never enter a shared table, and encoding costs a few microseconds. The price is
about 200 bytes per call.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

__all__ = [
    "NO_TABLE",
    "Field",
    "Metadata",
    "MetadataError",
    "decode_message",
    "encode_attempts",
    "encode_metadata",
    "encode_prefix",
    "encode_timeout",
    "metadata_of",
]

Field = tuple[bytes, bytes]
Metadata = tuple[tuple[str, str | bytes], ...]

# What a client sets itself, or what HTTP/2 forbids: a caller's value is left out, as gRPC does.
RESERVED: Final = frozenset(
    {
        *("te", "content-type", "user-agent", "host", "connection", "keep-alive", "proxy-connection"),
        *("transfer-encoding", "upgrade", "content-length"),
        *("grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "grpc-previous-rpc-attempts"),
    }
)
_KEY: Final = re.compile(r"[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")

# Representations of RFC 7541, section 6.2: a new name, not indexed; and never indexed, for credentials.
_LITERAL: Final = b"\x00"
_LITERAL_NEVER_INDEXED: Final = b"\x10"
# Entries of the static table (appendix A), fully indexed.
_METHOD_POST: Final = b"\x83"
_SCHEME: Final = {False: b"\x86", True: b"\x87"}

# Tells the peer that no table is kept (section 6.3). It has to begin the first block of a connection: a peer
# whose settings shrink the table waits for it.
NO_TABLE: Final = b"\x20"

_MAX_TIMEOUT: Final = 99_999_999  # eight digits
_TIMEOUT_UNITS: Final = ((1_000_000, b"u"), (1_000, b"m"), (1, b"S"))


class MetadataError(ValueError):
    """A key or value cannot be sent as metadata."""


def encode_prefix(path: str, authority: str, user_agent: str, *, is_secure: bool) -> bytes:
    """Return the part of a header block that is the same for every call of one method."""
    fields = ((":path", path), (":authority", authority), ("te", "trailers"), ("content-type", "application/grpc"))
    block = _METHOD_POST + _SCHEME[is_secure]
    for name, value in (*fields, ("user-agent", user_agent), ("grpc-accept-encoding", "identity")):
        block += _literal(name.encode(), value.encode())
    return block


def encode_metadata(metadata: Iterable[Sequence[str | bytes]]) -> bytes:
    """Return metadata as part of a header block. MetadataError for what gRPC does not allow."""
    block = b""
    for key, value in metadata:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise MetadataError(f"invalid metadata key {key!r}")
        if key in RESERVED:
            continue
        kind = _LITERAL_NEVER_INDEXED if key == "authorization" else _LITERAL
        block += _literal(key.encode(), _value(key, value), kind)
    return block


def _value(key: str, value: str | bytes) -> bytes:
    if key.endswith("-bin"):
        raw = value.encode() if isinstance(value, str) else bytes(value)
        return base64.b64encode(raw).rstrip(b"=")
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not isinstance(text, str) or not _VALUE.fullmatch(text):
        raise MetadataError(f"invalid value of metadata key {key!r}")
    return text.encode("ascii")


def encode_timeout(timeout_s: float) -> bytes:
    """Return the grpc-timeout field; rounded up, at the finest unit that eight digits hold."""
    for per_s, unit in _TIMEOUT_UNITS:
        amount = math.ceil(timeout_s * per_s)
        if amount <= _MAX_TIMEOUT:
            return _literal(b"grpc-timeout", b"%d%s" % (max(amount, 1), unit))
    return _literal(b"grpc-timeout", b"%dS" % _MAX_TIMEOUT)


def encode_attempts(attempts: int) -> bytes:
    """Return the grpc-previous-rpc-attempts field; nothing for a first attempt."""
    return _literal(b"grpc-previous-rpc-attempts", b"%d" % attempts) if attempts else b""


def metadata_of(fields: Iterable[Field]) -> Metadata:
    """Return received fields as metadata: no pseudo headers, `-bin` values decoded, broken ones left out."""
    found: list[tuple[str, str | bytes]] = []
    for raw_name, raw_value in fields:
        name = raw_name.decode("latin-1")
        if name.startswith(":"):
            continue
        if not name.endswith("-bin"):
            found.append((name, raw_value.decode("latin-1")))
            continue
        for part in raw_value.split(b","):  # a proxy may have joined several values
            try:
                found.append((name, base64.b64decode(part + b"=" * (-len(part) % 4), validate=True)))
            except binascii.Error:
                continue
    return tuple(found)


def decode_message(value: bytes) -> str:
    """Return the text of a grpc-message field: percent-encoded UTF-8; what is broken is kept readable."""
    return unquote_to_bytes(value).decode("utf-8", "replace")


def _literal(name: bytes, value: bytes, kind: bytes = _LITERAL) -> bytes:
    return b"%s%s%s%s%s" % (kind, _length(len(name)), name, _length(len(value)), value)


def _length(number: int) -> bytes:
    """Return a string length, not Huffman coded: RFC 7541, section 5.1, with a prefix of 7 bits."""
    if number < 127:
        return bytes((number,))
    rest, encoded = number - 127, bytearray((127,))
    while rest >= 128:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
