"""TLS and mutual TLS towards Triton, over both transports; and what the streams' own transport leaves to gRPC."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.core.errors import Reason
from tests.support.triton_fake import FakeTriton, Final
from tests.support.triton_streams import TRANSPORTS, failure_of, reached, says, words_of

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
both = pytest.mark.parametrize("transport", TRANSPORTS)

NAMES = "subjectAltName=DNS:triton.test"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with root, stranger (of nobody), server and caller: NAME.key and NAME.pem."""
    folder = tmp_path_factory.mktemp("pki")

    def issue(name: str, *, by: str | None = None) -> None:
        key, cert, wanted = (str(folder / f"{name}.{kind}") for kind in ("key", "pem", "csr"))
        new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        new += ["-keyout", key, "-subj", f"/CN={name}"]
        if by is None:
            steps = [[*new, "-x509", "-days", "2", "-out", cert]]
        else:
            (folder / "names").write_text(NAMES if name == "server" else "subjectAltName=DNS:caller.test")
            sign = ["openssl", "x509", "-req", "-in", wanted, "-CA", str(folder / f"{by}.pem"), "-out", cert]
            sign += ["-CAkey", str(folder / f"{by}.key"), "-CAcreateserial", "-days", "2"]
            steps = [[*new, "-out", wanted], [*sign, "-extfile", str(folder / "names")]]
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, timeout=30)

    issue("root")
    issue("stranger")
    issue("server", by="root")
    issue("caller", by="root")
    return folder


def server_of(pki: Path, *, is_mutual: bool = False) -> FakeTriton:
    pair = ((pki / "server.key").read_bytes(), (pki / "server.pem").read_bytes())
    root = (pki / "root.pem").read_bytes() if is_mutual else None
    credentials = grpc.ssl_server_credentials([pair], root_certificates=root, require_client_auth=is_mutual)
    words = [says(b"x" * 50_000), says(b"b"), Final()]
    return FakeTriton(script=words, configs={}, credentials=credentials)


def trusting(pki: Path, authority: str = "root", **more: Any) -> dict[str, Any]:
    return {"root_certificates": pki / f"{authority}.pem", "server_name": "triton.test", **more}


@needs_openssl
@both
async def test_streams_pass_over_tls(pki: Path, transport: str) -> None:
    async with server_of(pki) as fake, reached(fake.url, transport, **trusting(pki)) as triton:
        stream = triton.stream()
        assert await words_of(stream) == [b"x" * 50_000, b"b"]
        await stream.drain()
    assert fake.half_closed == [True]


@needs_openssl
@both
@pytest.mark.parametrize("wrong", ["authority", "name", "plain text"])
async def test_a_server_that_cannot_be_trusted_gets_no_request(pki: Path, transport: str, wrong: str) -> None:
    options = {
        "authority": trusting(pki, "stranger"),
        "name": trusting(pki, server_name="other.test"),
        "plain text": {},
    }[wrong]
    async with server_of(pki) as fake, reached(fake.url, transport, **options) as triton:
        assert (await failure_of(triton.stream(timeout_s=5))).reason is Reason.BACKEND_UNAVAILABLE
    assert fake.requests == []


@needs_openssl
@both
async def test_mutual_tls_shows_the_callers_certificate(pki: Path, transport: str) -> None:
    async with server_of(pki, is_mutual=True) as fake:
        known = trusting(pki, client_certificate=pki / "caller.pem", client_key=pki / "caller.key")
        async with reached(fake.url, transport, **known) as triton:
            assert (await words_of(triton.stream()))[-1] == b"b"
        async with reached(fake.url, transport, **trusting(pki)) as triton:
            assert (await failure_of(triton.stream(timeout_s=5))).reason is Reason.BACKEND_UNAVAILABLE
    assert len(fake.requests) == 1


@both
async def test_key_files_that_cannot_be_read_are_said_at_once(tmp_path: Path, transport: str) -> None:
    with pytest.raises(OSError, match=r"absent\.pem"):
        async with reached("127.0.0.1:1", transport, root_certificates=tmp_path / "absent.pem"):
            pass


async def test_key_files_that_are_no_pem_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no pem")
    with pytest.raises(ValueError, match="TLS"):
        async with reached("127.0.0.1:1", "asyncio", root_certificates=tmp_path / "ca.pem"):
            pass


async def test_a_target_that_only_grpc_understands_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeTriton(script=[says(b"a"), Final()], configs={}) as fake:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_grpc_proxy", "127.0.0.1")  # gRPC's own; nobody else reads it
        with caplog.at_level("INFO", "service.backends.triton.channel"):
            async with reached(fake.url, "asyncio") as triton:
                assert await words_of(triton.stream()) == [b"a"]
    assert "through grpcio" in caplog.text
