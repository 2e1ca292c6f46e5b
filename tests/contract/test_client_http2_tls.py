"""TLS of the client's own HTTP/2: roots, names, certificates of callers, ALPN, on both event loops."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop

from headrace import AsyncClient, TlsConfig, errors
from tests.support.fake_service import completed, delta, fake_service, finished, started

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


def client_at(address: str, **more: Any) -> AsyncClient:
    return AsyncClient(address, transport="asyncio", **more)


async def text_of(client: AsyncClient, **more: Any) -> str:
    async with client.generate(model="m", prompt="p", **more) as stream:
        return await stream.text()


def issue(folder: Path, name: str, *, by: str | None = None) -> tuple[bytes, bytes]:
    """Make a key and a certificate for `name`, signed by another one or by itself; return both as PEM."""
    key, cert, request = (str(folder / f"{name}.{kind}") for kind in ("key", "pem", "csr"))
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key]
    new += ["-subj", f"/CN={name}"]
    if by is None:
        steps = [[*new, "-x509", "-days", "2", "-out", cert, "-addext", f"subjectAltName=DNS:{name}"]]
    else:
        (folder / "ext").write_text(f"subjectAltName=DNS:{name}")
        sign = ["openssl", "x509", "-req", "-in", request, "-CA", str(folder / f"{by}.pem")]
        sign += ["-CAkey", str(folder / f"{by}.key"), "-CAcreateserial", "-days", "2", "-out", cert]
        steps = [[*new, "-out", request], [*sign, "-extfile", str(folder / "ext")]]
    for step in steps:
        subprocess.run(step, check=True, capture_output=True, timeout=30)
    return Path(key).read_bytes(), Path(cert).read_bytes()


@needs_openssl
async def test_a_tls_server_that_does_not_offer_http2_is_unavailable(tmp_path: Path) -> None:
    _, cert = issue(tmp_path, "llm.test")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "llm.test.pem", tmp_path / "llm.test.key")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tls = TlsConfig(root_certificates=cert, server_name="llm.test")
    async with server, client_at(address, tls=tls) as client:
        with pytest.raises(errors.Unavailable, match="ALPN"):
            await text_of(client, timeout_s=8)


@needs_openssl
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tls_checks_roots_and_name_and_mutual_tls_shows_a_certificate(tmp_path: Path, loop: str) -> None:
    _, root = issue(tmp_path, "root.test")
    server = issue(tmp_path, "llm.test", by="root.test")
    key, chain = issue(tmp_path, "caller.test", by="root.test")
    _, stranger = issue(tmp_path, "stranger.test")

    async def run() -> None:
        plain = grpc.ssl_server_credentials([server])
        mutual = grpc.ssl_server_credentials([server], root_certificates=root, require_client_auth=True)
        named = TlsConfig(root_certificates=root, server_name="llm.test")
        async with fake_service(credentials=plain) as fake:
            async with client_at(fake.address, tls=named) as client:
                fake.will(started(), delta("a" * 200_000), finished(), completed())
                assert len(await text_of(client)) == 200_000
                assert await asyncio.gather(*[text_of(client) for _ in range(20)]) == ["Hello world"] * 20
            wrong_root = TlsConfig(root_certificates=stranger, server_name="llm.test")
            for tls in (TlsConfig(root_certificates=root), wrong_root):
                async with client_at(fake.address, tls=tls) as client:
                    with pytest.raises(errors.Unavailable, match="certificate"):
                        await text_of(client, timeout_s=8)
            async with client_at(fake.address) as client:
                with pytest.raises(errors.Unavailable):
                    await text_of(client, timeout_s=8)
        async with fake_service(credentials=mutual) as fake:
            known = TlsConfig(root_certificates=root, certificate_chain=chain, private_key=key, server_name="llm.test")
            async with client_at(fake.address, tls=known) as client:
                assert await text_of(client) == "Hello world"
            async with client_at(fake.address, tls=named) as client:
                with pytest.raises(errors.Unavailable):
                    await text_of(client, timeout_s=8)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(run())


def test_certificates_that_cannot_be_used_are_refused_at_once() -> None:
    for broken in (b"no pem", b"\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(ValueError, match="TLS"):
            client_at("127.0.0.1:1", tls=TlsConfig(root_certificates=broken))
    with pytest.raises(ValueError, match="TLS"):
        client_at("127.0.0.1:1", tls=TlsConfig(certificate_chain=b"x", private_key=b"y"))
