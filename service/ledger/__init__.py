"""The usage ledger: what every generation cost whom and how it ended, exactly once, in a file or a database."""

from service.ledger.accounts import LedgerAccounts
from service.ledger.address import FileAddress, SqlAddress, parse_address, shown_address
from service.ledger.ledger import Ledger
from service.ledger.store import Store, StoreError

__all__ = [
    "FileAddress",
    "Ledger",
    "LedgerAccounts",
    "SqlAddress",
    "Store",
    "StoreError",
    "open_store",
    "parse_address",
    "shown_address",
]


def open_store(address: FileAddress | SqlAddress) -> Store:
    """Return the store of an address; nothing is opened yet."""
    if isinstance(address, FileAddress):
        from service.ledger.jsonl import JsonlStore

        return JsonlStore(address.path)
    from service.ledger.sql import SqlStore

    return SqlStore(address.url)
