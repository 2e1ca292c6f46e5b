"""What a probe of the gateway is told, and how long it waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gateway import readiness
from gateway.readiness import Readiness, ServiceHealth


class Service:
    """Answers at once, until it is made slow."""

    def __init__(self) -> None:
        self.says = ServiceHealth.SERVING
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()

    async def ask(self) -> ServiceHealth:
        self.asked += 1
        await self.go.wait()
        return self.says


@pytest.fixture(autouse=True)
def rarely_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the probes of a test ask, but for the first question."""
    monkeypatch.setattr(readiness, "_REFRESH_S", 60)


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture
async def known(service: Service) -> AsyncIterator[Readiness]:
    async with Readiness(service.ask) as opened:
        assert await opened.now() is ServiceHealth.SERVING
        yield opened


async def test_a_probe_is_told_what_the_service_says_after_it_came(service: Service, known: Readiness) -> None:
    for says in (ServiceHealth.NOT_SERVING, ServiceHealth.DEGRADED, ServiceHealth.SERVING):
        service.says = says
        assert await known.now() is says


async def test_many_probes_at_once_ask_once(service: Service, known: Readiness) -> None:
    before = service.asked
    assert set(await asyncio.gather(*(known.now() for _ in range(100)))) == {ServiceHealth.SERVING}
    assert service.asked == before + 1


async def test_a_slow_answer_is_not_waited_for_while_the_last_one_is_fresh(service: Service, known: Readiness) -> None:
    service.go.clear()
    service.says = ServiceHealth.NOT_SERVING
    began_s = time.monotonic()
    assert await known.now() is ServiceHealth.SERVING
    assert time.monotonic() - began_s < 0.5  # a tenth of a second, and a busy machine
    service.go.set()
    assert await known.now() is ServiceHealth.NOT_SERVING


async def test_an_old_answer_is_not_told(service: Service, known: Readiness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_FRESH_S", 0)
    service.go.clear()
    service.says = ServiceHealth.NOT_SERVING
    probe = asyncio.create_task(known.now())
    done, _ = await asyncio.wait([probe], timeout=0.3)
    assert not done
    service.go.set()
    assert await probe is ServiceHealth.NOT_SERVING


async def test_a_probe_that_leaves_takes_no_answer_from_the_others(service: Service, known: Readiness) -> None:
    service.go.clear()
    leaves, stays = asyncio.create_task(known.now()), asyncio.create_task(known.now())
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait([leaves])
    service.go.set()
    assert await stays is ServiceHealth.SERVING


async def test_it_asks_by_itself_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_REFRESH_S", 0.001)
    service = Service()
    async with Readiness(service.ask), asyncio.timeout(5):
        while service.asked < 3:  # noqa: ASYNC110 - it is told to nobody
            await asyncio.sleep(0)
        service.go.clear()
    assert {task.get_name() for task in asyncio.all_tasks()} & {"readiness", "health of the service"} == set()
