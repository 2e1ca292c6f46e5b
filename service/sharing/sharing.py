"""What a replica does for the others and with them, in one place: its lease, its logs, and theirs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from service.core.errors import Reason, ServiceError
from service.retention.log import EventLog
from service.retention.policy import key_reused
from service.sharing.mirror import Mirror
from service.sharing.names import Claim, End
from service.sharing.peers import Answerer, Peers
from service.sharing.remote import Remotes
from service.sharing.store import Claimed, Ending, SharedStore, StoreError
from service.sharing.tasks import stop

__all__ = ["Sharing"]

logger = logging.getLogger("headrace.service")

# Readers at other replicas are a moment behind: what is not kept is there for them so long.
_LEAST_KEPT_S: Final = 10.0
_RETRY_AFTER_S: Final = 1.0
# Of an owner that does not answer at once: a message may be lost.
_QUESTIONS: Final = 2
# What is told, not asked: generations that are read elsewhere; so many in a message.
_READ: Final = "read"
_TOLD: Final = 1000


class Sharing:
    """`longest_s`: how long a generation may run, which bounds what a dead replica leaves in the store."""

    def __init__(self, store: SharedStore, longest_s: float) -> None:
        self.store = store
        self._longest_s = longest_s + 60.0
        self._mirror = Mirror(store, self._longest_s)
        self._remotes = Remotes(store, self._tell_read)
        self._peers: Peers | None = None
        self._lease: asyncio.Task[None] | None = None
        self.is_well = True
        self._is_known = False  # it has signed before

    async def start(self, answer: Answerer) -> None:
        """Join the others; also if the store is not there yet. `answer` is asked what others ask."""

        def answered(kind: str, tenant: str, text: str) -> bytes | None:
            if kind != _READ:
                return answer(kind, tenant, text)
            self._mirror.note_read(text.split())
            return None

        self._peers = Peers(self.store, answered)
        self._peers.start()
        await self._sign()
        self._lease = asyncio.create_task(self._keep_lease(), name="lease")

    async def close(self) -> None:
        """Leave the others."""
        await stop(self._lease)
        await self._mirror.close()
        await self._remotes.close()
        if self._peers is not None:
            await self._peers.close()
        await self.store.close()

    def problem(self) -> str | None:
        """Return what keeps replicas from working together, in words; None if nothing does."""
        return None if self.is_well else "the store that replicas share is not there"

    # As the owner of a generation.

    async def claim(
        self, tenant: str, key: str, digest: str, generation_id: str, is_known: Callable[[str], bool]
    ) -> Claim | None:
        """Return None if the key is this generation's now, else whose it is.

        `is_known` tells whether this process has a generation. IDEMPOTENCY_MISMATCH if
        another request has the key, STORE_UNAVAILABLE if nobody can tell. A key whose
        owner died, or knows nothing of its generation, is free.
        """
        mine = self._own_claim(generation_id, digest)
        try:
            while (theirs := await self.store.claim(tenant, key, mine, self._longest_s)) is not None:
                if await self.store.has_ended(theirs.generation_id):
                    break
                if theirs.owner == self.store.instance:
                    is_theirs = is_known(theirs.generation_id)
                else:
                    is_theirs = await self._is_theirs(tenant, theirs)
                if is_theirs:
                    break
                await self.store.give_up(tenant, key, theirs)
        except StoreError as error:
            raise _cannot_promise(str(error)) from None
        if theirs is not None and theirs.digest != digest:
            raise key_reused(theirs.generation_id)
        return theirs

    def _own_claim(self, generation_id: str, digest: str) -> Claim:
        return Claim(generation_id, self.store.instance, digest)

    async def _is_theirs(self, tenant: str, theirs: Claim) -> bool:
        """Return whether the owner of a key has its generation. STORE_UNAVAILABLE if it lives and does not say."""
        assert self._peers is not None
        for _ in range(_QUESTIONS):
            told = await self._peers.ask(f"owns {theirs.owner}", tenant, theirs.generation_id)
            if told is not None:
                return told == b"1"
        if not (await self.store.are_alive([theirs.owner]))[theirs.owner]:
            return False
        raise _cannot_promise("the owner of the key does not answer")

    def publish(
        self, generation_id: str, log: EventLog, facts: Mapping[str, bytes], key: tuple[str, str, str] | None
    ) -> None:
        """Show a log to the other replicas from now on. `key`: tenant, key and digest, if it has one."""
        facts = {**facts, "owner": self.store.instance.encode()}
        self._mirror.add(generation_id, log, facts, self._claimed(generation_id, key))

    def _claimed(self, generation_id: str, key: tuple[str, str, str] | None) -> Claimed | None:
        return None if key is None else (key[0], key[1], self._own_claim(generation_id, key[2]))

    async def finish(
        self, generation_id: str, last: int, end: End, state: bytes, key: tuple[str, str, str] | None, keep_s: float
    ) -> None:
        """Show its end, and leave it there for `keep_s`; later, if the store is not there. `key` as in `publish`."""
        facts = {"ended": b"1", "state": state, "owner": self.store.instance.encode()}
        ending = Ending(last, end, facts, self._claimed(generation_id, key), max(keep_s, _LEAST_KEPT_S))
        try:
            await self._mirror.finish(generation_id, ending)
        except StoreError as error:
            logger.warning("other replicas do not learn the end of a generation yet: %s", error)

    async def free(self, tenant: str, key: str, generation_id: str, digest: str) -> None:
        """Free a key."""
        try:
            await self.store.give_up(tenant, key, self._own_claim(generation_id, digest))
        except StoreError as error:
            logger.warning("a key stays taken until its time is over: %s", error)

    async def has_readers(self, generation_id: str) -> bool:
        """Return whether somebody reads it at another replica; False if nobody can tell."""
        try:
            return await self.store.has_readers(generation_id)
        except StoreError:
            return False

    # As one of the others.

    def follow(
        self, generation_id: str, owner: str, log: EventLog, on_end: Callable[[End], None], is_read: Callable[[], bool]
    ) -> None:
        """Fill `log` with what another replica shows."""
        self._remotes.follow(generation_id, owner, log, on_end, is_read)

    def unfollow(self, generation_id: str, log: EventLog) -> None:
        """Fill it no more."""
        self._remotes.drop(generation_id, log)

    async def find(self, tenant: str, generation_id: str) -> dict[str, bytes] | None:
        """Return what is written down of a tenant's retained generation; None if there is none. STORE_UNAVAILABLE."""
        with _answering():
            facts = await self.store.description(generation_id)
        return facts if facts and facts.get("tenant") == tenant.encode() else None

    async def find_key(self, tenant: str, key: str) -> str | None:
        """Return the id of the generation that a key is that of. STORE_UNAVAILABLE."""
        with _answering():
            claim = await self.store.claim_of(tenant, key)
        return None if claim is None else claim.generation_id

    async def newest(self, generation_id: str) -> int:
        """Return the number of the newest event that is shown. STORE_UNAVAILABLE."""
        with _answering():
            return await self.store.newest(generation_id)

    async def has_ended(self, generation_id: str) -> bool:
        """Return whether the end of a generation is shown. STORE_UNAVAILABLE."""
        with _answering():
            return await self.store.has_ended(generation_id)

    async def is_alive(self, owner: str) -> bool:
        """Return whether a replica lives. STORE_UNAVAILABLE."""
        with _answering():
            return (await self.store.are_alive([owner]))[owner]

    async def ask(self, kind: str, tenant: str, generation_id: str) -> bytes | None:
        """Return what the replica that has a generation says; None if none has. STORE_UNAVAILABLE."""
        assert self._peers is not None
        with _answering():
            return await self._peers.ask(kind, tenant, generation_id)

    async def _tell_read(self, generation_ids: Sequence[str]) -> None:
        """Tell the owners of generations that they are read here, so that they show them without delay."""
        assert self._peers is not None
        for batch in (generation_ids[at : at + _TOLD] for at in range(0, len(generation_ids), _TOLD)):
            await self._peers.tell(_READ, " ".join(batch))

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self.store.lease_s / 3)
            await self._sign()

    async def _sign(self) -> None:
        try:
            was_there = await self.store.keep_lease()
            if not was_there and self._is_known:
                self._mirror.distrust()  # the store was emptied, or took this replica for dead
            self._is_known = True
        except StoreError as error:
            if self.is_well:
                logger.error("the store that replicas share is not there; what runs here goes on: %s", error)
            self.is_well = False
        else:
            if not self.is_well:
                logger.info("the store that replicas share is there again")
            self.is_well = True


def _cannot_promise(detail: str) -> ServiceError:
    return ServiceError(
        Reason.STORE_UNAVAILABLE,
        "It cannot be promised now that this key runs once: the store that replicas share, or the one of them that has "
        "the key, does not answer. Nothing was run.",
        retry_after_s=_RETRY_AFTER_S,
        detail=detail,
    )


@contextmanager
def _answering() -> Iterator[None]:
    """Raise STORE_UNAVAILABLE where the store does not answer a question about other replicas."""
    try:
        yield
    except StoreError as error:
        raise ServiceError(
            Reason.STORE_UNAVAILABLE,
            "The store that replicas share does not answer, so it cannot be known whether another one has this "
            "generation.",
            retry_after_s=_RETRY_AFTER_S,
            detail=str(error),
        ) from None
