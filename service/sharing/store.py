"""The shared store: a handful of operations on Redis or Valkey, each under a timeout.

Every failure of the store is a `StoreError`. What has to happen at once happens in
one transaction or script, so that replicas cannot come in between.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import redis.asyncio as redis
from redis.exceptions import RedisError

from service.patience import Patience
from service.sharing.names import Claim, End, Names

__all__ = ["Batch", "Claimed", "Ending", "Entry", "SharedStore", "StoreError"]

# Tenant and key, and whose it is.
Claimed = tuple[str, str, Claim]

_CONNECTIONS: Final = 16
_END: Final = b"end"
_SIZES: Final = b"sizes"
_EVENTS: Final = b"events"
_SIZE_BYTES: Final = 4
# KEYS: of each generation its log, its facts, and the key that is kept with it, in whose place the facts stand again.
# ARGV: of each the number of facts' names and values, these, and what `write` takes behind them; '' is for none.
# Facts come last: they say that the end is written. What fails with one generation is told when the others are written.
_WRITE: Final = """
local at = 0
local function take(count)
  at = at + count
  return unpack(ARGV, at - count + 1, at)
end
local function write(log, generation, key, facts, keep_ms, is_first, last, oldest, sizes, events, ending, claim)
  if redis.call('HGET', generation, 'ended') == '1' then return end
  if sizes ~= '' then
    redis.call('XADD', log, 'MINID', '~', oldest, last .. '-0', 'sizes', sizes, 'events', events)
  end
  if ending ~= '' then redis.call('XADD', log, last .. '-1', 'end', ending) end
  if ending ~= '' or is_first == '1' then redis.call('PEXPIRE', log, keep_ms) end
  if claim ~= '' and redis.call('GET', key) == claim then redis.call('PEXPIRE', key, keep_ms) end
  if #facts > 0 then
    redis.call('HSET', generation, unpack(facts))
    redis.call('PEXPIRE', generation, keep_ms)
  end
end
local failure
for place = 1, #KEYS, 3 do
  local facts = {take(tonumber(take(1)))}
  local is_written, problem = pcall(write, KEYS[place], KEYS[place + 1], KEYS[place + 2], facts, take(8))
  if not is_written then failure = type(problem) == 'table' and problem.err or problem end
end
return failure and redis.error_reply(failure)
"""
_DELETE_IF_SAME: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class StoreError(Exception):
    """The store does not answer, or not in time, or not what it should."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What an entry of a log says: events from number `first` on, or the end."""

    first: int
    events: Sequence[bytes]
    end: End | None


class Ending(NamedTuple):
    """How a generation ended, behind its event `last`; what is known of it then, and the key that is kept with it.

    From then on everything is kept for `keep_s`.
    """

    last: int
    end: End
    facts: Mapping[str, bytes]
    claim: Claimed | None
    keep_s: float


class Batch(NamedTuple):
    """What is written of one generation in one round trip.

    `facts` are what is known of it besides its events, where they are new. `first` is
    the number of the first of `events`, `oldest` that of the oldest that is kept.
    `is_first`: the store has no events of it yet.
    """

    generation_id: str
    facts: Mapping[str, bytes]
    first: int
    events: Sequence[bytes]
    oldest: int
    is_first: bool
    ending: Ending | None


