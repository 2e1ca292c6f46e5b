"""API keys and certificate subjects: what the keys file says, and whose a key is. Pure.

A key is `hr_<id>_<secret>`: eight hexadecimal digits that may be shown, and 256 random
bits in 43 characters that may not. The file has the SHA-256 of the secret. A slow
hash with salt is for what people make up: nobody tries 2**256 secrets, and every
call pays for the hash.

`headrace keys` writes the file and has a small implementation of its own, since the
client package imports nothing of the service; the tests hold the two together.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from service.core.identity import Identity
from service.tenancy.refusal import Refused

__all__ = ["TENANT_PATTERN", "Key", "KeySet", "KeysFileError", "Subject", "is_key", "parse_keys"]

# What stands for a tenant in logs, in the ledger and in the names of shared counters: no spaces, quotes or brackets.
TENANT_PATTERN: Final = r"^[A-Za-z0-9._:@/|+=~-]{1,128}$"
_KEY: Final = re.compile(r"hr_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_PREFIX: Final = "hr_"
# Compared with where no key has the id that was sent, so that this takes as long as a wrong secret. No secret has it.
_NO_DIGEST: Final = bytes(32)
_MARKER_OF_URIS: Final = "://"

Models = list[Annotated[str, Field(min_length=1, max_length=256)]]


class KeysFileError(Exception):
    """The file cannot be used; `problems` has one line of text each, with its place and without values."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. `expires_at_s` is Unix time; `models` are ids, None for all."""

    id: str
    tenant: str
    digest: bytes = field(repr=False)
    models: frozenset[str] | None = None
    expires_at_s: float | None = None
    is_revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One name of client certificates: a URI among the alternative names, as SPIFFE has it, else a common name."""

    name: str
    tenant: str
    models: frozenset[str] | None = None


class KeySet:
    """The keys and subjects of one version of the file. Immutable."""

    def __init__(self, keys: Iterable[Key] = (), subjects: Iterable[Subject] = ()) -> None:
        self._keys = {key.id: key for key in keys}
        self._subjects = {subject.name: subject for subject in subjects}

    def __len__(self) -> int:
        return len(self._keys) + len(self._subjects)

    def identify(self, text: str, now_s: float) -> Identity:
        """Return whose key it is at the Unix time `now_s`. Raises `Refused`."""
        found = _KEY.fullmatch(text)
        if found is None:
            raise Refused("malformed API key")
        key = self._keys.get(found[1])
        is_same = hmac.compare_digest(_digest(found[2]), _NO_DIGEST if key is None else key.digest)
        if key is None:
            raise Refused(f"no API key has the id {found[1]}")
        if not is_same:
            raise Refused(f"wrong secret for the API key {key.id}")
        if key.is_revoked:
            raise Refused(f"the API key {key.id} is revoked")
        if key.expires_at_s is not None and key.expires_at_s <= now_s:
            raise Refused(f"the API key {key.id} has expired")
        return Identity(tenant=key.tenant, subject=f"key:{key.id}", models=key.models)

    def identify_peer(self, common_names: Sequence[str], uris: Sequence[str]) -> Identity | None:
        """Return whom a verified certificate with these names stands for; None if none is listed.

        A URI that stands in the common name counts for nothing: authorities watch over the one and not the other.
        Raises `Refused` if its names belong to several tenants.
        """
        names = [
            *(name for name in uris if _MARKER_OF_URIS in name),
            *(name for name in common_names if _MARKER_OF_URIS not in name),
        ]
        listed = [self._subjects[name] for name in names if name in self._subjects]
        if len({subject.tenant for subject in listed}) > 1:
            raise Refused("the names of the client's certificate belong to several tenants")
        if not listed:
            return None
        subject = listed[0]
        return Identity(tenant=subject.tenant, subject=f"certificate:{subject.name}", models=subject.models)


def is_key(text: str) -> bool:
    """Return whether credentials look like a key of ours."""
    return text.startswith(_PREFIX)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()


class _Table(BaseModel):
    # Problems never show values: somebody will put a whole key where its id belongs.
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    tenant: Annotated[str, Field(pattern=TENANT_PATTERN)]
    models: Models | None = None
    note: str = ""


class _KeyTable(_Table):
    id: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created: AwareDatetime | None = None
    expires: AwareDatetime | None = None
    # The time at which it was, which `headrace keys` writes, or true.
    revoked: bool | AwareDatetime = False

    def key(self) -> Key:
        return Key(
            id=self.id,
            tenant=self.tenant,
            digest=bytes.fromhex(self.sha256),
            models=None if self.models is None else frozenset(self.models),
            expires_at_s=None if self.expires is None else self.expires.timestamp(),
            is_revoked=self.revoked is not False,
        )


class _SubjectTable(_Table):
    name: Annotated[str, Field(min_length=1, max_length=512)]

    def subject(self) -> Subject:
        models = None if self.models is None else frozenset(self.models)
        return Subject(name=self.name, tenant=self.tenant, models=models)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    keys: list[dict[str, Any]] = []
    subjects: list[dict[str, Any]] = []


def parse_keys(text: str, name: str) -> KeySet:
    """Return what `text`, a TOML document, says; `name` is shown in problems.

    Raises `KeysFileError` with every problem as `name:line: where: what`.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise KeysFileError([f"{name}: not TOML: {error}"]) from None
    try:
        tables = _File.model_validate(document)
    except ValidationError as error:
        raise KeysFileError([f"{name}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]) from None
    reader = _Reader(text, name)
    keys = reader.read("keys", _KeyTable, tables.keys)
    subjects = reader.read("subjects", _SubjectTable, tables.subjects)
    reader.no_twins("keys", "id", tables.keys)
    reader.no_twins("subjects", "name", tables.subjects)
    if reader.problems:
        raise KeysFileError([line for _, line in sorted(reader.problems)])
    return KeySet((table.key() for table in keys), (table.subject() for table in subjects))


_T = TypeVar("_T", bound=BaseModel)


class _Reader:
    """Reads the tables of one text, and gathers what is wrong with them by line."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name
        self.problems: list[tuple[int, str]] = []

    def read(self, kind: str, model: type[_T], tables: Sequence[Mapping[str, Any]]) -> list[_T]:
        found = []
        for number, table in enumerate(tables):
            try:
                found.append(model.model_validate(table))
            except ValidationError as error:
                for problem in error.errors():
                    where = ".".join(str(part) for part in problem["loc"] if isinstance(part, str | int))
                    self._note(kind, number, f"{where}: {problem['msg']}")
        return found

    def no_twins(self, kind: str, member: str, tables: Sequence[Mapping[str, Any]]) -> None:
        seen: dict[object, int] = {}
        for number, table in enumerate(tables):
            value = table.get(member)
            if isinstance(value, str) and seen.setdefault(value, number) != number:
                self._note(kind, number, f"{member}: the same as in {kind}[{seen[value]}]")

    def _note(self, kind: str, number: int, what: str) -> None:
        line = self._line_of(kind, number)
        self.problems.append((line, f"{self._name}:{line}: {kind}[{number}].{what}"))

    def _line_of(self, kind: str, number: int) -> int:
        """Return the line on which a table begins; 1 if it is written in another way."""
        heads = re.compile(rf"\s*\[\[\s*{kind}\s*\]\]")
        lines = [at for at, line in enumerate(self._text.splitlines(), start=1) if heads.match(line)]
        return lines[number] if number < len(lines) else 1
