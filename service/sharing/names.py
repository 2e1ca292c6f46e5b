"""The keys in the shared store, and what stands under them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final, Self

from service.core.errors import Reason, ServiceError

__all__ = ["Claim", "End", "Names"]

_DIGEST_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class Names:
    """Every key begins with `prefix`, so that several installations may share a store."""

    prefix: str

    def claim(self, tenant: str, key: str) -> str:
        """String, a `Claim`: whose an idempotency key is."""
        both = f"{len(tenant)}:{tenant}:{key}".encode()
        return f"{self.prefix}:key:{hashlib.blake2b(both, digest_size=_DIGEST_BYTES).hexdigest()}"

    def generation(self, generation_id: str) -> str:
        """Hash: what is known of a retained generation besides its events."""
        return f"{self.prefix}:gen:{generation_id}"

    def log(self, generation_id: str) -> str:
        """Stream: its events. The id of an entry is the number of the last event in it and -0; of the end with -1."""
        return f"{self.prefix}:log:{generation_id}"

    def readers(self, generation_id: str) -> str:
        """String with a short life: somebody reads it at another replica."""
        return f"{self.prefix}:readers:{generation_id}"

    def owner(self, instance: str) -> str:
        """String with a short life: this replica lives."""
        return f"{self.prefix}:owner:{instance}"

    @property
    def questions(self) -> str:
        """Channel: what replicas ask one another."""
        return f"{self.prefix}:ask"

    def answers(self, instance: str) -> str:
        """Channel: what a replica is answered."""
        return f"{self.prefix}:answer:{instance}"


@dataclass(frozen=True, slots=True)
class Claim:
    """Who runs what was asked with a key."""

    generation_id: str
    owner: str
    digest: str

    def encode(self) -> bytes:
        """Return its form in the store."""
        return json.dumps([self.generation_id, self.owner, self.digest]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what stands in the store. Raises ValueError."""
        generation_id, owner, digest = json.loads(data)
        return cls(str(generation_id), str(owner), str(digest))


@dataclass(frozen=True, slots=True)
class End:
    """How a generation ended: `failure` None if it did not fail; `is_cancelled` by its id."""

    failure: ServiceError | None = None
    is_cancelled: bool = False

    def encode(self) -> bytes:
        """Return its form in the store. Violations and details are left out: a refused request was never retained."""
        document: dict[str, Any] = {"cancelled": self.is_cancelled}
        if (error := self.failure) is not None:
            document["failure"] = [error.reason.name, error.message, dict(error.metadata), error.retry_after_s]
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what stands in the store. Raises ValueError."""
        document = json.loads(data)
        failure = None
        if "failure" in document:
            name, message, metadata, retry_after_s = document["failure"]
            failure = ServiceError(Reason[name], message, metadata=metadata, retry_after_s=retry_after_s)
        return cls(failure, is_cancelled=bool(document["cancelled"]))
