"""`headrace doctor`: says what is right, finds what is wrong, and says what to do about it."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from service.rpc.server import ServerOptions, TlsFiles
from service.tenancy.authenticator import Authenticator
from service.tenancy.key_file import KeyFile
from tests.contract.test_server import make_certificates
from tests.support.command_line import Done, run
from tests.support.credentials import made_key, started
from tests.support.gateway_harness import running_gateway
from tests.support.service import RunningService, running_service, service

__all__ = ["service"]

CHECKS = ["address", "TLS", "health", "reflection", "models", "round trip", "time to first token", "cancel"]


def states(done: Done) -> dict[str, str]:
    document: dict[str, Any] = json.loads(done.out)
    assert document["is_well"] is (done.code == 0)
    return {check["check"]: check["state"] for check in document["checks"]}


async def test_all_is_well_with_a_service_that_works(service: RunningService) -> None:
    address = f"127.0.0.1:{service.port}"
    done = await run(address, "doctor")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line[8:29].strip() for line in lines[:-1]] == CHECKS
    assert lines[-1] == "All is well."
    assert set(states(await run(address, "doctor", "--json")).values()) == {"ok"}


async def test_nobody_there_ends_it_with_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    done = await run(address, "doctor")
    assert done.code == 1
    assert "refuses connections" in done.out
    assert "make run" in done.out
    assert states(await run(address, "doctor", "--json")) == {"address": "failed"}


async def test_a_server_that_says_nothing_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with asyncio.timeout(20):
            found = states(await run(address, "doctor", "--json", "--timeout", "0.5"))
    assert found["address"] == "ok"
    assert found["health"] == "failed"
    assert found["models"] == "failed"


async def test_the_gateway_s_port_is_told_from_the_service_s(service: RunningService) -> None:
    async with running_gateway(f"127.0.0.1:{service.port}") as gateway:
        done = await run(f"127.0.0.1:{gateway.port}", "doctor", "--timeout", "1")
    assert done.code == 1
    assert "no gRPC server" in done.out


async def test_missing_credentials_are_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    key = made_key(keys).text
    async with (
        started(Authenticator(KeyFile(keys))) as authenticator,
        running_service(authenticator=authenticator) as service,
    ):
        address = f"127.0.0.1:{service.port}"
        done = await run(address, "doctor")
        assert done.code == 1
        assert "HEADRACE_API_KEY" in done.out
        assert (await run(address, "doctor", "--api-key", key)).code == 0


async def test_tls_that_is_missing_wrong_and_right(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    tls = TlsFiles(certificate=files["server.pem"], key=files["server.key"])
    async with running_service(options=ServerOptions(port=0, tls=tls, health_interval_s=0.2)) as service:
        address = f"localhost:{service.port}"
        plain = await run(address, "doctor", "--timeout", "2")
        assert plain.code == 1
        assert "--tls" in plain.out
        strange = await run(address, "doctor", "--tls", "--timeout", "2")
        assert strange.code == 1
        assert "not trusted" in strange.out
        right = await run(address, "doctor", "--tls-ca", str(files["ca.pem"]))
        assert right.code == 0, right.out


@pytest.mark.parametrize("model", ["nobody's", "sim"])
async def test_a_model_may_be_named(model: str, service: RunningService) -> None:
    done = await run(f"127.0.0.1:{service.port}", "doctor", "--model", model)
    assert done.code == (0 if model == "sim" else 1)
    assert ("there are: sim" in done.out) is (model != "sim")
