"""Give back what a batch of grpcio's holds, also when it fails or nobody awaits it any more.

grpcio's asyncio side frees a batch's C memory only behind an `await` that ended well
(grpc/grpc#43360; seen in 1.85.3). A batch that fails because its caller has left, and one
whose task is cancelled meanwhile, keep it for good: 100 to 250 bytes a call that is left.

`give_back_batches` puts a function of ours around the one through which all batches go.
What a batch awaits there never fails and is never cancelled, so that it always comes to
its end; its caller awaits a future beside it, which fails and is cancelled as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

__all__ = ["give_back_batches"]

logger = logging.getLogger(__name__)

# The versions whose inside this was written for. tests/contract/test_batches.py says when it can go.
_KNOWN: Final = ("1.85.",)
_ONE_STEP: Final = (None,)


class _Completion:
    """Stands in for event loop and future of a batch: told once by gRPC's core, it ends the batch."""

    __slots__ = ("batch", "loop", "waiter")

    batch: Coroutine[Any, Any, None]
    loop: asyncio.AbstractEventLoop
    waiter: asyncio.Future[None]

    def create_future(self) -> _Completion:
        return self

    def __await__(self) -> Iterator[None]:
        return iter(_ONE_STEP)

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: object) -> None:
        if self.loop is asyncio.get_running_loop():
            callback(*arguments)
        else:
            self.loop.call_soon_threadsafe(callback, *arguments)

    def cancelled(self) -> bool:
        return False  # one that is cancelled would not be told

    def set_result(self, result: None) -> None:
        self._end()
        if not self.waiter.done():
            self.waiter.set_result(result)

    def set_exception(self, error: Exception) -> None:
        self._end()
        if not self.waiter.done():
            self.waiter.set_exception(error)

    def _end(self) -> None:
        batch = self.batch
        del self.batch  # else the two would hold each other
        with suppress(StopIteration):
            batch.send(None)


def give_back_batches() -> None:
    """Change grpcio in this process, once; a version that nobody has looked at stays as it is, with a warning."""
    if not grpc.__version__.startswith(_KNOWN):
        logger.warning("this grpcio keeps memory of calls left early", extra={"version": grpc.__version__})
        return
    start = cygrpc.execute_batch
    if start.__module__ == __name__:
        return

    # Not a coroutine: what is awaited for each message is the future itself.
    def execute_batch(
        call: object, operations: tuple[object, ...], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[None]:
        completion = _Completion()
        completion.loop = loop
        completion.waiter = waiter = loop.create_future()
        completion.batch = batch = start(call, operations, completion)
        batch.send(None)
        return waiter

    cygrpc.execute_batch = execute_batch
