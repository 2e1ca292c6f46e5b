"""Who calls: from the credentials of a call, or the certificate of its connection, to an identity.

Whoever is refused learns nothing of why: one text for every cause, but for the
absence of credentials, which is no secret. The cause is for the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from service.core.errors import Reason, ServiceError
from service.core.identity import Identity
from service.tenancy.key_file import KeyFile
from service.tenancy.keys import KeySet, is_key
from service.tenancy.refusal import Refused

if TYPE_CHECKING:
    # It needs the extra `auth`, and API keys do without.
    from service.tenancy.tokens import TokenChecker

__all__ = ["Authenticator", "Peer"]

_SCHEME: Final = "bearer"
_WRONG: Final = "Incorrect API key or token provided."
_MISSING: Final = "No credentials were sent: an API key or a token goes into 'authorization', as 'Bearer YOUR_KEY'."
_NO_KEYS: Final = KeySet()
_SEPARATORS_OF_TOKENS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The names in a client certificate that the server has verified."""

    common_names: Sequence[str] = ()
    uris: Sequence[str] = ()


class Authenticator:
    """Tells who calls, by API keys, tokens and certificates, of which there may be any.

    Credentials that are sent decide alone. A certificate counts only without them,
    and only if it is listed: else that of a gateway would lend its identity to
    everybody who calls through it.
    """

    def __init__(
        self,
        key_file: KeyFile | None = None,
        tokens: TokenChecker | None = None,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._key_file = key_file
        self._tokens = tokens
        self._now_s = now_s

    async def start(self) -> None:
        """Begin to follow the keys file, and read the keys of the tokens' issuer."""
        if self._key_file is not None:
            self._key_file.start()
        if self._tokens is not None:
            await self._tokens.keys.start()

    async def close(self) -> None:
        """Follow them no longer."""
        if self._key_file is not None:
            self._key_file.close()
        if self._tokens is not None:
            await self._tokens.keys.close()

    async def authenticate(self, authorization: Sequence[str | bytes], peer: Callable[[], Peer]) -> Identity:
        """Return who calls. ServiceError (UNAUTHENTICATED) if that is not known.

        `authorization` has every value that was sent; `peer` is asked for only where
        there is none. Waits for the issuer of tokens if it has a key that is not known
        here; STORE_UNAVAILABLE if it has never answered.
        """
        try:
            if authorization:
                return await self._by_credentials(_token_of(authorization))
            found = self._keys.identify_peer((names := peer()).common_names, names.uris)
        except Refused as refused:
            raise ServiceError(Reason.UNAUTHENTICATED, _WRONG, detail=refused.cause) from None
        if found is not None:
            return found
        has_names = bool(names.common_names or names.uris)
        detail = "no credentials, and the client's certificate is not listed" if has_names else None
        raise ServiceError(Reason.UNAUTHENTICATED, _MISSING, detail=detail)

    @property
    def _keys(self) -> KeySet:
        return _NO_KEYS if self._key_file is None else self._key_file.keys

    async def _by_credentials(self, text: str) -> Identity:
        if is_key(text):
            if self._key_file is None:
                raise Refused("an API key, and there is no keys file")
            return self._keys.identify(text, self._now_s())
        if text.count(".") != _SEPARATORS_OF_TOKENS:
            raise Refused("neither an API key nor a token")
        if self._tokens is None:
            raise Refused("a token, and no issuer is configured")
        return await self._tokens.identify(text)


def _token_of(authorization: Sequence[str | bytes]) -> str:
    """Return what follows the scheme Bearer (RFC 6750). Raises `Refused`."""
    if len(authorization) > 1:
        raise Refused("more than one authorization value")
    value = authorization[0]
    if isinstance(value, bytes):
        raise Refused("malformed authorization: bytes")
    scheme, _, token = value.strip(" ").partition(" ")
    if scheme.lower() != _SCHEME:
        raise Refused("not the scheme Bearer")
    return token.strip(" ")
