"""From a thread to the loop: nothing lost, nothing unbounded, nobody left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from service.backends.base import EngineItem, EngineOutput
from service.backends.llamacpp.handover import Handover


def item(number: int) -> EngineOutput:
    return EngineOutput(str(number).encode())


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def until_full(handover: Handover) -> None:
    while not handover.is_full:  # noqa: ASYNC110 - a thread fills it, which sets no event
        await asyncio.sleep(0)


async def read_all(handover: Handover) -> list[EngineItem]:
    items = []
    while (found := await handover.next()) is not None:
        items.append(found)
    return items


@pytest.mark.parametrize("limit", [1, 2, 7, 256])
async def test_everything_arrives_in_order_through_any_bound(limit: int) -> None:
    handover = Handover(asyncio.get_running_loop(), limit)

    def work() -> None:
        for number in range(2000):
            assert handover.put(item(number))
        handover.end()

    thread = in_thread(work)
    assert await read_all(handover) == [item(number) for number in range(2000)]
    thread.join()


async def test_a_writer_waits_for_a_slow_reader_and_holds_no_more_than_the_bound() -> None:
    handover = Handover(asyncio.get_running_loop(), 3)
    most = 0

    def work() -> None:
        nonlocal most
        for number in range(10):
            handover.put(item(number))
            most = max(most, len(handover._items))
        handover.end()

    thread = in_thread(work)
    await until_full(handover)
    assert thread.is_alive()
    assert len(await read_all(handover)) == 10
    thread.join()
    assert most == 3


async def test_cancelling_frees_a_writer_that_waits() -> None:
    handover = Handover(asyncio.get_running_loop(), 1)
    answers: list[bool] = []
    thread = in_thread(lambda: answers.extend([handover.put(item(1)), handover.put(item(2))]))
    await until_full(handover)
    handover.cancel()
    thread.join(timeout=5)
    assert answers == [True, False]


async def test_what_arrived_before_a_failure_is_read_first() -> None:
    handover = Handover(asyncio.get_running_loop())
    handover.put(item(1))
    handover.end(ValueError("broken"))
    handover.end()  # the first end counts
    assert await handover.next() == item(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await handover.next()


async def test_a_sleeping_reader_is_woken_by_the_end() -> None:
    handover = Handover(asyncio.get_running_loop())
    reader = asyncio.create_task(handover.next())
    await asyncio.sleep(0)
    in_thread(handover.end).join()
    assert await asyncio.wait_for(reader, 5) is None


async def test_a_cancelled_reader_leaves_the_handover_usable() -> None:
    handover = Handover(asyncio.get_running_loop())
    reader = asyncio.create_task(handover.next())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    handover.put(item(1))
    assert await handover.next() == item(1)


def test_a_closed_loop_stops_the_writer() -> None:
    loop = asyncio.new_event_loop()
    handover = Handover(loop)
    reader = loop.create_task(handover.next())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert handover.put(item(1)) is False
    assert handover.is_cancelled
    # Its loop is gone, so that it can only be dropped.
    reader._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_loop_closed_while_the_writer_waits_frees_it() -> None:
    loop = asyncio.new_event_loop()
    handover = Handover(loop, 1)
    assert handover.put(item(1))
    loop.close()
    assert handover.put(item(2)) is False
