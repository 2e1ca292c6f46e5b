"""The store that replicas share, with a real Redis: what is written comes back, an end is written once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from service.core.errors import Reason, ServiceError
from service.sharing.names import Claim, End
from service.sharing.store import Batch, Ending, Entry, SharedStore, StoreError
from tests.support.redis_server import RedisServer, redis_server

KEEP_S = 60.0
FACTS = {"tenant": b"t", "model": b"m"}
CLAIM = Claim("gen_a", "me", "digest")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def opened(redis: RedisServer, query: str = "") -> AsyncIterator[SharedStore]:
    store = SharedStore(redis.url + query)
    try:
        yield store
    finally:
        await store.close()


def batch(*events: bytes, generation_id: str = "gen_a", first: int = 1, ending: Ending | None = None) -> Batch:
    return Batch(generation_id, FACTS, first, events, 1, is_first=first == 1, ending=ending)


def ended(last: int, *, claim: Claim | None = CLAIM, keep_s: float = KEEP_S) -> Ending:
    facts = {"ended": b"1", "state": b"s"}
    return Ending(last, End(is_cancelled=True), facts, None if claim is None else ("t", "k", claim), keep_s)


async def entries(store: SharedStore, generation_id: str = "gen_a", after: int = 0) -> list[Entry]:
    found = await store.read({generation_id: after}, wait_s=0.001)
    return found.get(generation_id, [])


@pytest.mark.parametrize("query", ["", "?protocol=2", "?protocol=3"])
async def test_what_is_written_comes_back(redis: RedisServer, query: str) -> None:
    async with opened(redis, query) as store:
        assert await entries(store) == []
        assert (await store.newest("gen_a"), await store.oldest("gen_a")) == (0, None)
        await store.write([batch(b"one", b"", b"\x00three"), batch(b"other", generation_id="gen_b")], KEEP_S)
        await store.write([batch(b"four", first=4)], KEEP_S)
        first, second = Entry(1, [b"one", b"", b"\x00three"], None), Entry(4, [b"four"], None)
        assert await entries(store) == [first, second]
        assert await entries(store, after=3) == [second]
        found = await store.read({"gen_a": 3, "gen_b": 0, "gen_c": 0}, wait_s=0.001)
        assert found == {"gen_a": [second], "gen_b": [Entry(1, [b"other"], None)]}
        assert (await store.newest("gen_a"), await store.oldest("gen_a")) == (4, 1)
        assert await store.description("gen_b") == FACTS
        assert not await store.has_ended("gen_a")
        await store.restart("gen_a")
        assert await entries(store) == []


async def test_the_end_is_behind_all_events_and_written_once(redis: RedisServer) -> None:
    failure = ServiceError(Reason.BACKEND_ERROR, "broken", retry_after_s=2.0)
    async with opened(redis) as store:
        await store.write([batch(b"one")], KEEP_S)
        ending = ended(2)._replace(end=End(failure))
        for _ in range(2):
            await store.write([batch(b"two", first=2, ending=ending)], KEEP_S)
        # What comes behind it is another's, or a mistake.
        await store.write([batch(b"three", first=3, ending=ended(3))], KEEP_S)
        *events, last = await entries(store)
        assert events == [Entry(1, [b"one"], None), Entry(2, [b"two"], None)]
        assert last.end is not None
        assert last.end.failure is not None
        assert (last.end.failure.reason, last.end.failure.retry_after_s) == (Reason.BACKEND_ERROR, 2.0)
        assert (await store.newest("gen_a"), await store.oldest("gen_a")) == (2, 1)
        assert [entry.end is None for entry in await entries(store, after=2)] == [False]
        assert await store.has_ended("gen_a")
        assert await store.description("gen_a") == {**FACTS, "ended": b"1", "state": b"s"}


async def test_an_end_without_events_is_one(redis: RedisServer) -> None:
    async with opened(redis) as store:
        await store.write([batch(ending=ended(0))], KEEP_S)
        assert await entries(store) == [Entry(0, (), End(is_cancelled=True))]
        assert (await store.newest("gen_a"), await store.oldest("gen_a")) == (0, None)


async def test_an_end_keeps_all_of_it_and_the_key_if_that_is_its_own(redis: RedisServer) -> None:
    names = SharedStore(redis.url).names
    kept = [names.log("gen_a"), names.generation("gen_a"), names.claim("t", "k")]
    with Redis.from_url(redis.url) as client:

        def kept_s() -> list[int]:
            return [round(int(client.pttl(name)) / 1000) for name in kept]

        async with opened(redis) as store:
            for claim, key_s in ((CLAIM, 7), (Claim("gen_a", "another", "digest"), 600), (None, 600)):
                client.flushall()
                assert await store.claim("t", "k", CLAIM, 600) is None
                await store.write([batch(b"one")], KEEP_S)
                assert kept_s() == [60, 60, 600]
                await store.write([batch(first=2, ending=ended(1, claim=claim, keep_s=7))], KEEP_S)
                assert kept_s() == [7, 7, key_s]


async def test_events_that_are_no_longer_kept_go_from_the_store(redis: RedisServer) -> None:
    async with opened(redis) as store:
        for first in range(1, 40_000, 200):
            await store.write([batch(*[b"e" * 100] * 200, first=first)._replace(oldest=max(1, first - 1000))], KEEP_S)
        oldest = await store.oldest("gen_a")
        assert oldest is not None
        assert 1 < oldest <= 39_801 - 1000


async def test_what_fails_with_one_generation_is_told_when_the_others_are_written(redis: RedisServer) -> None:
    async with opened(redis) as store:
        with Redis.from_url(redis.url) as client:
            client.set(store.names.log("gen_a"), b"no stream")
        late = batch(b"late", generation_id="gen_c", first=9, ending=ended(9))
        await store.write([late._replace(ending=None)], KEEP_S)
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await store.write([batch(b"one", ending=ended(1)), batch(b"two", generation_id="gen_b")], KEEP_S)
        with pytest.raises(StoreError, match="equal or smaller"):
            await store.write([late, batch(b"three", generation_id="gen_b", first=2)], KEEP_S)
        assert [entry.events for entry in await entries(store, "gen_b")] == [[b"two"], [b"three"]]
        # Without its events there is no end.
        assert not await store.has_ended("gen_a")
        assert not await store.has_ended("gen_c")


@pytest.mark.parametrize(
    "fields",
    [
        {b"sizes": b"\x01\x00\x00", b"events": b"e"},
        {b"sizes": b"\x02\x00\x00\x00", b"events": b"e"},
        {b"sizes": b"\x01\x00\x00\x00", b"events": b"ee"},
        {b"sizes": b"\x01\x00\x00\x00"},
        {b"first": b"1"},
        {b"end": b"{"},
    ],
)
async def test_an_entry_that_cannot_be_read_is_a_failure_of_the_store(redis: RedisServer, fields: Any) -> None:
    async with opened(redis) as store:
        with Redis.from_url(redis.url) as client:
            client.xadd(store.names.log("gen_a"), fields, id="1-0")
        with pytest.raises(StoreError):
            await entries(store)
        with pytest.raises(StoreError):
            await store.oldest("gen_a")


async def test_a_script_that_redis_has_forgotten_is_told_again(redis: RedisServer) -> None:
    async with opened(redis) as store:
        await store.write([batch(b"one")], KEEP_S)
        with Redis.from_url(redis.url) as client:
            client.script_flush()
        await store.write([batch(b"two", first=2)], KEEP_S)
        assert await store.newest("gen_a") == 2


async def test_a_call_that_is_not_answered_gives_up_in_time(redis: RedisServer) -> None:
    async with opened(redis) as store:
        assert await store.keep_lease() is False
        redis.freeze()
        for call in (store.keep_lease, lambda: store.newest("gen_a"), lambda: store.read({"gen_a": 0}, wait_s=0.025)):
            begun_s = time.monotonic()
            with pytest.raises(StoreError, match=r"no answer within 0\.5 s"):
                await call()
            assert 0.4 < time.monotonic() - begun_s < 2
        redis.thaw()
        assert await store.keep_lease() is True


async def test_a_process_that_is_busy_does_not_take_the_store_for_slow(redis: RedisServer) -> None:
    async with opened(redis) as store:
        calls = [asyncio.create_task(store.newest(f"gen_{number}")) for number in range(100)]
        for _ in range(4):
            await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251 - that is the point
        assert await asyncio.gather(*calls) == [0] * 100