class SharedStore:
    """Connections for one event loop.

    `instance` names this process among the replicas. `lease_s` is how long it counts
    as alive behind its last sign.
    """

    def __init__(self, url: str, *, prefix: str = "headrace", timeout_s: float = 0.5, lease_s: float = 6.0) -> None:
        self.instance = secrets.token_hex(8)
        self.names = Names(prefix)
        self.lease_s = lease_s
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(_CONNECTIONS)  # the pool refuses where all are taken
        # One timeout for a whole call is ours: the library has one for each step, and in Python 3.11 a task for each.
        self._redis = _client(url, timeout_s, socket_timeout=None, max_connections=_CONNECTIONS)
        self._listening = _client(url, timeout_s, socket_timeout=timeout_s)
        self._delete_if_same = self._redis.register_script(_DELETE_IF_SAME)
        self._write = self._redis.register_script(_WRITE)

    async def close(self) -> None:
        """Say that this replica is gone, and close the connections."""
        try:
            async with self._call():
                await self._redis.delete(self.names.owner(self.instance))
        except StoreError:
            pass
        await self._redis.aclose()
        await self._listening.aclose()

    async def keep_lease(self) -> bool:
        """Say that this replica lives. False if nothing was known of that: the store lost it, or time ran out."""
        async with self._call(), self._redis.pipeline(transaction=True) as pipe:
            pipe.exists(self.names.owner(self.instance))
            pipe.set(self.names.owner(self.instance), b"1", px=round(self.lease_s * 1000))
            was_there, _ = await pipe.execute()
        return bool(was_there)

    async def are_alive(self, owners: Sequence[str]) -> dict[str, bool]:
        """Return which replicas live."""
        async with self._call():
            found = await self._redis.mget([self.names.owner(owner) for owner in owners])
        return {owner: value is not None for owner, value in zip(owners, found, strict=True)}

    # Keys.

    async def claim(self, tenant: str, key: str, mine: Claim, keep_s: float) -> Claim | None:
        """Return None if the key is this claim's now, else whose it is."""
        name = self.names.claim(tenant, key)
        while True:
            async with self._call():
                if await self._redis.set(name, mine.encode(), nx=True, px=round(keep_s * 1000)):
                    return None
                found = await self._redis.get(name)
                if found is not None:
                    return Claim.decode(found)

    async def claim_of(self, tenant: str, key: str) -> Claim | None:
        """Return whose a key is."""
        async with self._call():
            found = await self._redis.get(self.names.claim(tenant, key))
            return None if found is None else Claim.decode(found)

    async def give_up(self, tenant: str, key: str, claim: Claim) -> None:
        """Free a key if it is still this claim's."""
        async with self._call():
            await self._delete_if_same(keys=[self.names.claim(tenant, key)], args=[claim.encode()])

    # Retained generations.

    async def write(self, batches: Sequence[Batch], keep_s: float) -> None:
        """Write all of it in one round trip; what has not ended is dropped after `keep_s`.

        May be repeated: of a generation whose end is written nothing more is. What fails
        with one of them is raised when the others are written.
        """
        keys: list[str] = []
        arguments: list[str | bytes | int] = []
        for batch in batches:
            self._add(batch, keep_s, keys, arguments)
        async with self._call():
            await self._write(keys, arguments)

    def _add(self, batch: Batch, keep_s: float, keys: list[str], arguments: list[str | bytes | int]) -> None:
        """Add what the script needs for one generation."""
        generation_id, facts, first, events, oldest, is_first, ending = batch
        generation = claimed = self.names.generation(generation_id)
        end = claim = b""
        if ending is not None:
            facts, keep_s, end = {**facts, **ending.facts}, ending.keep_s, ending.end.encode()
            if ending.claim is not None:
                tenant, key, mine = ending.claim
                claimed, claim = self.names.claim(tenant, key), mine.encode()
        keys += (self.names.log(generation_id), generation, claimed)
        last, keep_ms = first + len(events) - 1, round(keep_s * 1000)
        arguments.append(2 * len(facts))
        for fact in facts.items():
            arguments += fact
        arguments += (keep_ms, int(is_first), last, oldest, *_joined(events), end, claim)

    async def description(self, generation_id: str) -> dict[str, bytes]:
        """Return what is known of a generation besides its events; empty if nothing is."""
        async with self._call():
            found = await self._redis.hgetall(self.names.generation(generation_id))
        return {name.decode(): value for name, value in found.items()}

    async def has_ended(self, generation_id: str) -> bool:
        """Return whether the end of a generation is written."""
        async with self._call():
            return bool(await self._redis.hget(self.names.generation(generation_id), "ended") == b"1")

    async def read(self, after: Mapping[str, int], *, wait_s: float) -> dict[str, list[Entry]]:
        """Return new entries of several logs, behind the given numbers; waits up to `wait_s` if there are none."""
        streams = {self.names.log(generation_id): f"{number}-0" for generation_id, number in after.items()}
        async with self._call(wait_s):
            found = await self._redis.xread(streams, count=256, block=max(1, round(wait_s * 1000)))
            pairs = found.items() if isinstance(found, dict) else found or ()
            start = len(self.names.log(""))
            return {name.decode()[start:]: [_entry(*entry) for entry in _flat(entries)] for name, entries in pairs}

    async def newest(self, generation_id: str) -> int:
        """Return the number of the newest event in a log; 0 if there is none."""
        async with self._call():
            found = await self._redis.xrevrange(self.names.log(generation_id), count=1)
        return _number(found[0][0]) if found else 0

    async def oldest(self, generation_id: str) -> int | None:
        """Return the number of the oldest event in a log; None if there is none."""
        async with self._call():
            found = await self._redis.xrange(self.names.log(generation_id), count=1)
            entry = _entry(*found[0]) if found else None
        return None if entry is None or entry.end is not None else entry.first

    async def restart(self, generation_id: str) -> None:
        """Empty a log that is about to be written anew."""
        async with self._call():
            await self._redis.delete(self.names.log(generation_id))

    async def note_readers(self, generation_ids: Sequence[str], keep_s: float) -> None:
        """Say that generations have readers here."""
        async with self._call(), self._redis.pipeline(transaction=False) as pipe:
            for generation_id in generation_ids:
                pipe.set(self.names.readers(generation_id), b"1", px=round(keep_s * 1000))
            await pipe.execute()

    async def has_readers(self, generation_id: str) -> bool:
        """Return whether a generation has readers at another replica."""
        async with self._call():
            return bool(await self._redis.exists(self.names.readers(generation_id)))

    # What replicas ask one another.

    async def publish(self, channel: str, message: bytes) -> None:
        """Send a message to whoever listens."""
        async with self._call():
            await self._redis.publish(channel, message)

    async def listen(self, *channels: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield messages of channels until the store fails."""
        with _failures():
            async with self._listening.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(*channels)
                while True:
                    message = await pubsub.get_message(timeout=1.0)
                    if message is not None:
                        yield message["channel"].decode(), message["data"]

    @asynccontextmanager
    async def _call(self, wait_s: float = 0.0) -> AsyncIterator[None]:
        """Wait for a turn, then bound a call by the timeout and what the store itself waits. Raises StoreError."""
        with _failures():
            try:
                if self._turns.locked():
                    async with Patience(self._timeout_s):
                        await self._turns.acquire()
                else:
                    await self._turns.acquire()
                try:
                    async with Patience(self._timeout_s + wait_s):
                        yield
                finally:
                    self._turns.release()
            except TimeoutError:
                raise StoreError(f"no answer within {self._timeout_s:g} s") from None


def _client(url: str, timeout_s: float, **options: Any) -> Any:
    """Return a client that repeats nothing by itself."""
    return redis.Redis.from_pool(redis.ConnectionPool.from_url(url, socket_connect_timeout=timeout_s, **options))


def _flat(entries: Any) -> Any:
    """Return the entries of one stream, whichever protocol version told them."""
    return entries[0] if len(entries) == 1 and isinstance(entries[0], list) else entries


def _number(entry_id: bytes) -> int:
    """Return the number of the last event in an entry, or before it."""
    return int(entry_id.partition(b"-")[0])


def _entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    if _END in fields:
        return Entry(0, (), End.decode(fields[_END]))
    events = _parted(fields[_SIZES], fields[_EVENTS])
    return Entry(_number(entry_id) - len(events) + 1, events, None)


def _joined(events: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the sizes of events, four bytes each, and the events one behind the other.

    Each argument of a command costs far more than the bytes in it.
    """
    return struct.pack(f"<{len(events)}I", *map(len, events)), b"".join(events)


def _parted(sizes: bytes, joined: bytes) -> list[bytes]:
    """Return the events again. Raises ValueError."""
    count, rest = divmod(len(sizes), _SIZE_BYTES)
    if rest:
        raise ValueError("the sizes of events are torn")
    bounds = list(accumulate(struct.unpack(f"<{count}I", sizes), initial=0))
    if bounds[-1] != len(joined):
        raise ValueError("events and their sizes do not agree")
    return [joined[begin:end] for begin, end in pairwise(bounds)]


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (TimeoutError, RedisError, OSError, ValueError, KeyError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error
