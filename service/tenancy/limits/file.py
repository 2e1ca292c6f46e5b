"""The limits file: TOML to rules, every problem at once; and the file as it changes while the service runs."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final, cast

from service.tenancy.limits.rules import Rules, Table, Values

__all__ = ["LimitsFile", "LimitsFileError", "parse_limits"]

logger = logging.getLogger("headrace.limits")

_WORD: Final = "unlimited"
_COUNTS: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "tokens_per_day",
    "concurrent_streams",
    "max_output_tokens",
    "default_output_tokens",
)
_SHARE: Final = "queue_share"
# Sums of them stay exact in the numbers of Redis' scripts.
_MOST: Final = 10**12


class LimitsFileError(Exception):
    """The file cannot be used; `problems` has one line of text each, with its place."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def parse_limits(text: str, name: str) -> Rules:
    """Return the rules in `text`, a TOML document; `name` is shown in problems.

    Raises `LimitsFileError` with every problem as `name: place: what`.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise LimitsFileError([f"{name}: not TOML: {error}"]) from None
    problems = [f"{name}: {problem}" for problem in _problems(document)]
    if problems:
        raise LimitsFileError(problems)
    tenants = document.get("tenant", {})
    return Rules(_table(document.get("default", {})), {tenant: _table(table) for tenant, table in tenants.items()})


class LimitsFile:
    """The rules of a file, read again when it changes. One that cannot be used changes nothing, and is a `problem`."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises `LimitsFileError`."""
        self._path = path
        self._seen = self._stamp()
        self.rules = self._read()
        self.problem: str | None = None

    def look(self) -> bool:
        """Read the file again if it has changed; return whether there are new rules. Problems are logged, once."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self.rules = self._read()
        except LimitsFileError as error:
            for problem in error.problems:
                logger.error("%s", problem)
            logger.error("%s: cannot be used; the limits stay as they were", self._path)
            self.problem = "the limits file cannot be used; the limits read before stay in force"
            return False
        self.problem = None
        logger.info("%s: new limits are in force", self._path)
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Rules:
        try:
            text = self._path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise LimitsFileError([f"{self._path}: cannot be read: {error}"]) from None
        return parse_limits(text, str(self._path))


def _problems(document: Mapping[str, object]) -> Iterator[str]:
    for name, value in document.items():
        if name == "default":
            yield from _table_problems(name, value)
        elif name != "tenant":
            yield f"{name}: unknown; there are default and tenant"
        elif not isinstance(value, dict):
            yield "tenant: must be tables, as in [tenant.NAME]"
        else:
            for tenant, table in value.items():
                yield from _table_problems(f"tenant.{_quoted(tenant)}", table)


def _table_problems(place: str, table: object, *, has_models: bool = True) -> Iterator[str]:
    if not isinstance(table, dict):
        yield f"{place}: must be a table, got {table!r}"
        return
    for name, value in table.items():
        here = f"{place}.{_quoted(name)}"
        if name == "model" and has_models:
            if not isinstance(value, dict):
                yield f'{here}: must be tables, as in [{place}.model."ID"]'
                continue
            for model, limits in value.items():
                yield from _table_problems(f'{here}."{model}"', limits, has_models=False)
        elif name == _SHARE:
            if value != _WORD and not (_is_number(value) and 0 < cast("float", value) <= 1):
                yield f'{here}: must be above 0 and at most 1, or "{_WORD}", got {value!r}'
        elif name in _COUNTS:
            if value != _WORD and not (isinstance(value, int) and _is_number(value) and 1 <= value <= _MOST):
                yield f'{here}: must be a whole number of at least 1, or "{_WORD}", got {value!r}'
        else:
            likely = get_close_matches(name, (*_COUNTS, _SHARE), n=1)
            yield f"{here}: unknown" + (f"; is {likely[0]} meant?" if likely else "")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _quoted(name: str) -> str:
    """Return a key as TOML writes it."""
    return name if name and all(c.isalnum() or c in "-_" for c in name) else f'"{name}"'


def _table(table: Mapping[str, object]) -> Table:
    models = cast("Mapping[str, Mapping[str, object]]", table.get("model", {}))
    return Table(_values(table), {model: _values(limits) for model, limits in models.items()})


def _values(table: Mapping[str, object]) -> Values:
    values = {name: None if value == _WORD else value for name, value in table.items() if name != "model"}
    return cast("Values", values)
