"""Counters in a real Redis: the same answers as in memory, shared by replicas, and what happens when it fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from redis import Redis

from service.core.account import Opening
from service.core.identity import ANONYMOUS
from service.core.request import Priority
from service.tenancy.limits import store as store_module
from service.tenancy.limits.file import parse_limits
from service.tenancy.limits.limiter import Limiter
from service.tenancy.limits.redis_line import RedisLine, StoreError
from service.tenancy.limits.script import SETTLE, TAKE
from service.tenancy.limits.store import LimitStore, _answer, _settled, _take_arguments
from service.tenancy.limits.windows import LEASE_MS, Ask, Correction, Limit, Windows
from tests.support.redis_server import RedisServer, redis_server
from tests.support.service import eventually

TIMEOUT_S = 0.25
START_MS = 1_900_000_000_000


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One that the test may end and freeze."""
    with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def opened(server: RedisServer, replicas: int = 1) -> AsyncIterator[list[LimitStore]]:
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(replicas):
            store = LimitStore(RedisLine(server.url, timeout_s=TIMEOUT_S))
            await store.start()
            stack.push_async_callback(store.close)
            stores.append(store)
        yield stores


def asks(*, key: str, requests: int = 10**6, tokens: int = 10**9, cost: int = 1, streams: int = 10**6) -> list[Ask]:
    return [
        Ask(f"{{{key}}}:r", Limit.REQUESTS, requests, 1),
        Ask(f"{{{key}}}:t", Limit.TOKENS, tokens, cost),
        Ask(f"{{{key}}}:d", Limit.DAY_TOKENS, 10**9, cost),
        Ask(f"{{{key}}}:s", Limit.STREAMS, streams, 1),
    ]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 40_000),  # a wait
        st.sampled_from(list(Limit)),
        st.integers(1, 30),  # the limit
        st.integers(1, 12),  # the cost
        st.integers(-15, 15),  # by how much the oldest one is settled
        st.booleans(),  # whether it is settled, and let go
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(steps=STEPS, case=st.integers(0, 10**12))
def test_redis_gives_the_answers_that_the_rules_give(
    shared_redis: RedisServer, steps: list[tuple[int, Limit, int, int, int, bool]], case: int
) -> None:
    """The same requests at the same times, in Lua and in Python: every number of every answer is the same."""

    async def run() -> None:
        line, windows, now_ms = RedisLine(shared_redis.url, timeout_s=5), Windows(), START_MS
        line.start()
        await line.call("return redis.call('FLUSHALL')", (), ())
        taken: list[tuple[Ask, int, str]] = []
        for number, (wait_ms, limit, most, cost, delta, is_settled) in enumerate(steps):
            now_ms += wait_ms
            both = [Ask(f"{{x}}{limit.value}", limit, most, cost), Ask("{x}also", Limit.REQUESTS, 20, 1)]
            arguments = [now_ms, *_take_arguments(both, f"gen_{number}")[1:]]
            here = windows.take(both, f"gen_{number}", now_ms, lease_ms=LEASE_MS)
            there = _answer(await line.call(TAKE, [ask.key for ask in both], arguments), both)
            assert there == here, (number, both)
            if here.is_taken:
                taken += [(ask, now_ms, f"gen_{number}") for ask in both]
            if is_settled and taken:
                ask, at_ms, member = taken.pop(0)
                span = ask.limit.span
                if span is None:
                    windows.let_go([ask.key], member)
                    await line.call(SETTLE, [ask.key], [now_ms, member, 0])
                else:
                    part = [Correction(ask.key, span, at_ms, delta)]
                    windows.settle(part, now_ms)
                    await line.call(SETTLE, [ask.key], [now_ms, member, 1, *_settled(part)])
        await line.close()

    asyncio.run(run())


async def test_two_replicas_let_in_exactly_as_many_as_the_limit_has(shared_redis: RedisServer) -> None:
    async with opened(shared_redis, replicas=2) as stores:
        answers = await asyncio.gather(
            *(stores[n % 2].take(asks(key="exact", requests=500), f"gen_{n}") for n in range(2000))
        )
    assert all(taken.is_shared for taken in answers)
    assert sum(taken.answer.is_taken for taken in answers) == 500


