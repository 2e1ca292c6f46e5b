"""Slots: bounded, fair, never leaked, and honest about how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from service.admission.limits import AdmissionLimits
from service.admission.slots import Slots, Ticket
from service.core.errors import Reason, ServiceError
from service.core.request import Priority

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def slots_of(
    running: int,
    *,
    waiting: int = 8,
    clock: Clock | None = None,
    reserved: int = 0,
    refuses_hopeless: bool = True,
    lot: float = 1.0,
) -> Slots:
    """Return slots on a clock that stands; `lot` is what is drawn each time, 1 of which nobody has a chance."""
    limits = AdmissionLimits(
        running=running,
        reserved=reserved,
        waiting=waiting,
        waiting_batch=waiting,
        refuses_hopeless=refuses_hopeless,
    )
    return Slots(limits, clock or Clock(), lambda: lot)


async def hold(
    slots: Slots, count: int, entered: list[int], name: int, leave: asyncio.Event, priority: Priority = INTERACTIVE
) -> None:
    async with slots.take(count, priority=priority):
        entered.append(name)
        await leave.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waiting_is_first_come_first_served_and_large_requests_do_not_starve() -> None:
    slots, entered = slots_of(2), []
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


async def test_counts_are_told_apart_by_class() -> None:
    slots = slots_of(4, reserved=1)
    with entered(slots, 2), entered(slots, 2, BATCH), entered(slots, 3), entered(slots, 1, BATCH):
        assert [slots.running_of(priority) for priority in (INTERACTIVE, BATCH)] == [2, 2]
        assert [slots.waiting_of(priority) for priority in (INTERACTIVE, BATCH)] == [1, 1]
    assert (slots.running_limit, slots.limits.running_batch) == (4, 3)


class entered:  # noqa: N801 - reads as what it is
    """A ticket for the length of a block, without a task."""

    def __init__(self, slots: Slots, count: int = 1, priority: Priority = INTERACTIVE, tenant: str = "") -> None:
        self.ticket = slots.enter(count, priority=priority, tenant=tenant)

    def __enter__(self) -> Ticket:
        return self.ticket

    def __exit__(self, *_: object) -> None:
        self.ticket.leave()


@pytest.mark.parametrize("priority", Priority)
async def test_a_full_line_is_refused_at_once(priority: Priority) -> None:
    slots = slots_of(1, waiting=1)
    with entered(slots), entered(slots, priority=priority):
        with pytest.raises(ServiceError) as refused:
            slots.enter(priority=priority)
        assert refused.value.reason is Reason.QUEUE_FULL
        assert refused.value.metadata == {"queueLimit": "1", "priority": priority.value}
        assert refused.value.retry_after_s == 1.0
        assert slots.waiting == 1
    assert (slots.running, slots.waiting) == (0, 0)


async def test_who_asks_before_it_stands_in_line_is_told_that_it_is_full() -> None:
    slots = slots_of(1, waiting=1)
    async with slots.enter(), slots.enter():
        with pytest.raises(ServiceError) as refused:
            slots.check_room()
        assert refused.value.reason is Reason.QUEUE_FULL
        assert slots.was_full_within(1)
        slots.check_room(BATCH)
    slots.check_room()


async def test_a_tenant_whose_share_of_the_line_is_full_is_refused_and_others_are_not() -> None:
    slots = slots_of(1, waiting=4)
    slots.share_of = lambda tenant: 0.5 if tenant == "a" else None
    with entered(slots), entered(slots, tenant="a"), entered(slots, tenant="a"):
        for ask in (slots.enter, slots.check_room):
            with pytest.raises(ServiceError) as refused:
                ask(tenant="a")
            assert refused.value.reason is Reason.QUEUE_FULL
            assert refused.value.metadata == {"queueLimit": "2", "priority": "interactive", "limit": "queue_share"}
        # It is no sign that the server has too much to do.
        assert not slots.was_full_within(60)
        slots.check_room(BATCH, "a")
        with entered(slots, tenant="b"), entered(slots, tenant="b"):
            with pytest.raises(ServiceError) as refused:
                slots.enter(tenant="b")
            assert "limit" not in refused.value.metadata
            assert slots.was_full_within(60)


def test_a_share_of_a_line_is_one_place_at_least() -> None:
    limits = AdmissionLimits(running=1, waiting=10, waiting_batch=3)
    assert [limits.places_of(INTERACTIVE, share) for share in (None, 1, 0.59, 0.01)] == [10, 10, 5, 1]
    assert limits.places_of(BATCH, 0.5) == 1
    assert AdmissionLimits(running=1, waiting=0).places_of(INTERACTIVE, 0.5) == 0


async def test_the_line_was_full_as_long_ago_as_the_last_refusal(clock: Clock) -> None:
    slots = slots_of(1, waiting=0, clock=clock)
    with entered(slots):
        assert not slots.was_full_within(60)
        with pytest.raises(ServiceError):
            slots.enter()
        assert slots.was_full_within(0)
        clock.now_s += 10
        assert (slots.was_full_within(9), slots.was_full_within(10)) == (False, True)


async def test_more_slots_than_exist_is_a_programming_error() -> None:
    slots = slots_of(1)
    with pytest.raises(ValueError, match="asked for"):
        slots.enter(2)
    assert (slots.running, slots.waiting) == (0, 0)


class TestTicket:
    async def test_it_has_its_slots_at_once_where_they_are_free(self) -> None:
        slots = slots_of(2)
        async with slots.enter(2) as ticket:
            assert ticket.is_granted
            assert (ticket.ahead, ticket.estimated_wait_s()) == (0, 0.0)
            assert await ticket.wait()
            assert slots.running == 2
        assert not ticket.is_granted
        assert slots.running == 0

    async def test_it_waits_and_is_woken(self) -> None:
        slots = slots_of(1)
        first = slots.enter()
        async with slots.enter() as ticket:
            waiting = asyncio.create_task(ticket.wait())
            await settle()
            assert not waiting.done()
            first.leave()
            assert await waiting
            assert ticket.is_granted

    async def test_it_tells_its_place(self) -> None:
        slots = slots_of(1)
        tickets = [slots.enter() for _ in range(4)]
        assert [ticket.ahead for ticket in tickets] == [0, 0, 1, 2]
        tickets[1].leave()
        tickets[0].leave()
        assert [ticket.ahead for ticket in tickets[2:]] == [0, 0]
        assert tickets[2].is_granted

    async def test_a_wait_ends_when_its_time_has_passed_and_the_place_stays(self) -> None:
        slots = slots_of(1)
        first, second = slots.enter(), slots.enter()
        assert not await second.wait(0.0)
        assert not await second.wait(0.001)
        assert slots.waiting == 1
        first.leave()
        assert await second.wait(0.0)

    async def test_a_cancelled_wait_keeps_the_place_until_the_block_is_left(self) -> None:
        slots = slots_of(1)
        first = slots.enter()
        async with slots.enter() as ticket:
            waiting = asyncio.create_task(ticket.wait())
            await settle()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            first.leave()
            assert ticket.is_granted
            assert await ticket.wait()
        assert (slots.running, slots.waiting) == (0, 0)

    async def test_leaving_is_idempotent(self) -> None:
        slots = slots_of(1)
        first, second, third = slots.enter(), slots.enter(), slots.enter()
        async with first:
            first.leave()
            assert second.is_granted
            first.leave()
        second.leave()
        second.leave()
        assert third.is_granted
        third.leave()
        assert (slots.running, slots.waiting) == (0, 0)

    async def test_a_wait_for_a_ticket_that_is_left_meanwhile_ends(self) -> None:
        slots = slots_of(1)
        with entered(slots):
            ticket = slots.enter()
            waiting = asyncio.create_task(ticket.wait())
            await settle()
            ticket.leave()
            assert not await waiting
            assert not await ticket.wait()

    async def test_two_tasks_may_not_wait_for_one(self) -> None:
        slots = slots_of(1)
        with entered(slots), entered(slots) as ticket:
            waiting = asyncio.create_task(ticket.wait())
            await settle()
            with pytest.raises(RuntimeError, match="two tasks"):
                await ticket.wait()
            waiting.cancel()


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("timeout_s", [None, 30.0])
async def test_cancel_at_any_moment_leaks_no_slot(turns: int, timeout_s: float | None) -> None:
    slots, leave, order = slots_of(1), asyncio.Event(), []

    async def work(name: int, ends: asyncio.Event) -> None:
        async with slots.enter() as ticket:
            assert await ticket.wait(timeout_s)
            order.append(name)
            await ends.wait()

    first = asyncio.create_task(work(0, leave))
    await settle()
    second = asyncio.create_task(work(1, asyncio.Event()))
    third = asyncio.create_task(work(2, leave))
    await settle()
    leave.set()  # the slot is granted to the second within the next turns ...
    for _ in range(turns):
        await asyncio.sleep(0)
    second.cancel()  # ... and it is cancelled right around that
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert (slots.running, slots.waiting) == (0, 0)
    assert not slots._waiters
    assert 2 in order


async def test_a_cancel_in_the_turn_of_the_grant_hands_the_slot_on() -> None:
    slots, order = slots_of(1), []
    first, leave = slots.enter(), asyncio.Event()
    second, third = (asyncio.create_task(hold(slots, 1, order, name, leave)) for name in (1, 2))
    await settle()
    first.leave()
    second.cancel()
    await settle()
    assert order == [2]
    leave.set()
    await asyncio.gather(second, third, return_exceptions=True)
    assert slots.running == 0


@pytest.mark.parametrize("priority", Priority)
async def test_cancel_of_a_waiting_request_lets_the_other_class_on(priority: Priority) -> None:
    slots, order, leave = slots_of(2), [], asyncio.Event()
    first = asyncio.create_task(hold(slots, 1, order, 0, leave))
    await settle()
    large = asyncio.create_task(hold(slots, 2, order, 1, leave, priority))
    await settle()
    small = asyncio.create_task(hold(slots, 1, order, 2, leave, BATCH))
    await settle()
    assert order == [0]
    large.cancel()
    await settle()
    assert order == [0, 2]
    leave.set()
    await asyncio.gather(first, large, small, return_exceptions=True)
    assert (slots.running, slots.waiting) == (0, 0)


def refusal(slots: Slots, remaining_s: float, **request: Any) -> ServiceError:
    """Return the refusal of the second of two such requests: the first may be let in to show that it is wrong."""
    with suppress(ServiceError):
        slots.check_deadline(remaining_s, 1, **request)
    with pytest.raises(ServiceError) as refused:
        slots.check_deadline(remaining_s, 1, **request)
    return refused.value


class TestResize:
    async def test_more_slots_are_granted_at_once(self) -> None:
        slots = slots_of(1)
        with entered(slots), entered(slots) as second, entered(slots) as third:
            waiting = asyncio.ensure_future(second.wait())
            await asyncio.sleep(0)
            slots.resize(replace(slots.limits, running=2))
            assert await waiting
            assert not third.is_granted
            assert (slots.running_limit, slots.running, slots.waiting) == (2, 2, 1)

    async def test_with_fewer_nobody_gets_one_until_as_few_run(self) -> None:
        slots = slots_of(3)
        with entered(slots) as first, entered(slots) as second, entered(slots), entered(slots) as last:
            slots.resize(replace(slots.limits, running=2))
            first.leave()
            assert not last.is_granted
            second.leave()
            assert last.is_granted

    async def test_who_waits_for_more_than_there_are_runs_alone(self) -> None:
        slots = slots_of(4)
        with entered(slots) as first, entered(slots, 4) as large, entered(slots) as last:
            slots.resize(replace(slots.limits, running=2))
            assert not large.is_granted
            first.leave()
            assert (large.is_granted, last.is_granted) == (True, False)
            large.leave()
            assert last.is_granted


class TestEstimates:
    """Slots are held for 4 s each."""

    @pytest.fixture
    def slots(self, clock: Clock) -> Iterator[Slots]:
        slots = slots_of(2, waiting=4, clock=clock)
        self.see(slots, clock, 16)
        yield slots
        assert (slots.running, slots.waiting) == (0, 0)

    def see(self, slots: Slots, clock: Clock, count: int, held_s: float = 4.0) -> None:
        """Let so many run, as many at once as there are slots; a first token takes a quarter of the time."""
        for _ in range(count // slots.running_limit):
            tickets = [slots.enter() for _ in range(slots.running_limit)]
            clock.now_s += held_s / 4
            for _ in tickets:
                slots.note_first_token(held_s / 4)
            clock.now_s += held_s * 3 / 4
            for ticket in tickets:
                ticket.leave()

    async def test_a_waiting_request_is_told_the_mean_wait(self, slots: Slots) -> None:
        with entered(slots, 2), entered(slots) as next_one, entered(slots) as last:
            assert next_one.estimated_wait_s() == pytest.approx(2)
            assert last.estimated_wait_s() == pytest.approx(4)

    async def test_nothing_is_told_while_nothing_was_seen(self) -> None:
        slots = slots_of(1)
        with entered(slots), entered(slots) as ticket:
            assert ticket.estimated_wait_s() is None

    async def test_a_refused_request_is_told_when_a_place_is_likely_free(self, slots: Slots) -> None:
        with entered(slots, 2), entered(slots), entered(slots), entered(slots), entered(slots):
            with pytest.raises(ServiceError) as refused:
                slots.enter()
            assert refused.value.retry_after_s == pytest.approx(2)

    @pytest.mark.parametrize(("held_s", "retry_s"), [(0.01, 0.1), (100.0, 30.0)])
    async def test_what_a_refused_request_is_told_has_bounds(self, clock: Clock, held_s: float, retry_s: float) -> None:
        slots = slots_of(1, waiting=0, clock=clock)
        self.see(slots, clock, 1, held_s)
        with entered(slots), pytest.raises(ServiceError) as refused:
            slots.enter()
        assert refused.value.retry_after_s == retry_s

    async def test_a_deadline_before_the_first_token_is_refused(self, slots: Slots) -> None:
        slots.check_deadline(0.5, 1)
        refused = refusal(slots, 0.499)
        assert refused.reason is Reason.DEADLINE_TOO_SHORT
        assert refused.metadata == {"remainingMs": "499", "queueMs": "0", "firstTokenMs": "500"}
        assert "499 ms" in refused.message
        assert "at least 500 ms" in refused.message

    async def test_a_deadline_before_its_turn_is_refused_by_whole_rounds_alone(self, slots: Slots) -> None:
        with entered(slots, 2), entered(slots, tenant="a"):
            slots.check_deadline(0.5, 1, tenant="b")
            with entered(slots, tenant="a"):
                refused = refusal(slots, 4.4, tenant="a")
                assert refused.metadata == {"remainingMs": "4400", "queueMs": "4000", "firstTokenMs": "500"}
                assert "4000 ms until a slot is free" in refused.message
                slots.check_deadline(4.5, 1, tenant="a")
                slots.check_deadline(0.5, 1, priority=BATCH)

    async def test_more_choices_than_slots_are_somebody_elses_to_refuse(self, slots: Slots) -> None:
        slots.check_deadline(0.5, 100)

    async def test_the_wait_that_refuses_is_that_of_the_last_minute(self, slots: Slots, clock: Clock) -> None:
        with entered(slots, 2), entered(slots), entered(slots):
            assert refusal(slots, 4.0).metadata["queueMs"] == "4000"
            clock.now_s += 60
            slots.check_deadline(4.0, 1)
            assert refusal(slots, 0.4).metadata["queueMs"] == "0"

    async def test_by_lot_one_is_let_in_that_may_show_it_wrong(self, clock: Clock) -> None:
        slots = slots_of(2, clock=clock, lot=0.4)
        self.see(slots, clock, 16)
        for remaining_s in (0.2, 0.1):  # the one that has the most time, and by lot one of two
            slots.check_deadline(remaining_s, 1)
        with pytest.raises(ServiceError):
            slots.check_deadline(0.1, 1)
        slots.note_first_token(0.1)
        slots.check_deadline(0.05, 1)

    async def test_nobody_is_let_in_whose_turn_comes_too_late_in_any_case(self, clock: Clock) -> None:
        slots = slots_of(2, clock=clock, lot=0.0)
        self.see(slots, clock, 16)
        with entered(slots, 2), entered(slots), entered(slots):
            with pytest.raises(ServiceError):
                slots.check_deadline(3.9, 1)
            slots.check_deadline(4.1, 1)

    async def test_fewer_than_16_observations_refuse_nothing(self, clock: Clock) -> None:
        slots = slots_of(1, clock=clock)
        self.see(slots, clock, 15, held_s=1.0)
        with entered(slots), entered(slots):
            for _ in range(2):
                slots.check_deadline(0.001, 1)

    async def test_it_can_be_switched_off(self, clock: Clock) -> None:
        slots = slots_of(1, clock=clock, refuses_hopeless=False)
        self.see(slots, clock, 64, held_s=1.0)
        for _ in range(2):
            slots.check_deadline(0.001, 1)
