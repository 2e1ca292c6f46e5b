"""Shared by all tests: an environment without settings of the person who runs them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.landing import IS_LANDING

# How long an example takes says more about the machine than about the code. What decides about a landing is repeatable;
# everybody else's runs look for new examples.
settings.register_profile("headrace", deadline=None)
settings.register_profile("landing", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("landing" if IS_LANDING else "headrace")

# They run in an environment of their own: make clients.
collect_ignore = ["clients"]
pytest_plugins = ["tests.support.service", "tests.support.triton_server"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave the modules and the items, some millions of objects, out of every look of the garbage collector."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("HEADRACE_", "OTEL_")):
            monkeypatch.delenv(name)
