"""JSON Web Tokens of one issuer: what makes one good, and whose it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jwt

from service.core.identity import Identity
from service.tenancy.fetching import FetchError, fetch_document, url_problem
from service.tenancy.issuer_keys import FETCH_LIMIT_S, IssuerKeys, VerifyingKey, parse_key_set
from service.tenancy.keys import TENANT_PATTERN
from service.tenancy.refusal import Refused

__all__ = ["TokenChecker", "TokenRules", "open_issuer_keys"]

_TENANT: Final = re.compile(TENANT_PATTERN.removeprefix("^").removesuffix("$"))
_SUBJECT: Final = re.compile(r"[!-~]{1,128}")
# The gateway hands on no more, and gRPC takes 8 KiB of metadata in all.
_MAX_CHARS: Final = 8 * 1024
_MOST_MODELS: Final = 256
_DISCOVERY: Final = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say. `algorithms` are asymmetric ones; a claim is a name at the top of the token.

    With `models_claim` a token has to have it: a list of model ids, or one text with spaces between them.
    """

    issuer: str
    audience: str
    algorithms: frozenset[str]
    tenant_claim: str = "tenant"
    models_claim: str | None = None
    leeway_s: float = 30.0


def open_issuer_keys(issuer: str, key_set: str | None, *, refresh_s: float) -> IssuerKeys:
    """Return the keys of an issuer. `key_set` is a URL or a path; None asks the issuer's discovery document for one."""
    return IssuerKeys(partial(_read_keys, issuer, key_set), refresh_s=refresh_s)


def _read_keys(issuer: str, key_set: str | None) -> list[VerifyingKey]:
    if key_set is None:
        document = fetch_document(issuer.removesuffix("/") + _DISCOVERY, FETCH_LIMIT_S / 2)
        if document.get("issuer") != issuer:
            raise FetchError(f"{issuer}: its discovery document is another issuer's")
        key_set = str(document.get("jwks_uri"))
        if problem := url_problem(key_set):
            raise FetchError(f"{issuer}: the address of its key set {problem}")
    return parse_key_set(fetch_document(key_set, FETCH_LIMIT_S / 2))


class TokenChecker:
    """Checks tokens against the rules and the issuer's keys."""

    def __init__(self, rules: TokenRules, keys: IssuerKeys) -> None:
        self._rules = rules
        self.keys = keys

    async def identify(self, token: str) -> Identity:
        """Return whose token it is. Raises `Refused`, and STORE_UNAVAILABLE where the issuer's keys are not known."""
        rules = self._rules
        key_id, algorithm = _header(token)
        if algorithm not in rules.algorithms:
            raise Refused("the token's algorithm is none of those taken here")
        key = await self.keys.find(key_id, algorithm)
        if key is None:
            raise Refused("the token is signed with a key that its issuer does not show")
        try:
            claims = jwt.decode(
                token,
                key.key,
                # The one that the key was looked up for, and no other.
                algorithms=[algorithm],
                issuer=rules.issuer,
                audience=rules.audience,
                leeway=rules.leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            # By the name of its kind alone: the text of some holds what the token says.
            raise Refused(f"the token is not good: {type(error).__name__}") from None
        except (TypeError, ValueError, OverflowError):
            raise Refused("malformed token") from None
        return self._identity(claims)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        rules = self._rules
        tenant, subject = claims.get(rules.tenant_claim), claims.get("sub")
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise Refused(f"the token's claim {rules.tenant_claim!r} names no tenant")
        if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
            raise Refused("the token's subject is not 1 to 128 visible ASCII characters")
        models = None if rules.models_claim is None else _models(claims.get(rules.models_claim), rules.models_claim)
        return Identity(tenant=tenant, subject=f"token:{subject}", models=models)


def _header(token: str) -> tuple[str | None, str]:
    if len(token) > _MAX_CHARS:
        raise Refused("malformed token: too long")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Refused("malformed token") from None
    key_id, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise Refused("malformed token")
    return key_id, algorithm


def _models(claim: object, name: str) -> frozenset[str]:
    given = claim.split() if isinstance(claim, str) else claim
    # One without it is refused: whoever set the rule up means it, and "all" must not be what a mistake gives.
    if not isinstance(given, list) or not all(isinstance(model, str) for model in given) or len(given) > _MOST_MODELS:
        raise Refused(f"the token's claim {name!r} is no list of models")
    return frozenset(given)
