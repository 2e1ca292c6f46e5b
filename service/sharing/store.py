"""The shared store: a handful of operations on Redis or Valkey, each under a timeout.

Every failure of the store is a `StoreError`. What has to happen at once happens in
one transaction or script, so that replicas cannot come in between.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import redis.asyncio as redis
from redis.exceptions import RedisError

from service.sharing.names import Claim, End, Names

__all__ = ["Batch", "Entry", "SharedStore", "StoreError"]

_CONNECTIONS: Final = 32
_END: Final = b"end"
_FIRST: Final = b"first"
_EXPIRE_IF_SAME: Final = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
)
_DELETE_IF_SAME: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class StoreError(Exception):
    """The store does not answer, or not in time, or not what it should."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What an entry of a log says: events from number `first` on, or the end."""

    first: int
    events: Sequence[bytes]
    end: End | None


class Batch(NamedTuple):
    """What is appended to one log: number of the first event, events, and the oldest number that is kept.

    `is_first`: the store has nothing of this log yet.
    """

    generation_id: str
    first: int
    events: Sequence[bytes]
    oldest: int
    is_first: bool


class SharedStore:
    """One connection pool, for one event loop.

    `instance` names this process among the replicas. `lease_s` is how long it counts
    as alive behind its last sign.
    """

    def __init__(self, url: str, *, prefix: str = "headrace", timeout_s: float = 0.5, lease_s: float = 6.0) -> None:
        self.instance = secrets.token_hex(8)
        self.names = Names(prefix)
        self.lease_s = lease_s
        pool = redis.BlockingConnectionPool.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            max_connections=_CONNECTIONS,
            timeout=timeout_s,  # who finds all of them taken waits; the other kind of pool refuses
        )
        self._redis: Any = redis.Redis.from_pool(pool)
        self._delete_if_same = self._redis.register_script(_DELETE_IF_SAME)
        self._expire_if_same = self._redis.register_script(_EXPIRE_IF_SAME)

    async def close(self) -> None:
        """Say that this replica is gone, and close the connections."""
        try:
            with _failures():
                await self._redis.delete(self.names.owner(self.instance))
        except StoreError:
            pass
        await self._redis.aclose()

    async def keep_lease(self) -> bool:
        """Say that this replica lives. False if nothing was known of that: the store lost it, or time ran out."""
        with _failures():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.exists(self.names.owner(self.instance))
                pipe.set(self.names.owner(self.instance), b"1", px=round(self.lease_s * 1000))
                was_there, _ = await pipe.execute()
        return bool(was_there)

    async def are_alive(self, owners: Sequence[str]) -> dict[str, bool]:
        """Return which replicas live."""
        with _failures():
            found = await self._redis.mget([self.names.owner(owner) for owner in owners])
        return {owner: value is not None for owner, value in zip(owners, found, strict=True)}

    # Keys.

    async def claim(self, tenant: str, key: str, mine: Claim, keep_s: float) -> Claim | None:
        """Return None if the key is this claim's now, else whose it is."""
        name = self.names.claim(tenant, key)
        while True:
            with _failures():
                if await self._redis.set(name, mine.encode(), nx=True, px=round(keep_s * 1000)):
                    return None
                found = await self._redis.get(name)
                if found is not None:
                    return Claim.decode(found)

    async def claim_of(self, tenant: str, key: str) -> Claim | None:
        """Return whose a key is."""
        with _failures():
            found = await self._redis.get(self.names.claim(tenant, key))
            return None if found is None else Claim.decode(found)

    async def give_up(self, tenant: str, key: str, claim: Claim) -> None:
        """Free a key if it is still this claim's."""
        with _failures():
            await self._delete_if_same(keys=[self.names.claim(tenant, key)], args=[claim.encode()])

    # Retained generations.

    async def describe(self, generation_id: str, facts: Mapping[str, bytes], keep_s: float) -> None:
        """Write down what is known of a generation besides its events."""
        name = self.names.generation(generation_id)
        with _failures():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hset(name, mapping=dict(facts))
                pipe.pexpire(name, round(keep_s * 1000))
                await pipe.execute()

    async def description(self, generation_id: str) -> dict[str, bytes]:
        """Return that; empty if there is none."""
        with _failures():
            found = await self._redis.hgetall(self.names.generation(generation_id))
        return {name.decode(): value for name, value in found.items()}

    async def append(self, batches: Sequence[Batch], keep_s: float) -> None:
        """Append events to logs, all in one round trip; a new log is dropped after `keep_s` unless it is finished."""
        with _failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for generation_id, first, events, oldest, is_first in batches:
                    name = self.names.log(generation_id)
                    fields: dict[bytes, bytes] = {_FIRST: b"%d" % first}
                    fields.update((b"%d" % place, event) for place, event in enumerate(events))
                    trims = {"minid": oldest, "approximate": True} if oldest > 1 else {}
                    pipe.xadd(name, fields, id=f"{first + len(events) - 1}-0", **trims)
                    if is_first:
                        pipe.pexpire(name, round(keep_s * 1000))
                await pipe.execute()

    async def finish(self, generation_id: str, last: int, end: End, facts: Mapping[str, bytes], keep_s: float) -> None:
        """Write the end, and keep everything for `keep_s` more seconds. May be repeated."""
        keep_ms = round(keep_s * 1000)
        log, generation = self.names.log(generation_id), self.names.generation(generation_id)
        with _failures():
            if await self.has_ended(generation_id):
                return
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.xadd(log, {_END: end.encode()}, id=f"{last + 1}-0")
                pipe.hset(generation, mapping=dict(facts))
                pipe.pexpire(log, keep_ms)
                pipe.pexpire(generation, keep_ms)
                await pipe.execute()

    async def has_ended(self, generation_id: str) -> bool:
        """Return whether the end of a generation is written."""
        with _failures():
            return bool(await self._redis.hget(self.names.generation(generation_id), "ended") == b"1")

    async def keep_claim(self, tenant: str, key: str, claim: Claim, keep_s: float) -> None:
        """Keep a key for `keep_s` more seconds, if it is still this claim's."""
        with _failures():
            await self._expire_if_same(
                keys=[self.names.claim(tenant, key)], args=[claim.encode(), round(keep_s * 1000)]
            )

    async def read(self, after: Mapping[str, int], *, wait_s: float) -> dict[str, list[Entry]]:
        """Return new entries of several logs, behind the given numbers; waits up to `wait_s` if there are none."""
        streams = {self.names.log(generation_id): f"{number}-0" for generation_id, number in after.items()}
        with _failures():
            found = await self._redis.xread(streams, count=256, block=max(1, round(wait_s * 1000)))
            pairs = found.items() if isinstance(found, dict) else found or ()
            start = len(self.names.log(""))
            return {name.decode()[start:]: [_entry(fields) for _, fields in _flat(entries)] for name, entries in pairs}

    async def newest(self, generation_id: str) -> int:
        """Return the number of the newest event in a log; 0 if there is none."""
        with _failures():
            found = await self._redis.xrevrange(self.names.log(generation_id), count=1)
        if not found:
            return 0
        entry_id, fields = found[0]
        number = int(entry_id.partition(b"-")[0])
        return number - 1 if _END in fields else number

    async def oldest(self, generation_id: str) -> int | None:
        """Return the number of the oldest event in a log; None if there is none."""
        with _failures():
            found = await self._redis.xrange(self.names.log(generation_id), count=1)
            return int(found[0][1][_FIRST]) if found and _FIRST in found[0][1] else None

    async def restart(self, generation_id: str) -> None:
        """Empty a log that is about to be written anew."""
        with _failures():
            await self._redis.delete(self.names.log(generation_id))

    async def note_readers(self, generation_ids: Sequence[str], keep_s: float) -> None:
        """Say that generations have readers here."""
        with _failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for generation_id in generation_ids:
                    pipe.set(self.names.readers(generation_id), b"1", px=round(keep_s * 1000))
                await pipe.execute()

    async def has_readers(self, generation_id: str) -> bool:
        """Return whether a generation has readers at another replica."""
        with _failures():
            return bool(await self._redis.exists(self.names.readers(generation_id)))

    # What replicas ask one another.

    async def publish(self, channel: str, message: bytes) -> None:
        """Send a message to whoever listens."""
        with _failures():
            await self._redis.publish(channel, message)

    async def listen(self, *channels: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield messages of channels until the store fails."""
        with _failures():
            async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(*channels)
                while True:
                    message = await pubsub.get_message(timeout=1.0)
                    if message is not None:
                        yield message["channel"].decode(), message["data"]


def _flat(entries: Any) -> Any:
    """Return the entries of one stream, whichever protocol version told them."""
    return entries[0] if len(entries) == 1 and isinstance(entries[0], list) else entries


def _entry(fields: Mapping[bytes, bytes]) -> Entry:
    if _END in fields:
        return Entry(0, (), End.decode(fields[_END]))
    return Entry(int(fields[_FIRST]), [fields[b"%d" % place] for place in range(len(fields) - 1)], None)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (TimeoutError, RedisError, OSError, ValueError, KeyError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error
