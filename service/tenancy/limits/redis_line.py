"""A line to one Redis: scripts that are called at about the same time go there and back together.

One task owns the connection. It sends what has gathered while the last batch was
under way, so that many requests at once cost one round trip and not a connection
each. A batch that is not answered in time has failed, and so has what waits behind
it: whoever calls goes on without Redis at once, instead of standing in line for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from service.patience import Patience

__all__ = ["RedisLine", "RedisMissingError", "StoreError"]

# So that a batch is short against the timeout: a script takes Redis some tens of microseconds.
_BATCH: Final = 128


class StoreError(Exception):
    """The store has not answered as it should. Whether it has done what it was told is not known."""


class RedisMissingError(Exception):
    """The package `redis` is not installed."""


@dataclass(slots=True, eq=False)
class _Call:
    script: str
    keys: Sequence[str]
    arguments: Sequence[str | int]
    answer: asyncio.Future[list[int]]


class RedisLine:
    """Calls scripts of one Redis, for one event loop."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        """Connect to nothing yet. Raises `RedisMissingError`, ValueError for what is no address."""
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise RedisMissingError("the package redis is missing: install headrace-server[redis]") from None
        # Retried by nobody but those who know what may be done twice.
        self._redis: Any = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
        self._timeout_s = timeout_s
        self._waiting: list[_Call] = []
        self._has_work = asyncio.Event()
        self._digests: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send what is called."""
        self._task = asyncio.create_task(self._send_all(), name="limits in redis")

    async def close(self) -> None:
        """Fail what waits, and disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail(self._waiting, StoreError("closed"))
        await self._disconnect()

    async def call(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> list[int]:
        """Return what a script answers. Raises `StoreError`. Cancelling stops no script that was called."""
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(script, keys, arguments, answer))
        self._has_work.set()
        return await answer

    async def ping(self) -> None:
        """Return if it answers. Raises `StoreError`."""
        await self.call("return {}", (), ())

    async def _send_all(self) -> None:
        while True:
            await self._has_work.wait()
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            if not self._waiting:
                self._has_work.clear()
            try:
                await self._send(batch)
            except StoreError as error:
                await self._disconnect()
                late, self._waiting = self._waiting, []
                self._has_work.clear()
                self._fail([*batch, *late], error)
            except asyncio.CancelledError:
                self._fail(batch, StoreError("closed"))
                raise

    async def _send(self, batch: Sequence[_Call]) -> None:
        """Send a batch and give out its answers. Raises `StoreError` if not all of them came."""
        exchange = asyncio.create_task(self._exchange(batch))
        try:
            with suppress(TimeoutError):
                async with Patience(self._timeout_s):
                    await asyncio.wait([exchange])
        finally:
            if not exchange.done():
                exchange.cancel()
                await asyncio.wait([exchange])
        if exchange.cancelled():
            raise StoreError(f"no answer within {self._timeout_s:g} s")
        if (error := exchange.exception()) is not None:
            raise StoreError(f"{type(error).__name__}: {error}") from None
        for call, answer in zip(batch, exchange.result(), strict=True):
            if call.answer.done():
                continue
            if isinstance(answer, Exception):
                call.answer.set_exception(StoreError(f"{type(answer).__name__}: {answer}"))
            else:
                call.answer.set_result(answer)

    async def _exchange(self, batch: Sequence[_Call]) -> list[list[int] | Exception]:
        from redis.exceptions import NoScriptError

        answers = await self._run(batch)
        # It was started anew, and forgot them. Another process may have told it some again, so that others have run.
        unknown = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            self._digests.clear()
            again = await self._run([batch[number] for number in unknown])
            for number, answer in zip(unknown, again, strict=True):
                answers[number] = answer
        return answers

    async def _run(self, batch: Sequence[_Call]) -> list[list[int] | Exception]:
        for script in {call.script for call in batch} - self._digests.keys():
            self._digests[script] = await self._redis.script_load(script)
        pipeline = self._redis.pipeline(transaction=False)
        for call in batch:
            pipeline.evalsha(self._digests[call.script], len(call.keys), *call.keys, *call.arguments)
        return list(await pipeline.execute(raise_on_error=False))

    async def _disconnect(self) -> None:
        await self._redis.connection_pool.disconnect()

    @staticmethod
    def _fail(calls: Sequence[_Call], error: StoreError) -> None:
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(error)
