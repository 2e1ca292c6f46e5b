"""From logs to a real Redis: how many round trips that takes, and what becomes of ends that the store does not take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection

from service.retention.log import EventLog
from service.sharing import mirror as mirror_module
from service.sharing.names import End
from service.sharing.sharing import Sharing
from service.sharing.store import Entry, SharedStore, StoreError
from tests.support.redis_server import RedisServer, redis_server
from tests.support.retained import keyed
from tests.support.service import RunningService, eventually, running_service, script, text_of

# As long as nobody is read elsewhere and nothing fails: no round but those that are asked for.
SELDOM_S = 60.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first command of each round trip to the store; those by which a connection begins are none."""
    monkeypatch.setattr(mirror_module, "_INTERVAL_S", SELDOM_S)
    trips: list[str] = []
    send = AbstractConnection.send_packed_command

    async def noted(connection: Any, command: Any, *args: Any, **options: Any) -> None:
        name = b"".join(command).split(b"\r\n")[2].decode()
        if name not in ("HELLO", "CLIENT", "SUBSCRIBE"):
            trips.append(name)
        await send(connection, command, *args, **options)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", noted)
    return trips


@asynccontextmanager
async def shared(redis: RedisServer) -> AsyncIterator[Sharing]:
    sharing = Sharing(SharedStore(redis.url, timeout_s=0.3, lease_s=SELDOM_S), longest_s=60)
    await sharing.start(lambda _kind, _tenant, _generation_id: None)
    try:
        yield sharing
    finally:
        await sharing.close()


@asynccontextmanager
async def replica(redis: RedisServer) -> AsyncIterator[RunningService]:
    sharing = Sharing(SharedStore(redis.url, lease_s=SELDOM_S), longest_s=60)
    async with running_service(sharing=sharing) as service:
        await service.events(keyed(script(tokens=["a"], output_tokens=1), key="first"))  # connections, and the script
        await service.server.recordings.settle(5)
        yield service


