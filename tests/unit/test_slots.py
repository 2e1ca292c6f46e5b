"""Slots: bounded, fair, and never leaked."""

from __future__ import annotations

import asyncio

import pytest

from service.admission.slots import Slots
from service.core.errors import Reason, ServiceError


async def hold(
    slots: Slots, count: int, entered: list[int], name: int, leave: asyncio.Event, *, batch: bool = False
) -> None:
    async with slots.take(count, batch=batch):
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


async def test_batch_gets_a_slot_only_when_no_interactive_request_waits() -> None:
    slots, entered = Slots(running_limit=1, waiting_limit=8), []
    leave = [asyncio.Event() for _ in range(5)]
    classes = (True, True, True, False, False)
    tasks = []
    for name, batch in enumerate(classes):
        tasks.append(asyncio.create_task(hold(slots, 1, entered, name, leave[name], batch=batch)))
        await settle()
    assert entered == [0]
    assert slots.waiting == 4
    for name in (0, 3, 4, 1):
        leave[name].set()
        await settle()
    assert entered == [0, 3, 4, 1, 2], "both interactive ones first, each class in its order"
    leave[2].set()
    await asyncio.gather(*tasks)
    assert (slots.running, slots.waiting) == (0, 0)


async def test_a_large_interactive_request_is_not_overtaken_by_a_small_batch_one() -> None:
    slots, entered = Slots(running_limit=2, waiting_limit=8), []
    leave = [asyncio.Event() for _ in range(3)]
    first = asyncio.create_task(hold(slots, 1, entered, 0, leave[0]))
    await settle()
    large = asyncio.create_task(hold(slots, 2, entered, 1, leave[1]))
    await settle()
    small = asyncio.create_task(hold(slots, 1, entered, 2, leave[2], batch=True))
    await settle()
    assert entered == [0], "one slot is free, and kept for the one that needs two"
    for event in leave:
        event.set()
        await settle()
    await asyncio.gather(first, large, small)
    assert entered == [0, 1, 2]


async def test_an_interactive_request_passes_a_large_batch_one_that_does_not_fit() -> None:
    slots, entered = Slots(running_limit=2, waiting_limit=8), []
    leave = [asyncio.Event() for _ in range(4)]
    first = asyncio.create_task(hold(slots, 1, entered, 0, leave[0]))
    await settle()
    large = asyncio.create_task(hold(slots, 2, entered, 1, leave[1], batch=True))
    await settle()
    small = asyncio.create_task(hold(slots, 1, entered, 2, leave[2], batch=True))
    await settle()
    assert entered == [0], "no overtaking within a class"
    interactive = asyncio.create_task(hold(slots, 1, entered, 3, leave[3]))
    await settle()
    assert entered == [0, 3]
    for event in leave:
        event.set()
    await asyncio.gather(first, large, small, interactive)
    assert entered == [0, 3, 1, 2]


@pytest.mark.parametrize("batch", [False, True])
async def test_the_waiting_limit_holds_for_both_classes_together(batch: bool) -> None:
    slots, leave = Slots(running_limit=1, waiting_limit=2), asyncio.Event()
    tasks = [asyncio.create_task(hold(slots, 1, [], 0, leave))]
    await settle()
    tasks += [asyncio.create_task(hold(slots, 1, [], 1, leave, batch=each)) for each in (False, True)]
    await settle()
    with pytest.raises(ServiceError) as refused:
        async with slots.take(batch=batch):
            pass
    assert refused.value.reason is Reason.QUEUE_FULL
    leave.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("is_batch_first", [False, True])
async def test_cancel_of_a_waiting_request_lets_the_other_class_on(is_batch_first: bool) -> None:
    slots, entered, leave = Slots(running_limit=2, waiting_limit=8), [], asyncio.Event()
    first = asyncio.create_task(hold(slots, 1, entered, 0, leave))
    await settle()
    large = asyncio.create_task(hold(slots, 2, entered, 1, leave, batch=is_batch_first))
    await settle()
    small = asyncio.create_task(hold(slots, 1, entered, 2, leave, batch=True))
    await settle()
    assert entered == [0]
    large.cancel()
    await settle()
    assert entered == [0, 2]
    leave.set()
    await asyncio.gather(first, large, small, return_exceptions=True)
    assert (slots.running, slots.waiting) == (0, 0)


async def test_more_slots_than_exist_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="asked for"):
        async with Slots(running_limit=1, waiting_limit=1).take(2):
            pass
