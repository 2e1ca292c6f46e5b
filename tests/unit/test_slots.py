"""Slots: bounded, fair, and never leaked."""

from __future__ import annotations

import asyncio

import pytest

from service.admission.slots import Slots
from service.core.errors import Reason, ServiceError


async def hold(slots: Slots, count: int, entered: list[int], name: int, leave: asyncio.Event) -> None:
    async with slots.take(count):
        entered.append(name)
        await leave.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waiting_is_first_come_first_served_and_large_requests_do_not_starve() -> None:
    slots, entered = Slots(running_limit=2, waiting_limit=8), []
    leave = [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(hold(slots, n, entered, i, leave[i])) for i, n in enumerate((1, 2, 1, 1))]
    await settle()
    assert entered == [0]
    assert (slots.running, slots.waiting) == (1, 3)
    leave[0].set()
    await settle()
    assert entered == [0, 1]
    leave[1].set()
    await settle()
    assert entered == [0, 1, 2, 3]
    for event in leave:
        event.set()
    await asyncio.gather(*tasks)
    assert (slots.running, slots.waiting) == (0, 0)


async def test_a_full_line_is_refused_at_once() -> None:
    slots, leave = Slots(running_limit=1, waiting_limit=1), asyncio.Event()
    tasks = [asyncio.create_task(hold(slots, 1, [], i, leave)) for i in range(2)]
    await settle()
    with pytest.raises(ServiceError) as refused:
        async with slots.take():
            pass
    assert refused.value.reason is Reason.QUEUE_FULL
    assert refused.value.metadata == {"queueLimit": "1"}
    assert refused.value.retry_after_s is not None
    leave.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("turns", range(4))
async def test_cancel_at_any_moment_leaks_no_slot(turns: int) -> None:
    slots, leave, entered = Slots(running_limit=1, waiting_limit=8), asyncio.Event(), []
    first = asyncio.create_task(hold(slots, 1, entered, 0, leave))
    await settle()
    second = asyncio.create_task(hold(slots, 1, entered, 1, asyncio.Event()))
    third = asyncio.create_task(hold(slots, 1, entered, 2, leave))
    await settle()
    leave.set()  # the slot is granted to the second within the next turns ...
    for _ in range(turns):
        await asyncio.sleep(0)
    second.cancel()  # ... and it is cancelled right around that
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert (slots.running, slots.waiting) == (0, 0)
    assert 2 in entered


async def test_more_slots_than_exist_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="asked for"):
        async with Slots(running_limit=1, waiting_limit=1).take(2):
            pass
