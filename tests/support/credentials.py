"""Keys, tokens and certificates for tests, and an issuer of tokens on loopback that can be slow, down or new."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.cli._keys_file import NewKey, add, new_key
from service.tenancy.authenticator import Authenticator
from service.tenancy.issuer_keys import IssuerKeys
from service.tenancy.tokens import TokenChecker, TokenRules, open_issuer_keys

__all__ = ["AUDIENCE", "Issuer", "bearer", "certificate", "made_key", "pem", "serving_issuer", "started"]

AUDIENCE = "headrace"
Metadata = tuple[tuple[str, str], ...]


def bearer(credentials: str) -> Metadata:
    """Return the metadata that goes with a call."""
    return (("authorization", f"Bearer {credentials}"),)


def made_key(path: Path, tenant: str = "acme", **fields: Any) -> NewKey:
    """Add a key to a file as the command does."""
    key = new_key(tenant, **fields)
    add(path, key)
    return key


@asynccontextmanager
async def started(authenticator: Authenticator) -> AsyncIterator[Authenticator]:
    """Follow files and issuer for the length of the block."""
    await authenticator.start()
    try:
        yield authenticator
    finally:
        await authenticator.close()


@dataclass(slots=True, eq=False)
class Issuer:
    """Signs tokens, and serves its keys. `gate` is what an answer waits for; `is_down` cuts connections."""

    port: int = 0
    kid: str = "k1"
    private: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    is_down: bool = False
    gate: asyncio.Event | None = None
    answered: int = 0
    # Instead of the key set.
    body: bytes | None = None
    status: str = "200 OK"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/jwks"

    def rotate(self, kid: str) -> None:
        """Sign with another key from now on, and show that one alone."""
        self.kid, self.private = kid, ec.generate_private_key(ec.SECP256R1())

    def key_set(self) -> dict[str, Any]:
        jwk = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {"keys": [{**jwk, "kid": self.kid, "use": "sig"}]}

    def claims(self, **claims: Any) -> dict[str, Any]:
        """Return good claims; keywords replace some, None takes one out."""
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "exp": now + 300, "iat": now, "tenant": "acme"}
        return {name: value for name, value in {**good, **claims}.items() if value is not None}

    def token(self, *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a signed token."""
        header = {"kid": self.kid, **(headers or {})}
        return jwt.encode(self.claims(**claims), self.private, algorithm="ES256", headers=header)

    def rules(self, **fields: Any) -> TokenRules:
        algorithms = frozenset({"RS256", "ES256"})
        return TokenRules(**{"issuer": self.url, "audience": AUDIENCE, "algorithms": algorithms, **fields})

    def checker(self, keys: IssuerKeys | None = None, **fields: Any) -> TokenChecker:
        """Return what checks its tokens, by its served key set if nothing else is given."""
        return TokenChecker(self.rules(**fields), keys or open_issuer_keys(self.url, self.jwks_url, refresh_s=3600))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.answered += 1
            if self.gate is not None:
                await self.gate.wait()
            if not self.is_down:
                is_discovery = "openid-configuration" in head.partition("\r\n")[0]
                document = {"issuer": self.url, "jwks_uri": self.jwks_url} if is_discovery else self.key_set()
                body = json.dumps(document).encode() if self.body is None else self.body
                writer.write(f"HTTP/1.1 {self.status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving_issuer() -> AsyncIterator[Issuer]:
    """Serve an issuer's key set on loopback for the length of the block."""
    issuer = Issuer()
    server = await asyncio.start_server(issuer.answer, "127.0.0.1", 0)
    issuer.port = server.sockets[0].getsockname()[1]
    try:
        yield issuer
    finally:
        if issuer.gate is not None:
            issuer.gate.set()
        server.close()
        await server.wait_closed()


def certificate(folder: Path, name: str, common_name: str, alternative_names: str) -> None:
    """Make `<name>.key` and `<name>.pem` in a folder with an authority, as openssl writes the names."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
            "-subj", "/CN=" + common_name.replace("/", "\\/"))  # fmt: skip
    (folder / f"{name}.ext").write_text(f"subjectAltName={alternative_names}\n")
    openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext")  # fmt: skip


def pem(folder: Path) -> Callable[[str], bytes]:
    """Return a reader of the files in `folder`."""
    return lambda name: (folder / name).read_bytes()
