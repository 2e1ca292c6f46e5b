"""The public keys of the issuer of tokens: read from its key set, kept, and renewed without a call waiting for it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from jwt import PyJWK, PyJWTError

from service.core.errors import Reason, ServiceError
from service.tenancy.fetching import FetchError

__all__ = ["IssuerKeys", "VerifyingKey", "parse_key_set"]

logger = logging.getLogger("headrace.service")

T = TypeVar("T")

# Between two looks that callers caused: whoever makes up key ids must not make this process knock at the issuer's door.
LEAST_GAP_S: Final = 10.0
FETCH_LIMIT_S: Final = 5.0
# While no key is known at all.
RETRY_S: Final = 5.0
_FEWEST_RSA_BITS: Final = 2048
_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_PRIVATE: Final = "d"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyingKey:
    """One public key. `algorithm` is the only one that it may be used with, if the set says so."""

    id: str | None
    kind: str
    algorithm: str | None
    key: Any

    def fits(self, algorithm: str) -> bool:
        """Return whether it can check a signature made with `algorithm`."""
        return _KINDS.get(algorithm[:2]) == self.kind and self.algorithm in (None, algorithm)


def parse_key_set(document: Mapping[str, Any]) -> list[VerifyingKey]:
    """Return the keys of a JSON Web Key Set (RFC 7517) that can check signatures. Raises `FetchError` if none can.

    Left out: symmetric and private keys, those for encryption, RSA keys below 2048 bits, and what nobody here knows.
    """
    members = document.get("keys")
    found = [key for member in members if (key := _key(member))] if isinstance(members, list) else []
    if not found:
        raise FetchError("the key set has no key that can check signatures")
    return found


def _key(member: object) -> VerifyingKey | None:
    if not isinstance(member, dict) or member.get("use", "sig") != "sig" or _PRIVATE in member:
        return None
    kind, algorithm, key_id = member.get("kty"), member.get("alg"), member.get("kid")
    if not isinstance(kind, str) or kind not in _KINDS.values():
        return None
    if not isinstance(algorithm, str | None) or not isinstance(key_id, str | None):
        return None
    try:
        key = PyJWK(member).key
    except (PyJWTError, TypeError, ValueError):
        return None
    if kind == "RSA" and key.key_size < _FEWEST_RSA_BITS:
        return None
    return VerifyingKey(id=key_id, kind=kind, algorithm=algorithm, key=key)


class IssuerKeys:
    """The last key set that could be read.

    `read` blocks and raises `FetchError`; it runs in a thread. It is called at the
    start, every `refresh_s`, and for a token whose key is not known, then at most
    every `least_gap_s` for all callers together. An issuer that does not answer
    changes nothing.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[VerifyingKey]],
        *,
        refresh_s: float,
        least_gap_s: float = LEAST_GAP_S,
        wait_s: float = FETCH_LIMIT_S + 1,
    ) -> None:
        self._read = read
        self._refresh_s = refresh_s
        self._least_gap_s = least_gap_s
        self._wait_s = wait_s
        self._keys: Sequence[VerifyingKey] | None = None
        self._looked_s: float | None = None
        self._look: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the keys for the first time, and begin to renew them. An issuer that does not answer is logged."""
        await self._look_again()
        self._renewing = asyncio.create_task(self._renew())

    async def close(self) -> None:
        """Renew them no longer."""
        tasks = [task for task in (self._renewing, self._look) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def find(self, key_id: str | None, algorithm: str) -> VerifyingKey | None:
        """Return the key that a token names, or the only one that fits if it names none; None if there is none.

        Waits for the issuer only if the key is not known. Raises STORE_UNAVAILABLE
        while no key set could be read yet.
        """
        found = self._known(key_id, algorithm)
        if found is None and self._is_due():
            await self._look_again()
            found = self._known(key_id, algorithm)
        if self._keys is None:
            raise ServiceError(
                Reason.STORE_UNAVAILABLE,
                "Tokens cannot be checked now, because their issuer does not answer; retry later.",
                retry_after_s=RETRY_S,
            )
        return found

    def _known(self, key_id: str | None, algorithm: str) -> VerifyingKey | None:
        fitting = [key for key in self._keys or () if key.fits(algorithm) and key_id in (None, key.id)]
        return fitting[0] if len(fitting) == 1 else None

    def _is_due(self) -> bool:
        if self._look is not None:
            return True  # and shared
        return self._looked_s is None or time.monotonic() - self._looked_s >= self._least_gap_s

    async def _look_again(self) -> None:
        """Read the keys once for all who wait. A caller that leaves ends nothing for the others."""
        if self._look is None:
            self._look = asyncio.create_task(self._take())
        await asyncio.shield(self._look)

    async def _take(self) -> None:
        try:
            keys = await asyncio.wait_for(_in_thread(self._read), self._wait_s)
        except (FetchError, TimeoutError) as error:
            kept = "no token can be checked" if self._keys is None else "the keys read before stay in effect"
            told = str(error) or f"no answer within {self._wait_s:g} s"
            logger.error("the keys of the tokens' issuer cannot be read, and %s: %s", kept, told)
        except Exception:
            logger.exception("the keys of the tokens' issuer could not be read")
        else:
            if self._keys is None or {key.id for key in keys} != {key.id for key in self._keys}:
                logger.info("keys of the tokens' issuer", extra={"key_ids": [key.id for key in keys]})
            self._keys = keys
        finally:
            self._looked_s = time.monotonic()
            self._look = None

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s if self._keys is not None else min(RETRY_S, self._refresh_s))
            await self._look_again()


async def _in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, from a thread that does not hold up the end of the process.

    One that is cancelled leaves the thread behind, which ends by itself.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name="issuer-keys", daemon=True).start()
    return await done