async def test_tokens_are_shared_and_settled_by_whoever_took_them(shared_redis: RedisServer) -> None:
    async with opened(shared_redis, replicas=2) as (one, other):
        wanted = asks(key="tokens", tokens=100, cost=60)
        taken = await one.take(wanted, "gen_a")
        assert not (await other.take(wanted, "gen_b")).answer.is_taken
        await one.settle(taken, wanted, "gen_a", [0, -50, -50, 0])
        second = await other.take(wanted, "gen_b")
        assert second.answer.is_taken
        assert [state.used for state in second.answer.states] == [2, 70, 70, 1]


async def test_streams_of_a_process_that_is_gone_are_free_when_their_lease_ends(
    shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LEASE_MS", 1000)
    monkeypatch.setattr(store_module, "_RENEW_S", 0.05)
    wanted = asks(key="lease", streams=1)
    async with opened(shared_redis, replicas=2) as (gone, here):
        assert (await gone.take(wanted, "gen_a")).answer.is_taken
        with Redis.from_url(shared_redis.url) as client:

            def lease_ends_ms() -> float:
                return float(client.zscore(wanted[3].key, "gen_a") or 0)

            first_ms = lease_ends_ms()
            await eventually(lambda: lease_ends_ms() > first_ms)  # it is renewed
            assert not (await here.take(wanted, "gen_b")).answer.is_taken
            await gone.close()
            ends_ms = lease_ends_ms()
            async with asyncio.timeout(10):
                while not (taken := await here.take(wanted, "gen_b")).answer.is_taken:  # noqa: ASYNC110 - Redis tells nobody
                    await asyncio.sleep(0.02)
            assert taken.answer.at_ms >= ends_ms


async def test_a_stream_that_was_let_go_while_it_was_renewed_does_not_come_back(shared_redis: RedisServer) -> None:
    wanted = asks(key="renewed", streams=1)
    async with opened(shared_redis) as (store,):
        taken = await store.take(wanted, "gen_a")
        assert store._line is not None
        renewing = asyncio.create_task(store._renew(store._line))
        await asyncio.sleep(0)
        await store.settle(taken, wanted, "gen_a", [0, 0, 0, 0])
        await renewing
        assert (await store.take(wanted, "gen_b")).answer.is_taken


async def test_a_redis_that_is_not_there_at_the_start_is_taken_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_PROBE_S", 0.02)
    with redis_server(tmp_path, is_started=False) as server, caplog.at_level(logging.WARNING, "headrace.limits"):
        async with opened(server) as (store,):
            assert store.problem is not None
            wanted = asks(key="late", requests=1)
            first = await store.take(wanted, "gen_a")
            assert first.answer.is_taken
            assert not first.is_shared
            assert not (await store.take(wanted, "gen_b")).answer.is_taken  # this process holds it by itself
            server.start()
            await eventually(lambda: store.problem is None)
            assert (await store.take(wanted, "gen_c")).is_shared
    # One line for each change.
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "limits: Redis does not answer",
        "limits: Redis answers again, replicas count together",
    ]


