"""Runs the cases: the ways take turns or run side by side, so that what the machine does besides meets all of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from bench.retention.plan import Case, Way
from bench.retention.servers import Server, Servers
from headrace import AsyncClient, HeadraceError, RequestFields

__all__ = ["Cost", "Pair", "Pairs", "measure"]

TIMEOUT_S: Final = 120.0
# A burst of connects and of first requests is another measurement.
BEGIN_AT_ONCE: Final = 8
IDLE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One round of one way: CPU µs per token that was generated, of each process that takes part; 0 for the others.

    `redis_us` is without what redis-server does when nobody asks it.
    """

    service_us: float
    replica_us: float
    redis_us: float
    tokens_per_event: float


@dataclass(frozen=True, slots=True)
class Pair:
    """What a way cost in a round, and what it is compared with in the same round."""

    own: Cost
    base: Cost


# Without the ways for which there is no Redis.
Pairs = Mapping[Way, list[Pair]]


async def measure(servers: Servers, plan: list[Case]) -> list[tuple[Case, Pairs]]:
    """Return what each case cost."""
    async with AsyncExitStack() as stack:
        clients = {
            server: await stack.enter_async_context(AsyncClient(server.target, transport="asyncio"))
            for server in servers.services
        }
        player = _Player(servers, clients)
        return [(case, await _pairs(player, case)) for case in plan]


async def _idle_share(redis: Server) -> float:
    """Return the share of a core that it takes when nobody asks it anything."""
    begun_s = redis.cpu_s()
    await asyncio.sleep(IDLE_S)
    return (redis.cpu_s() - begun_s) / IDLE_S


async def _pairs(player: _Player, case: Case) -> Pairs:
    ways = [way for way in case.ways if player.can(way)]
    pairs: dict[Way, list[Pair]] = {way: [] for way in ways if way is not Way.OFF}
    for way in ways:
        await player.play(case.warm_up, way)
    for number in range(case.rounds):
        # Forth and back: who comes first must not always be the same.
        turn = ways if number % 2 else ways[::-1]
        if case.token_ms:
            for way in turn:
                if way is not Way.OFF:
                    pairs[way].append(await player.play_beside(case, way, is_first=number % 2 > 0))
        else:
            costs = {way: await player.play(case, way) for way in turn}
            for way, found in pairs.items():
                found.append(Pair(costs[way], costs[way.base]))
    return pairs


class _Player:
    def __init__(self, servers: Servers, clients: Mapping[Server, AsyncClient]) -> None:
        self._servers = servers
        self._clients = clients
        self._places = asyncio.Semaphore(BEGIN_AT_ONCE)
        self._keys = (f"bench-{number}" for number in itertools.count())

    def can(self, way: Way) -> bool:
        """Return whether there is what it needs."""
        return self._servers.redis is not None or not way.needs_store

    async def play_beside(self, case: Case, way: Way, *, is_first: bool) -> Pair:
        """Run a paced case in two processes at once, one of them as the way's base; `is_first`: the other one.

        A paced token costs what waking a process costs, which differs by the half from second to second on a
        virtual machine: only what happens in the same seconds can be compared. Flat out the two would fight for the
        cores.
        """
        if way is Way.REMOTE_JOINER:  # there is no third replica
            return Pair(base=await self.play(case, way.base), own=await self.play(case, way))
        # Who follows closely finds a core that is awake, and no process is quite like the other.
        servers = self._servers
        ours = servers.owner if way.needs_store else servers.plain if is_first else servers.twin
        theirs = servers.twin if ours is servers.plain else servers.plain
        share = await _idle_share(servers.redis) if servers.redis is not None and way is Way.SHARED else 0.0
        if is_first:
            own, base = await asyncio.gather(self.play(case, way, ours, share), self.play(case, way.base, theirs))
        else:
            base, own = await asyncio.gather(self.play(case, way.base, theirs), self.play(case, way, ours, share))
        return Pair(own, base)

    async def play(self, case: Case, way: Way, service: Server | None = None, redis_idle_share: float = 0.0) -> Cost:
        """Run the streams of a case at once. SystemExit if one is not whole."""
        servers = self._servers
        service = service or (servers.owner if way.needs_store else None) or servers.plain
        joined = {Way.LOCAL_JOINER: service, Way.REMOTE_JOINER: servers.replica}.get(way)
        watched = (service, servers.replica if way is Way.REMOTE_JOINER else None, servers.redis)
        before, begun_s = [0.0 if one is None else one.cpu_s() for one in watched], time.perf_counter()
        events = await asyncio.gather(*(self._run(case, way, service, joined) for _ in range(case.streams)))
        own_s, replica_s, redis_s = (
            0.0 if one is None else one.cpu_s() - then_s for one, then_s in zip(watched, before, strict=True)
        )
        redis_s -= redis_idle_share * (time.perf_counter() - begun_s)
        total = case.streams * case.tokens
        return Cost(
            service_us=own_s / total * 1e6,
            replica_us=replica_s / total * 1e6,
            redis_us=redis_s / total * 1e6,
            tokens_per_event=total / sum(events),
        )

    async def _run(self, case: Case, way: Way, service: Server, joined: Server | None) -> int:
        """Run one stream with its second reader, if it has one; return the events that the first one got."""
        key = next(self._keys) if way.is_retained else None
        begun = asyncio.Event()
        async with asyncio.TaskGroup() as readers:
            async with self._places:
                first = readers.create_task(self._read(case, service, key, begun))
                await begun.wait()
            if joined is not None:
                readers.create_task(self._read(case, joined, key, asyncio.Event()))
        return first.result()

    async def _read(self, case: Case, server: Server, key: str | None, begun: asyncio.Event) -> int:
        events = 0
        wanted = RequestFields(model="default", prompt=case.prompt, max_output_tokens=case.tokens)
        if key is not None:
            wanted["idempotency_key"] = key
        stream = self._clients[server].generate(timeout_s=TIMEOUT_S, **wanted)
        try:
            async with stream:
                async for event in stream:
                    if event.HasField("delta"):
                        events += 1
                    else:
                        begun.set()
        except HeadraceError as error:
            raise SystemExit(f"bench: a stream failed: {error}") from None
        made = None if stream.usage is None else stream.usage.output_token_count
        if made != case.tokens:
            raise SystemExit(f"bench: a stream gave {made} of {case.tokens} tokens; the figures would mean nothing")
        return events
