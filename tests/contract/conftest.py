"""Runs the tests of the client and of the gateway over both transports: what they promise must not depend on it.

What decides about a landing takes the client's own alone, which is the gateway's default. The client's is grpcio's: the
processes that tests start as a user does, and the conformance scenarios, go through that.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace import _aio
from tests.support.fake_service import FakeService, fake_service
from tests.support.gateway_harness import RawClient, RunningGateway, running_gateway
from tests.support.landing import IS_LANDING
from tests.support.tracing import install_exporter

TRANSPORTS = ("asyncio",) if IS_LANDING else ("grpcio", "asyncio")
VARIABLE = "HEADRACE_GATEWAY_TRANSPORT"
# These say what they need themselves, or start no client.
APART = ("test_client_cli", "test_client_readme", "test_client_http2")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name.startswith(("test_client_", "test_gateway_")) and not name.startswith(APART):
        metafunc.parametrize("transport", TRANSPORTS, indirect=True, scope="module")


# Of every module, since pytest leaves out a fixture that only its hook has named.
@pytest.fixture(scope="module", autouse=True)
def transport(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if not hasattr(request, "param"):
        yield None
        return
    # A default and a variable, since fixtures of modules make gateways and tests make clients of their own.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_aio, "DEFAULT_TRANSPORT", request.param)
        patch.setenv(VARIABLE, request.param)
        yield request.param


@pytest.fixture(autouse=True)
def transport_of_the_environment(clean_environment: None, transport: str | None) -> None:
    if transport is not None:
        os.environ[VARIABLE] = transport


# One gateway over one scripted service for a whole module: for tests that ask for `fake` and `client`.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[tuple[FakeService, RunningGateway]]:
    async with fake_service() as service, running_gateway(service.address) as gateway:
        yield service, gateway


@pytest_asyncio.fixture(loop_scope="module")
async def fake(shared: tuple[FakeService, RunningGateway]) -> FakeService:
    shared[0].forget()
    return shared[0]


@pytest_asyncio.fixture(loop_scope="module")
async def client(shared: tuple[FakeService, RunningGateway]) -> AsyncIterator[RawClient]:
    async with shared[1].connect() as connection:
        yield connection


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Every span that ends during a test."""
    exporter = install_exporter()
    yield exporter
    exporter.clear()