async def test_serving_goes_on_when_redis_dies_and_what_runs_is_counted_when_it_is_back(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_PROBE_S", 0.02)
    wanted = asks(key="dies", streams=2, cost=10, tokens=100)
    async with opened(redis) as (store,):
        before = await store.take(wanted, "gen_before")
        redis.kill()
        during = await store.take(wanted, "gen_during")
        assert before.is_shared
        assert not during.is_shared
        assert during.answer.is_taken
        # The streams that the process had are still counted.
        assert not (await store.take(wanted, "gen_more")).answer.is_taken
        redis.start()  # empty
        await eventually(lambda: store.problem is None)
        assert not (await store.take(wanted, "gen_more")).answer.is_taken
        await store.settle(before, wanted, "gen_before", [0, -8, -8, 0])
        await store.settle(during, wanted, "gen_during", [0, -8, -8, 0])
        after = await store.take(wanted, "gen_after")
        assert after.answer.is_taken
        # Counters began anew, and nobody has a credit from before.
        assert [state.used for state in after.answer.states] == [1, 10, 10, 1]


async def test_what_was_used_less_is_given_back_when_redis_is_back(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_PROBE_S", 0.05)
    wanted = asks(key="back", tokens=100, cost=50)
    async with opened(redis) as (store,):
        both = [await store.take(wanted, "gen_a"), await store.take(wanted, "gen_b")]
        redis.freeze()
        # The first one to come finds out; the settlements behind it wait for Redis and not in line.
        assert not (await store.take(wanted, "gen_c")).is_shared
        for taken, member in zip(both, ("gen_a", "gen_b"), strict=True):
            await store.settle(taken, wanted, member, [0, -40, -40, 0])
        redis.thaw()
        await eventually(lambda: store.problem is None)
        assert store._line is not None
        await eventually(lambda: not store._pending)
        used = (await store.take(wanted, "gen_d")).answer.states
        # 10 and 10 of the two, 50 of this one; the third was refused by Redis, if it was there before the limit.
        assert used[1].used == 70


async def test_a_slow_redis_costs_the_first_requests_its_timeout_and_the_others_nothing(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(redis) as (store,):
        wanted = asks(key="slow")
        assert (await store.take(wanted, "gen_a")).is_shared
        redis.freeze()
        assert store._line is not None
        batches: list[int] = []
        send = store._line._send

        async def counted(batch: Sequence[Any]) -> None:
            batches.append(len(batch))
            await send(batch)

        monkeypatch.setattr(store._line, "_send", counted)
        answers = await asyncio.gather(*(store.take(wanted, f"gen_{n}") for n in range(300)))
        # One timeout, and not one for each batch that waits.
        assert len(batches) == 1
        answers += [await store.take(wanted, f"gen_{n}") for n in range(300, 600)]
        assert len(batches) == 1
        assert all(taken.answer.is_taken and not taken.is_shared for taken in answers)
        assert store.problem is not None
        assert "0.25 s" in store.problem
        redis.thaw()


async def test_a_process_that_is_busy_does_not_take_redis_for_slow(shared_redis: RedisServer) -> None:
    async with opened(shared_redis) as (store,):
        wanted = asks(key="busy")
        taking = [asyncio.create_task(store.take(wanted, f"gen_{n}")) for n in range(200)]
        for _ in range(4):
            await asyncio.sleep(0)
        time.sleep(2 * TIMEOUT_S)  # noqa: ASYNC251 - that is the point
        assert all(taken.is_shared for taken in await asyncio.gather(*taking))
        assert store.problem is None


async def test_who_leaves_while_redis_is_asked_has_taken_nothing_soon_after(redis: RedisServer) -> None:
    opening = Opening(
        generation_id="gen_left",
        request_id="",
        identity=ANONYMOUS,
        model="m",
        priority=Priority.INTERACTIVE,
        choices=1,
        prompt_tokens=10,
        max_output_tokens=40,
        end_user="",
        received_at_s=0.0,
    )
    rules = parse_limits("[default]\ntokens_per_minute = 100\nconcurrent_streams = 1\n", "")
    limiter = Limiter(rules, LimitStore(RedisLine(redis.url, timeout_s=5)))
    await limiter.start()
    redis.freeze()
    leaving = asyncio.create_task(limiter.open(opening))
    for _ in range(3):
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    redis.thaw()
    await eventually(lambda: not limiter._settling)
    account = await limiter.open(replace(opening, generation_id="gen_stays", max_output_tokens=90))
    assert dict(account.headers)["x-ratelimit-remaining-tokens"] == "0"
    await limiter.close()


async def test_scripts_that_redis_has_forgotten_are_told_again(shared_redis: RedisServer) -> None:
    async with opened(shared_redis) as (store,):
        assert (await store.take(asks(key="forgotten"), "gen_a")).is_shared
        with Redis.from_url(shared_redis.url) as client:
            client.script_flush()
        answers = await asyncio.gather(*(store.take(asks(key="forgotten"), f"gen_{n}") for n in range(10)))
        assert all(taken.is_shared and taken.answer.is_taken for taken in answers)
        assert max(taken.answer.states[0].used for taken in answers) == 11


async def test_a_call_that_redis_refuses_says_why(shared_redis: RedisServer) -> None:
    line = RedisLine(shared_redis.url, timeout_s=5)
    line.start()
    with pytest.raises(StoreError, match=r"(?i)unknown.*command"):
        await line.call("return redis.call('NOSUCH')", (), ())
    assert await line.call("return {1}", (), ()) == [1]
    await line.close()
