"""Accounts that are written down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from service.core.account import Account, Accounts, Closing, Opening, closing_unrun
from service.core.errors import ServiceError
from service.core.identity import Identity
from service.ledger.ledger import Ledger

__all__ = ["LedgerAccounts"]


class LedgerAccounts:
    """Opens the accounts of `inner` and keeps a record of each; what `inner` refuses is an end without a beginning."""

    def __init__(self, ledger: Ledger, inner: Accounts) -> None:
        self._ledger = ledger
        self._inner = inner

    async def open(self, opening: Opening) -> Account:
        """Return the account of `inner`, recorded. Raises what `inner` raises."""
        try:
            account = await self._inner.open(opening)
        except BaseException as error:
            await self._ledger.end(opening, _unopened(opening, error))
            raise
        recorded = _RecordedAccount(self._ledger, opening, account)
        try:
            await self._ledger.begin(opening)
        except asyncio.CancelledError as error:
            # It has been opened, and nobody else will close it.
            await recorded.close(_unopened(opening, error))
            raise
        return recorded

    def max_output_tokens(self, identity: Identity, model: str) -> int | None:
        """Return what `inner` says."""
        return self._inner.max_output_tokens(identity, model)


class _RecordedAccount:
    def __init__(self, ledger: Ledger, opening: Opening, inner: Account) -> None:
        self._ledger = ledger
        self._opening = opening
        self._inner = inner

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return self._inner.headers

    async def close(self, closing: Closing) -> None:
        # Queued before the first wait, so that a caller who leaves meanwhile takes nothing back.
        on_record = self._ledger.end(self._opening, closing)
        try:
            await self._inner.close(closing)
        finally:
            await on_record


def _unopened(opening: Opening, error: BaseException) -> Closing:
    """Return the end of a generation that never ran."""
    outcome, reason = "client_cancelled", None
    if isinstance(error, ServiceError):
        outcome, reason = "rejected", error.reason.name
    elif isinstance(error, Exception):
        outcome, reason = "internal_error", "INTERNAL"
    return closing_unrun(opening.received_at_s, outcome, reason)
