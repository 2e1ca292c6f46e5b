"""Shared by all tests: an environment without settings of the person who runs them."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

# They run in an environment of their own: make clients.
collect_ignore = ["clients"]
pytest_plugins = ["tests.support.service", "tests.support.triton_server"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("HEADRACE_", "OTEL_")):
            monkeypatch.delenv(name)
