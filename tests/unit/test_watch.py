"""The limits of a generation: each fires in its own phase, and only ours is taken for ours."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.core.deadline import Deadline
from service.core.errors import Reason
from service.generation.watch import Cause, Limits, Phase, Watch

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
        (Phase.ENGINE, Limits(first_token_s=0.05), FAR, Reason.BACKEND_UNAVAILABLE),
        (Phase.READER, Limits(reader_s=0.05), FAR, Reason.CONSUMER_TOO_SLOW),
        (Phase.QUEUE, Limits(), 0.05, Reason.DEADLINE_IN_QUEUE),
        (Phase.ENGINE, Limits(), 0.05, Reason.DEADLINE_IN_DECODE),
        (Phase.READER, Limits(), 0.05, Reason.DEADLINE_IN_DECODE),
    ],
)
async def test_each_limit_fires_in_its_phase(phase: Phase, limits: Limits, deadline_s: float, reason: Reason) -> None:
    assert await wait_in(Watch(Deadline.after(deadline_s), limits), phase) is reason


async def test_the_gap_limit_counts_after_the_first_token() -> None:
    watch = Watch(Deadline.after(FAR), Limits(first_token_s=60, token_gap_s=0.05))
    watch.has_output = True
    assert await wait_in(watch, Phase.ENGINE) is Reason.BACKEND_UNAVAILABLE


async def test_the_time_limit_in_the_waiting_line_is_a_deadline() -> None:
    watch = Watch(Deadline.after(FAR), Limits(), Deadline.after(0.05))
    assert await wait_in(watch, Phase.QUEUE) is Reason.DEADLINE_IN_QUEUE


async def test_progress_moves_the_limit() -> None:
    watch = Watch(Deadline.after(FAR), Limits(first_token_s=0.1, token_gap_s=0.1, reader_s=0.1))
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


async def test_headers_are_never_interrupted() -> None:
    watch = Watch(Deadline.after(0.01), Limits())
    with watch:
        watch.enter(Phase.HEADERS, time.monotonic())
        await asyncio.sleep(0.1)
        assert watch.cause is None
        watch.enter(Phase.READER, time.monotonic())
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        failure = watch.failure()
        assert failure is not None
        assert failure.reason is Reason.DEADLINE_IN_DECODE


async def test_nothing_fires_after_the_block() -> None:
    with Watch(Deadline.after(0.02), Limits()) as watch:
        watch.enter(Phase.ENGINE, time.monotonic())
    await asyncio.sleep(0.06)
    assert watch.cause is None
