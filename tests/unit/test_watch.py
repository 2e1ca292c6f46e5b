"""The limits of a generation: each fires in its own phase, and only ours is taken for ours."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.core.deadline import Deadline
from service.core.errors import Reason
from service.core.request import Priority
from service.generation.limits import Limits
from service.generation.watch import Cause, Phase, Watch

FAR = 100.0


async def wait_in(watch: Watch, phase: Phase) -> Reason | None:
    """Wait in `phase` until interrupted; return what the interruption counts as."""
    with watch:
        watch.enter(phase, time.monotonic())
        try:
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            failure = watch.failure()
            if failure is None:
                raise
            return failure.reason
    raise AssertionError("nothing fired")


@pytest.mark.parametrize(
    ("phase", "limits", "deadline_s", "reason"),
    [
        (Phase.ENGINE, Limits(first_token_s=0.05), FAR, Reason.FIRST_TOKEN_TIMEOUT),
        (Phase.ROOM, Limits(room_s=0.05), FAR, Reason.CONSUMER_TOO_SLOW),
        (Phase.QUEUE, Limits(queue_s=0.05), FAR, Reason.QUEUE_TIMEOUT),
        (Phase.QUEUE, Limits(), 0.05, Reason.DEADLINE_IN_QUEUE),
        (Phase.ENGINE, Limits(), 0.05, Reason.DEADLINE_IN_DECODE),
        (Phase.ROOM, Limits(), 0.05, Reason.DEADLINE_IN_DECODE),
        (Phase.PREPARE, Limits(), 0.05, Reason.DEADLINE_IN_QUEUE),
        (Phase.WORK, Limits(), 0.05, Reason.DEADLINE_IN_DECODE),
    ],
)
async def test_each_limit_fires_in_its_phase(phase: Phase, limits: Limits, deadline_s: float, reason: Reason) -> None:
    assert await wait_in(Watch(Deadline.after(deadline_s), limits), phase) is reason


async def test_the_gap_limit_counts_after_the_first_token() -> None:
    watch = Watch(Deadline.after(FAR), Limits(first_token_s=60, token_gap_s=0.05))
    watch.has_output = True
    assert await wait_in(watch, Phase.ENGINE) is Reason.TOKEN_GAP_TIMEOUT


async def test_the_longest_wait_for_a_slot_is_that_of_its_class() -> None:
    limits = Limits(queue_s=60, batch_queue_s=0.05)
    assert await wait_in(Watch(Deadline.after(FAR), limits, None, Priority.BATCH), Phase.QUEUE) is Reason.QUEUE_TIMEOUT


@pytest.mark.parametrize("cause", [Cause.TIME_LIMIT, Cause.CANCEL])
@pytest.mark.parametrize("phase", [Phase.QUEUE, Phase.ENGINE, Phase.ROOM])
async def test_a_soft_cause_interrupts_a_wait_and_is_no_failure(cause: Cause, phase: Phase) -> None:
    watch = Watch(Deadline.after(FAR), Limits(), Deadline.after(0.05) if cause is Cause.TIME_LIMIT else None)
    task = asyncio.current_task()
    assert task is not None
    with watch:
        watch.enter(phase, time.monotonic())
        if cause is Cause.CANCEL:
            watch.interrupt(cause)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(5)
        assert watch.took_soft()
        assert not watch.took_soft()
        assert (watch.soft, task.cancelling()) == (cause, 0)


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.WORK])
async def test_a_soft_cause_waits_for_what_cannot_be_left_half_done(phase: Phase) -> None:
    with Watch(Deadline.after(FAR), Limits(), Deadline.after(0.02)) as watch:
        watch.enter(phase, time.monotonic())
        await asyncio.sleep(0.06)
        assert (watch.soft, watch.cause) == (Cause.TIME_LIMIT, None)


async def test_what_is_interrupted_before_it_began_ends_at_its_first_wait() -> None:
    watch = Watch(Deadline.after(FAR), Limits())
    watch.interrupt(Cause.DRAIN)
    with watch:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(5)
        failure = watch.failure()
    assert failure is not None
    assert failure.reason is Reason.DRAINING


async def test_progress_moves_the_limit() -> None:
    watch = Watch(Deadline.after(FAR), Limits(first_token_s=0.1, token_gap_s=0.1, room_s=0.1))
    with watch:
        for _ in range(8):
            watch.enter(Phase.ENGINE, time.monotonic())
            await asyncio.sleep(0.04)
    assert watch.cause is None


async def test_a_cancel_by_anyone_else_is_not_ours() -> None:
    watch = Watch(Deadline.after(FAR), Limits())
    task = asyncio.current_task()
    assert task is not None
    with watch:
        task.cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            assert watch.failure() is None
            task.uncancel()


async def test_a_cancel_by_both_is_not_swallowed() -> None:
    watch = Watch(Deadline.after(FAR), Limits())
    task = asyncio.current_task()
    assert task is not None
    with watch:
        watch.enter(Phase.ENGINE, time.monotonic())
        watch.interrupt(Cause.DRAIN)
        task.cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            assert watch.failure() is None, "the other cancel goes on"
            assert task.uncancel() == 0


async def test_nothing_fires_after_the_block() -> None:
    with Watch(Deadline.after(0.02), Limits()) as watch:
        watch.enter(Phase.ENGINE, time.monotonic())
    await asyncio.sleep(0.06)
    assert watch.cause is None


async def test_a_time_limit_that_has_passed_before_the_work_begins_is_seen_at_once() -> None:
    with Watch(Deadline.after(FAR), Limits(), Deadline.after(-1)) as watch:
        watch.enter(Phase.ENGINE, time.monotonic())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        assert watch.took_soft()


async def test_a_hard_cause_wins_over_a_soft_one_that_nobody_has_taken() -> None:
    taken: list[Cause] = []
    watch = Watch(Deadline.after(FAR), Limits())
    watch.on_interrupt = taken.append
    task = asyncio.current_task()
    assert task is not None
    with watch:
        watch.enter(Phase.ROOM, time.monotonic())
        for cause in (Cause.CANCEL, Cause.TIME_LIMIT, Cause.DRAIN, Cause.CALLER):
            watch.interrupt(cause)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        assert not watch.took_soft()
        failure = watch.failure()
    assert failure is not None
    assert (failure.reason, task.cancelling()) == (Reason.DRAINING, 0)
    assert taken == [Cause.CANCEL, Cause.DRAIN]
