"""JSON Web Tokens: the rules, the issuer's keys, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from service.core.errors import Reason, ServiceError
from service.core.identity import Identity
from service.tenancy.fetching import FetchError, url_problem
from service.tenancy.issuer_keys import IssuerKeys, VerifyingKey, parse_key_set
from service.tenancy.refusal import Refused
from tests.support.credentials import Issuer


def known(issuer: Issuer, read: Callable[[], Sequence[VerifyingKey]] | None = None, **fields: Any) -> IssuerKeys:
    return IssuerKeys(read or (lambda: parse_key_set(issuer.key_set())), refresh_s=3600, **fields)


async def cause(issuer: Issuer, token: str, **rules: Any) -> str:
    with pytest.raises(Refused) as refused:
        await issuer.checker(known(issuer), **rules).identify(token)
    return refused.value.cause


async def test_a_good_token_shows_whose_it_is() -> None:
    issuer = Issuer()
    checker = issuer.checker(known(issuer))
    assert await checker.identify(issuer.token()) == Identity(tenant="acme", subject="token:alice")
    several = issuer.token(aud=["else", "headrace"])
    assert (await checker.identify(several)).tenant == "acme"
    without_id = jwt.encode(issuer.claims(), issuer.private, algorithm="ES256")
    assert (await checker.identify(without_id)).tenant == "acme"


async def test_tokens_are_signed_with_rsa_or_ed25519_too() -> None:
    for algorithm, kind, private in (
        ("RS256", jwt.algorithms.RSAAlgorithm, rsa.generate_private_key(65537, 2048)),
        ("PS256", jwt.algorithms.RSAAlgorithm, rsa.generate_private_key(65537, 2048)),
        ("EdDSA", jwt.algorithms.OKPAlgorithm, ed25519.Ed25519PrivateKey.generate()),
    ):
        issuer = Issuer()
        document = {"keys": [{**kind.to_jwk(private.public_key(), as_dict=True), "kid": "k1"}]}
        keys = known(issuer, partial(parse_key_set, document))
        token = jwt.encode(issuer.claims(), private, algorithm=algorithm, headers={"kid": "k1"})
        checker = issuer.checker(keys, algorithms=frozenset({algorithm}))
        assert (await checker.identify(token)).tenant == "acme"


async def test_claims_for_tenant_and_models_have_the_names_of_the_settings() -> None:
    issuer = Issuer()
    name = "https://example.com/tenant"
    for models in (["sim", "b"], "sim b"):
        checker = issuer.checker(known(issuer), tenant_claim=name, models_claim="models")
        identity = await checker.identify(issuer.token(**{name: "beta", "models": models}))
        assert (identity.tenant, identity.models) == ("beta", frozenset({"sim", "b"}))


NOW = int(time.time())  # when the tests are collected: run so much later as a slow machine makes them
DAY = 24 * 3600


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"exp": NOW - 60}, "ExpiredSignatureError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"nbf": NOW + DAY}, "ImmatureSignatureError"),
        ({"iss": "https://else.example"}, "InvalidIssuerError"),
        ({"iss": None}, "MissingRequiredClaimError"),
        ({"aud": "else"}, "InvalidAudienceError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"sub": None}, "MissingRequiredClaimError"),
        ({"sub": "a b"}, "subject"),
        ({"tenant": None}, "'tenant'"),
        ({"tenant": "a b"}, "'tenant'"),
        ({"tenant": 7}, "'tenant'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),  # not by the clock
)
async def test_a_token_that_breaks_a_rule_is_refused(claims: dict[str, Any], expected: str) -> None:
    issuer = Issuer()
    assert expected in await cause(issuer, issuer.token(**claims))


@pytest.mark.parametrize("models", [None, 3, [1], {"sim": True}])
async def test_a_token_without_the_models_that_it_must_have_is_refused(models: object) -> None:
    issuer = Issuer()
    assert "models" in await cause(issuer, issuer.token(models=models), models_claim="models")


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


async def test_forged_tokens_are_refused() -> None:
    issuer, stranger = Issuer(), Issuer()
    stranger.port = issuer.port
    head, body, signature = issuer.token().split(".")
    assert "InvalidSignatureError" in await cause(issuer, stranger.token())
    other_body = part(issuer.claims(tenant="beta"))
    assert "InvalidSignatureError" in await cause(issuer, f"{head}.{other_body}.{signature}")
    assert "does not show" in await cause(issuer, issuer.token(headers={"kid": "k2"}))
    # Without a signature, and with the public key as a secret.
    unsigned = f"{part({'alg': 'none', 'kid': 'k1'})}.{body}."
    assert "algorithm" in await cause(issuer, unsigned)
    public = issuer.private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signed = f"{part({'alg': 'HS256', 'kid': 'k1'})}.{body}"
    mac = base64.urlsafe_b64encode(hmac.digest(public, signed.encode(), "sha256")).decode().rstrip("=")
    assert "algorithm" in await cause(issuer, f"{signed}.{mac}")
    # An algorithm that is taken, and that the key is not for.
    assert "does not show" in await cause(issuer, f"{part({'alg': 'RS256', 'kid': 'k1'})}.{body}.{signature}")
    assert "malformed" in await cause(issuer, issuer.token(headers={"crit": ["x"], "x": 1}))


@pytest.mark.parametrize(
    "token",
    ["a.b.c", "..", "é.é.é", "a" * 9000 + "..", part([]) + ".a.b", part({"alg": 3}) + ".a.b", part({"kid": 3}) + ".."],
    ids=lambda token: token[:12],
)
async def test_malformed_tokens_are_refused(token: str) -> None:
    assert "malformed token" in await cause(Issuer(), token)


# The key set


def test_keys_that_cannot_check_signatures_are_left_out() -> None:
    issuer = Issuer()
    good = issuer.key_set()["keys"][0]
    small = jwt.algorithms.RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    whole = jwt.algorithms.ECAlgorithm.to_jwk(issuer.private, as_dict=True)
    symmetric = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    odd = [{"kty": "EC"}, {"kty": "XX"}, {}, 7, None, {**good, "alg": 3}, {**good, "use": "enc"}, {**good, "x": "!"}]
    (key,) = parse_key_set({"keys": [small, whole, symmetric, *odd, good]})
    assert (key.id, key.kind) == ("k1", "EC")
    for document in ({}, {"keys": []}, {"keys": "x"}, {"keys": odd}):
        with pytest.raises(FetchError):
            parse_key_set(document)


def test_a_key_fits_the_algorithms_of_its_kind_and_only_the_one_that_it_names() -> None:
    okp = jwt.algorithms.OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate().public_key(), as_dict=True)
    ec = Issuer().key_set()["keys"][0]
    edwards, elliptic, named = parse_key_set({"keys": [okp, ec, {**ec, "alg": "ES256"}]})
    assert edwards.fits("EdDSA")
    assert not edwards.fits("ES256")
    assert elliptic.fits("ES384")  # the curve is looked at with the signature
    assert not named.fits("ES384")


async def test_an_unknown_key_is_looked_for_once_for_all_and_seldom() -> None:
    issuer, reads = Issuer(), 0

    def read() -> Sequence[VerifyingKey]:
        nonlocal reads
        reads += 1
        return parse_key_set(issuer.key_set())

    keys = known(issuer, read, least_gap_s=0.0)
    await keys.find("k1", "ES256")
    assert reads == 1
    found = await asyncio.gather(*(keys.find("k2", "ES256") for _ in range(50)))
    assert (set(found), reads) == ({None}, 2)
    issuer.rotate("k3")
    assert await keys.find("k3", "ES256")
    assert reads == 3
    seldom = known(issuer, read)
    for number in range(50):
        await seldom.find(f"made-up-{number}", "ES256")
    assert reads == 4


async def test_a_caller_that_leaves_ends_the_look_for_nobody_else() -> None:
    issuer, go = Issuer(), threading.Event()

    def read() -> Sequence[VerifyingKey]:
        go.wait(5)
        return parse_key_set(issuer.key_set())

    keys = known(issuer, read)
    first, second = (asyncio.create_task(keys.find("k1", "ES256")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await second


async def test_while_no_key_was_ever_read_tokens_wait_for_better_times(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> Sequence[VerifyingKey]:
        raise FetchError("https://issuer.example: refused")

    keys = known(Issuer(), read)
    await keys.start()
    try:
        with pytest.raises(ServiceError) as refused:
            await keys.find("k1", "ES256")
    finally:
        await keys.close()
    assert (refused.value.reason, refused.value.retry_after_s) == (Reason.STORE_UNAVAILABLE, 5.0)
    assert "issuer.example" in caplog.text


async def test_an_issuer_that_hangs_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    issuer, go = Issuer(), threading.Event()
    keys = known(issuer, lambda: [] * go.wait(5), wait_s=0.05)
    await keys.start()
    await keys.close()
    go.set()
    assert "no answer within 0.05 s" in caplog.text


async def test_a_fault_in_reading_ends_no_renewing(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Sequence[VerifyingKey]] = [parse_key_set(Issuer().key_set())]
    keys = IssuerKeys(answers.pop, refresh_s=0.01)
    caplog.set_level(logging.CRITICAL)  # each look from the second on fails
    await keys.start()
    await asyncio.sleep(0.05)
    assert await keys.find("k1", "ES256")
    await keys.close()


@pytest.mark.parametrize(
    ("url", "is_good"),
    [
        ("https://issuer.example/jwks", True),
        ("http://127.0.0.1:1/jwks", True),
        ("http://[::1]/jwks", True),
        ("http://localhost/x", True),
        ("http://issuer.example/jwks", False),
        ("https://user:pass@issuer.example/", False),
        ("https:///x", False),
        ("ftp://127.0.0.1/", False),
        ("file:///etc/passwd", False),
        ("https://[", False),
        ("x", False),
    ],
)
def test_keys_come_over_https_or_from_this_machine(url: str, *, is_good: bool) -> None:
    assert (url_problem(url) is None) == is_good
