"""Who makes an RPC: its metadata and its connection, as the authenticator takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from runtime import semconv
from service.core.identity import Identity
from service.rpc.call import CallRecord
from service.tenancy.authenticator import Authenticator, Peer

__all__ = ["authenticate", "unchecked_identity"]

AUTHORIZATION: Final = "authorization"
# How gRPC calls what it found in a client certificate that it has verified.
_COMMON_NAME: Final = "x509_common_name"
_ALTERNATIVE_NAME: Final = "x509_subject_alternative_name"
_URI: Final = "peer_uri"


async def authenticate(call: CallRecord, context: Any, authenticator: Authenticator) -> None:
    """Set the identity of `call`, and say it on its span. Raises UNAUTHENTICATED, and leaves it anonymous."""
    metadata: Sequence[tuple[str, Any]] = context.invocation_metadata() or ()
    sent = [value for name, value in metadata if name == AUTHORIZATION]
    call.identity = identity = await authenticator.authenticate(sent, lambda: _peer_of(context))
    call.span.set_attribute(semconv.TENANT, identity.tenant)
    call.span.set_attribute(semconv.SUBJECT, identity.subject)


def unchecked_identity(metadata: Sequence[tuple[str, Any]]) -> Identity:
    """Return what tells callers apart where nobody checks: a digest of the credentials, which are not kept."""
    for name, value in metadata:
        if name == AUTHORIZATION:
            data = value.encode() if isinstance(value, str) else value
            return Identity(tenant=hashlib.blake2b(data, digest_size=12).hexdigest())
    return Identity()


def _peer_of(context: Any) -> Peer:
    names = context.auth_context()
    return Peer(common_names=_texts(names.get(_COMMON_NAME)), uris=_texts(names.get(_URI)))


def _texts(values: Sequence[bytes] | None) -> list[str]:
    return [value.decode(errors="replace") for value in values or ()]
