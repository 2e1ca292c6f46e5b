"""A service whose tenants are limited, and the books of what they have used."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from service.core.account import Account, Closing, Opening
from service.core.identity import Identity
from service.tenancy.limits.file import parse_limits
from service.tenancy.limits.limiter import Limiter
from service.tenancy.limits.redis_line import RedisLine
from service.tenancy.limits.rules import Rules
from service.tenancy.limits.store import LimitStore
from tests.support.service import (
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
)

__all__ = ["Books", "limited", "rules_of", "say"]

PLACE = "headrace:limits:{tenant=}"


def say(tokens: int = 1, **fields: Any) -> GenerateRequest:
    """Return a request with a prompt of its own and so many tokens of output."""
    prompt = script(tokens=["a"], output_tokens=tokens, **fields.pop("plays", {}))
    return GenerateRequest(model="sim", prompt=prompt, **fields)


def rules_of(**values: object) -> Rules:
    return parse_limits("[default]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()), "limits.toml")


class ShiftedClock:
    """The time, and how far it is ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Books:
    """Accounts that pass everything on, and keep how each generation ended."""

    limiter: Limiter
    store: LimitStore
    clock: ShiftedClock
    refused: list[str]
    closings: list[Closing] = field(default_factory=list)
    open_accounts: int = 0

    async def open(self, opening: Opening) -> Account:
        account = await self.limiter.open(opening)
        self.open_accounts += 1
        return _Noted(self, account)

    def max_output_tokens(self, identity: Identity, model: str) -> int | None:
        return self.limiter.max_output_tokens(identity, model)

    async def closing(self) -> Closing:
        """Return how the one generation ended, once it has been settled."""
        await eventually(lambda: bool(self.closings) and not self.open_accounts)
        (closing,) = self.closings
        return closing

    def used(self, limit: str) -> int:
        return self.store._windows.used(f"{PLACE}:{limit}", int(self.clock() * 1000))

    @property
    def streams(self) -> int:
        return sum(len(members) for members in self.store._windows.held.values())


class _Noted:
    def __init__(self, books: Books, account: Account) -> None:
        self._books = books
        self._account = account
        self.headers = account.headers

    async def close(self, closing: Closing) -> None:
        self._books.closings.append(closing)
        try:
            await self._account.close(closing)
        finally:
            self._books.open_accounts -= 1


@asynccontextmanager
async def limited(
    rules: Rules, *models: Any, redis_url: str = "", **options: Any
) -> AsyncIterator[tuple[RunningService, Books]]:
    clock, refused = ShiftedClock(), []
    store = LimitStore(RedisLine(redis_url, timeout_s=5) if redis_url else None, clock=clock)
    limiter = Limiter(rules, store, on_refusal=lambda limit, _model: refused.append(limit))
    await limiter.start()
    books = Books(limiter, store, clock, refused)
    try:
        async with running_service(*models, accounts=books, **options) as service:
            yield service, books
    finally:
        await limiter.close()