class Shown:
    """A generation that is shown to other replicas."""

    def __init__(self, sharing: Sharing, generation_id: str = "gen_a", key: str = "") -> None:
        self._sharing = sharing
        self._key = ("t", key, "digest") if key else None
        self.id = generation_id
        self.log = EventLog(10_000, 10**6)
        sharing.publish(generation_id, self.log, {"tenant": b"t", "model": b"m"}, self._key)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.log.append(b"event %d" % (self.log.last + 1))

    async def end(self, *, keeps_key: bool = True) -> None:
        self.log.end()
        key = self._key if keeps_key else None
        await self._sharing.finish(self.id, self.log.last, End(), b"state", key, 30.0)

    async def is_described(self) -> bool:
        return bool(await self._sharing.store.description(self.id))

    async def has_ended(self) -> bool:
        return await self._sharing.store.has_ended(self.id)

    async def events(self) -> list[bytes]:
        """Return the events in the store, which are all there and in order; their end is behind them, and one."""
        entries: list[Entry] = (await self._sharing.store.read({self.id: 0}, wait_s=0.001))[self.id]
        ends = [place for place, entry in enumerate(entries) if entry.end is not None]
        assert ends in ([], [len(entries) - 1])
        events = [event for entry in entries for event in entry.events]
        assert events == [b"event %d" % number for number in range(1, len(events) + 1)]
        return events


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `check` holds of the store, which may be away meanwhile."""
    async with asyncio.timeout(5):
        while True:
            with suppress(StoreError):
                if await check():
                    return
            await asyncio.sleep(0.01)


# Round trips


async def test_a_request_with_a_key_takes_three_round_trips(redis: RedisServer, sent: list[str]) -> None:
    async with replica(redis) as service:
        sent.clear()
        events = await service.events(keyed(script(tokens=["a"], output_tokens=20, token_ms=5)))
        await service.server.recordings.settle(5)
        assert text_of(events) == "a" * 20
        # The key; that it has begun; the rest of it with its end.
        assert sent == ["SET", "EVALSHA", "EVALSHA"]


async def test_requests_at_once_share_round_trips(redis: RedisServer, sent: list[str]) -> None:
    async with replica(redis) as service:
        prompt = script(tokens=["a"], output_tokens=3, token_ms=1)
        sent.clear()
        await asyncio.gather(*(service.events(keyed(prompt, key=f"k{number}")) for number in range(40)))
        await service.server.recordings.settle(5)
        assert sent.count("SET") == 40
        # As many as there is time for, and not two for each request.
        assert len(sent) < 40 + 40


async def test_a_generation_is_described_before_its_first_event_and_at_once(
    redis: RedisServer, sent: list[str]
) -> None:
    async with shared(redis) as sharing:
        await Shown(sharing, "gen_before").end()
        shown = Shown(sharing)
        await until(shown.is_described)
        assert await sharing.find("t", "gen_a") == {
            "tenant": b"t",
            "model": b"m",
            "owner": sharing.store.instance.encode(),
        }


async def test_its_first_events_go_with_what_is_known_of_it(redis: RedisServer, sent: list[str]) -> None:
    async with shared(redis) as sharing:
        await Shown(sharing, "gen_before").end()
        sent.clear()
        shown = [Shown(sharing, f"gen_{number}") for number in range(20)]
        for one in shown:
            one.append(5)
        await asyncio.sleep(0.2)
        assert sent == ["EVALSHA"]
        assert [len(await one.events()) for one in shown] == [5] * 20


async def test_ends_at_once_are_one_round_trip(redis: RedisServer, sent: list[str]) -> None:
    async with shared(redis) as sharing:
        shown = [Shown(sharing, f"gen_{number}", key=f"k{number}") for number in range(50)]
        await until(shown[-1].is_described)
        for one in shown:
            one.append(3)
        sent.clear()
        await asyncio.gather(*(one.end() for one in shown))
        assert sent == ["EVALSHA"]
        for one in shown:
            assert len(await one.events()) == 3
            assert await one.has_ended()


async def test_more_than_one_round_trip_takes_goes_in_order(
    redis: RedisServer, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("_ENTRY", 10), ("_TRIP", 25), ("_LOGS", 3)):
        monkeypatch.setattr(mirror_module, name, most)
    async with shared(redis) as sharing:
        shown = [Shown(sharing, f"gen_{number}") for number in range(8)]
        for one in shown:
            one.append(40)
        async with asyncio.timeout(5):
            await asyncio.gather(*(one.end() for one in shown[:5]))
        for one in shown[:5]:
            assert len(await one.events()) == 40
            assert await one.has_ended()
        for one in shown[5:]:
            await until(one.is_described)
            assert not await one.has_ended()


async def test_logs_that_always_have_more_keep_no_other_one_waiting(
    redis: RedisServer, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("_ENTRY", 10), ("_LOGS", 2)):
        monkeypatch.setattr(mirror_module, name, most)
    async with shared(redis) as sharing:
        busy = [Shown(sharing, f"gen_busy_{number}") for number in range(4)]
        for one in busy:
            one.append(5000)
        quiet = Shown(sharing, "gen_quiet")
        quiet.append(1)
        await until(quiet.is_described)
        assert len(await quiet.events()) == 1


async def test_a_log_is_written_once_where_nothing_is_new(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "_INTERVAL_S", 0.01)
    async with shared(redis) as sharing:
        shown = Shown(sharing)
        shown.append(3)
        await until(shown.is_described)
        written = sharing.store.write
        batches: list[Any] = []

        async def noted(new: Any, keep_s: float) -> None:
            batches.extend(new)
            await written(new, keep_s)

        monkeypatch.setattr(sharing.store, "write", noted)
        await asyncio.sleep(0.2)
        assert not batches
        shown.append(1)
        await eventually(lambda: len(batches) == 1)
        await asyncio.sleep(0.1)
        assert [(one.facts, one.first, one.events) for one in batches] == [({}, 4, [b"event 4"])]


# Ends that the store does not take


async def test_an_end_of_which_nobody_knows_whether_it_was_taken_is_told_again_and_stands_once(
    redis: RedisServer,
) -> None:
    async with shared(redis) as sharing:
        assert await sharing.claim("t", "k", "digest", "gen_a", lambda _: True) is None
        shown = Shown(sharing, key="k")
        shown.append(5)
        await until(shown.is_described)
        shown.append(5)
        redis.freeze()
        await shown.end()  # it is told later, and nobody waits for that
        redis.thaw()
        await until(shown.has_ended)
        await eventually(lambda: not sharing._mirror._logs)
        assert len(await shown.events()) == 10
        assert await sharing.find_key("t", "k") == "gen_a"


async def test_ends_are_told_to_a_store_that_comes_back_empty_with_all_before_them(redis: RedisServer) -> None:
    async with shared(redis) as sharing:
        shown = [Shown(sharing, f"gen_{number}", key=f"k{number}") for number in range(3)]
        for one in shown:
            one.append(5)
            await until(one.is_described)
        redis.kill()
        async with asyncio.timeout(5):
            await asyncio.gather(*(one.end() for one in shown[:2]))
        redis.start()
        await until(shown[1].has_ended)
        await until(shown[2].is_described)
        assert [len(await one.events()) for one in shown] == [5, 5, 5]
        assert not await shown[2].has_ended()
        assert [await sharing.find_key("t", f"k{number}") for number in range(3)] == [one.id for one in shown]


async def test_of_too_many_ends_the_first_ones_are_not_told(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "_MOST_UNTOLD", 2)
    async with shared(redis) as sharing:
        shown = [Shown(sharing, f"gen_{number}") for number in range(5)]
        redis.kill()
        async with asyncio.timeout(5):
            await asyncio.gather(*(one.end() for one in shown[:4]))
        assert list(sharing._mirror._logs) == ["gen_2", "gen_3", "gen_4"]
        redis.start()
        await until(shown[3].has_ended)
        assert await shown[2].has_ended()
        assert not await shown[1].is_described()


async def test_a_key_that_is_free_again_is_not_taken_by_an_end(redis: RedisServer) -> None:
    async with shared(redis) as sharing:
        assert await sharing.claim("t", "k", "digest", "gen_a", lambda _: True) is None
        shown = Shown(sharing, key="k")
        await until(shown.is_described)
        await sharing.free("t", "k", "gen_a", "digest")
        sharing._mirror.distrust()
        await shown.end(keeps_key=False)
        assert await shown.has_ended()
        assert await sharing.find_key("t", "k") is None


async def test_who_waits_for_an_end_does_not_wait_longer_than_the_mirror_runs(redis: RedisServer) -> None:
    async with shared(redis) as sharing:
        ending, late = Shown(sharing, "gen_ending"), Shown(sharing, "gen_late")
        await until(late.is_described)
        redis.freeze()
        waiting = asyncio.create_task(ending.end())
        await asyncio.sleep(0.05)
        await sharing._mirror.close()
        async with asyncio.timeout(1):
            await waiting
            await late.end()
        redis.thaw()
