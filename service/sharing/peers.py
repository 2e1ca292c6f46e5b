"""What replicas ask one another: who knows this generation, and what becomes of it.

A question goes to all; whoever has the generation answers, and nobody else. No
answer in time is "nobody has it", the same for one that is another tenant's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Final

from service.sharing.store import SharedStore, StoreError
from service.sharing.tasks import stop

__all__ = ["Answerer", "Peers"]

logger = logging.getLogger("headrace.service")

# Kind of the question, tenant, id of the generation; the answer, None if it is not here.
Answerer = Callable[[str, str, str], bytes | None]

_PATIENCE_S: Final = 0.4
_PAUSE_S: Final = 1.0
_MAX_BYTES: Final = 256 * 1024


class Peers:
    """Asks, and answers with `answer` what it is asked."""

    def __init__(self, store: SharedStore, answer: Answerer) -> None:
        self._store = store
        self._answer = answer
        self._open: dict[str, asyncio.Future[bytes]] = {}
        self._task: asyncio.Task[None] | None = None
        self._replies: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.create_task(self._listen(), name="peers")

    async def close(self) -> None:
        """Stop."""
        await stop(self._task, *self._replies)

    async def ask(self, kind: str, tenant: str, generation_id: str) -> bytes | None:
        """Return what the replica that has the generation says; None if none has. Raises StoreError."""
        nonce = secrets.token_hex(8)
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[nonce] = waiting
        question = json.dumps([self._store.instance, nonce, kind, tenant, generation_id]).encode()
        try:
            await self._store.publish(self._store.names.questions, question)
            async with asyncio.timeout(_PATIENCE_S):
                return await waiting
        except TimeoutError:
            return None
        finally:
            del self._open[nonce]

    async def tell(self, kind: str, text: str) -> None:
        """Tell all others something that has no answer. Raises StoreError."""
        message = json.dumps([self._store.instance, "", kind, "", text]).encode()
        await self._store.publish(self._store.names.questions, message)

    async def _listen(self) -> None:
        names = self._store.names
        mine = names.answers(self._store.instance)
        while True:
            try:
                async for channel, data in self._store.listen(names.questions, mine):
                    if len(data) <= _MAX_BYTES:
                        self._on_message(data, is_answer=channel == mine)
            except StoreError:
                await asyncio.sleep(_PAUSE_S)

    def _on_message(self, data: bytes, *, is_answer: bool) -> None:
        try:
            if is_answer:
                nonce, told = json.loads(data)
                waiting = self._open.get(nonce)
                if waiting is not None and not waiting.done():
                    waiting.set_result(b64decode(told))
                return
            asker, nonce, kind, tenant, generation_id = map(str, json.loads(data))
        except (ValueError, TypeError):
            logger.warning("a message of another replica cannot be read")
            return
        if asker == self._store.instance:
            return
        answer = self._answer(kind, tenant, generation_id)
        if answer is not None:
            reply = asyncio.create_task(self._reply(asker, nonce, answer))
            self._replies.add(reply)
            reply.add_done_callback(self._replies.discard)

    async def _reply(self, asker: str, nonce: str, answer: bytes) -> None:
        message = json.dumps([nonce, b64encode(answer).decode()]).encode()
        try:
            await self._store.publish(self._store.names.answers(asker), message)
        except StoreError as error:
            logger.warning("an answer to another replica is lost: %s", error)
