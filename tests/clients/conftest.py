"""The gateway over every backend, each started once, at its first use; clients are told nothing but its address."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import openai
import pytest

from tests.clients.backends import BACKENDS, Served, serving
from tests.e2e.conftest import pytest_runtest_makereport, pytest_runtest_setup

__all__ = ["pytest_runtest_makereport", "pytest_runtest_setup"]

# Clients look here for keys, addresses and proxies of the person who runs the tests.
_PERSONAL = ("OPENAI_", "LITELLM_", "LANGCHAIN_", "LANGSMITH_", "LLM_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
for _name in list(os.environ):
    if _name.upper().startswith(_PERSONAL):
        del os.environ[_name]
# Read when it is imported: without it litellm fetches a table of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


@pytest.fixture(scope="session")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Served]]:
    """Return the running gateway over a backend by its name."""
    running: dict[str, Served] = {}
    with ExitStack() as entered:

        def start(name: str) -> Served:
            if name not in running:
                running[name] = entered.enter_context(serving(name, tmp_path_factory.mktemp(name)))
            return running[name]

        yield start


@pytest.fixture(params=BACKENDS)
def served(request: pytest.FixtureRequest, backend: Callable[[str], Served]) -> Served:
    """The gateway over each backend in turn."""
    return backend(request.param)


@pytest.fixture
def simulated(backend: Callable[[str], Served]) -> Served:
    """The gateway over the simulator, for what only a script can show."""
    return backend("simulator")


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client towards each backend."""
    async with openai.AsyncOpenAI(base_url=served.url, api_key="k", max_retries=0, timeout=40) as client:
        yield client


@pytest.fixture
async def simulated_client(simulated: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same towards the simulator alone."""
    async with openai.AsyncOpenAI(base_url=simulated.url, api_key="k", max_retries=0, timeout=40) as client:
        yield client


@pytest.fixture
def sync_client(served: Served) -> Iterator[openai.OpenAI]:
    """The same, without asyncio."""
    with openai.OpenAI(base_url=served.url, api_key="k", max_retries=0, timeout=40) as client:
        yield client
