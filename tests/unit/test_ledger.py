"""The ledger between the event loop and a store that is slow, full, away, or does not take a record."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from service.core.account import Account, Closing, NoAccounts, Opening
from service.core.errors import Reason, ServiceError
from service.ledger import Ledger, LedgerAccounts, StoreError
from service.ledger.records import Begun, Ended
from tests.support.service import eventually
from tests.support.usage_ledger import MemoryStore, closing, opening

IDS = [opening(number).generation_id for number in range(100)]


@asynccontextmanager
async def running(store: MemoryStore, **options: Any) -> AsyncIterator[Ledger]:
    ledger = Ledger(store, **options)
    await ledger.start()
    try:
        yield ledger
    finally:
        store.gate.set()
        await ledger.close(1)


async def took_s(work: Any) -> float:
    began_s = time.monotonic()
    await work
    return time.monotonic() - began_s


async def until(store: MemoryStore) -> None:
    """Wait until the thread is at the store."""
    await asyncio.to_thread(store.tried.wait, 10)


async def test_what_has_ended_is_on_record_when_the_wait_is_over() -> None:
    store = MemoryStore()
    async with running(store) as ledger:
        await ledger.begin(opening(1))
        await ledger.end(opening(1), closing())
        assert store.records == [Begun(opening(1)), Ended(opening(1), closing())]
    assert store.closed_with == 0


async def test_what_comes_while_a_batch_is_written_is_one_batch_and_wakes_all() -> None:
    store = MemoryStore()
    async with running(store) as ledger:
        store.gate.clear()
        first = asyncio.create_task(ledger.end(opening(0), closing()))
        await until(store)
        others = [asyncio.create_task(ledger.end(opening(n), closing())) for n in range(1, 50)]
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, *others)
        assert (store.batches, store.ends()) == (2, IDS[:50])


async def test_a_store_that_hangs_holds_a_caller_up_for_the_wait_alone_and_only_the_first() -> None:
    store = MemoryStore()
    async with running(store, end_wait_s=0.05) as ledger:
        store.gate.clear()
        assert 0.04 < await took_s(ledger.end(opening(1), closing())) < 1
        assert await took_s(ledger.end(opening(2), closing())) < 0.04
        store.gate.set()
        await eventually(lambda: len(store.records) == 2)
        await ledger.end(opening(3), closing())
        assert store.ends() == IDS[1:4], "once it answers, ends are waited for again"


async def test_a_store_that_fails_for_a_while_costs_no_record_and_no_time(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    lost: list[tuple[int, int]] = []
    async with running(store, on_lost=lambda *counts: lost.append(counts)) as ledger:
        store.is_failing = True
        assert await took_s(ledger.end(opening(1), closing())) < 0.5, "told as soon as it has failed"
        for number in range(2, 10):
            await ledger.begin(opening(number))
            assert await took_s(ledger.end(opening(number), closing())) < 0.05
        store.is_failing = False
        await eventually(lambda: len(store.ends()) == 9)
        assert store.ends() == IDS[1:10]
        await ledger.end(opening(10), closing())
        assert store.ends()[-1] == IDS[10]
    assert not lost
    messages = [record.message for record in caplog.records]
    assert messages == [
        "the usage ledger cannot be written, serving goes on: disk full",
        "the usage ledger is written again",
    ]


async def test_a_full_queue_takes_ends_before_beginnings_and_counts_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    lost: list[tuple[int, int]] = []
    async with running(store, queued_records=8, end_wait_s=0.01, on_lost=lambda *counts: lost.append(counts)) as ledger:
        store.gate.clear()
        await ledger.end(opening(0), closing())
        await until(store)
        for number in range(1, 11):
            await ledger.begin(opening(number))
        assert lost == [(1, 0)] * 6
        for number in range(1, 11):
            assert await took_s(ledger.end(opening(number), closing())) < 0.05
        assert lost[6:] == [(0, 1)] * 6
    assert store.closed_with == 6
    assert store.ends() == IDS[:5]
    messages = [record.message for record in caplog.records]
    assert messages == [
        "the usage ledger loses records: its queue is full",
        "the usage ledger has lost records: the ends of 6 generations, the beginnings of 6",
    ]


async def test_a_record_that_no_store_takes_is_lost_alone(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.poison = IDS[2]
    lost: list[tuple[int, int]] = []
    async with running(store, on_lost=lambda *counts: lost.append(counts)) as ledger:
        store.gate.clear()
        ends = [asyncio.create_task(ledger.end(opening(number), closing())) for number in range(5)]
        await until(store)
        store.gate.set()
        await asyncio.wait_for(asyncio.gather(*ends), 0.9)
        assert store.ends() == [IDS[0], IDS[1], IDS[3], IDS[4]]
    assert lost == [(0, 1)]
    assert caplog.records[0].__dict__["generation_id"] == IDS[2]


async def test_the_close_writes_what_waits() -> None:
    store = MemoryStore()
    async with running(store) as ledger:
        store.gate.clear()
        tasks = [asyncio.create_task(ledger.end(opening(number), closing())) for number in range(50)]
        await asyncio.sleep(0)
    assert store.ends() == IDS[:50]
    await asyncio.gather(*tasks)


async def test_the_close_of_a_failing_store_is_bounded_and_tells_what_was_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    store.is_failing = True
    ledger = Ledger(store)
    await ledger.start()
    for number in range(5):
        await ledger.end(opening(number), closing())
    assert await took_s(ledger.close(0.3)) < 3
    assert "the ends of 5 generations" in caplog.records[-1].message


async def test_the_close_of_a_store_that_hangs_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    ledger = Ledger(store, end_wait_s=0.01)
    await ledger.start()
    store.gate.clear()
    await ledger.end(opening(1), closing())
    assert await took_s(ledger.close(0.1)) < 2
    assert "did not close in time" in caplog.text
    await ledger.end(opening(2), closing())
    assert "it is closed" in caplog.text
    store.gate.set()


async def test_a_store_that_does_not_open_refuses_the_start() -> None:
    store = MemoryStore()
    store.fails_to_open = True
    with pytest.raises(StoreError, match="no such place"):
        await Ledger(store).start()


async def test_what_dead_processes_left_is_named_up_to_twenty(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.left = IDS[:23]
    async with running(store):
        pass
    (line,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith(f"generations interrupted by the end of their process: 23 ({IDS[0]}, {IDS[1]}, ")
    assert line.endswith(f"{IDS[19]} and 3 more)")


class Limiter(NoAccounts):
    """Accounts that refuse, hang, or fail to close; `closed` counts."""

    def __init__(self, refusal: BaseException | None = None, *, hangs: bool = False) -> None:
        self.refusal = refusal
        self.hangs = hangs
        self.closed = 0

    headers = (("x-ratelimit-remaining", "3"),)

    async def open(self, opening: Opening) -> Account:
        if self.refusal is not None:
            raise self.refusal
        return self

    async def close(self, closing: Closing) -> None:
        self.closed += 1
        if self.hangs:
            await asyncio.sleep(60)


async def test_an_account_passes_its_headers_on_and_closes_both() -> None:
    store, inner = MemoryStore(), Limiter()
    async with running(store) as ledger:
        account = await LedgerAccounts(ledger, inner).open(opening(1))
        assert account.headers == (("x-ratelimit-remaining", "3"),)
        await account.close(closing())
        assert (inner.closed, store.ends()) == (1, IDS[1:2])


@pytest.mark.parametrize(
    ("refusal", "outcome", "reason"),
    [
        (ServiceError(Reason.QUOTA_EXHAUSTED, "No tokens are left."), "rejected", "QUOTA_EXHAUSTED"),
        (RuntimeError("a bug"), "internal_error", "INTERNAL"),
        (asyncio.CancelledError(), "client_cancelled", None),
    ],
    ids=["refused", "failed", "left"],
)
async def test_what_is_refused_is_an_end_without_tokens(
    refusal: BaseException, outcome: str, reason: str | None
) -> None:
    store = MemoryStore()
    async with running(store) as ledger:
        with pytest.raises(type(refusal)):
            await LedgerAccounts(ledger, Limiter(refusal)).open(opening(1, received_at_s=time.time()))
    (record,) = store.records
    assert isinstance(record, Ended)
    assert (record.closing.outcome, record.closing.reason) == (outcome, reason)
    assert (record.closing.usage.prompt_tokens, record.closing.usage.output_tokens) == (0, 0)
    assert 0 <= record.closing.timing.total_s < 10


async def test_a_caller_who_leaves_while_it_is_settled_is_on_record_all_the_same() -> None:
    store = MemoryStore()
    async with running(store) as ledger:
        account = await LedgerAccounts(ledger, Limiter(hangs=True)).open(opening(1))
        closes = asyncio.create_task(account.close(closing("client_cancelled")))
        await asyncio.sleep(0)
        closes.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closes
        assert store.ends() == IDS[1:2]


async def test_a_beginning_holds_a_generation_up_for_a_moment_at_most() -> None:
    store = MemoryStore()
    async with running(store, begin_wait_s=0.05) as ledger:
        accounts = LedgerAccounts(ledger, NoAccounts())
        await accounts.open(opening(1))
        assert store.records == [Begun(opening(1))], "a crash would name it"
        store.gate.clear()
        assert 0.04 < await took_s(accounts.open(opening(2))) < 1


async def test_a_caller_who_leaves_before_its_generation_runs_leaves_no_account_open() -> None:
    store, inner = MemoryStore(), Limiter()
    async with running(store, begin_wait_s=10) as ledger:
        store.gate.clear()
        opens = asyncio.create_task(LedgerAccounts(ledger, inner).open(opening(1)))
        await until(store)
        opens.cancel()
        await asyncio.sleep(0)
        store.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await opens
    assert inner.closed == 1
    assert [type(record) for record in store.records] == [Begun, Ended]
    (end,) = (record for record in store.records if isinstance(record, Ended))
    assert end.closing.outcome == "client_cancelled"
