"""Whether a Triton really generates.

ServerReady and ModelReady stay true when a model's process has died or hangs:
they only tell LOADING from UNAVAILABLE. A token is the proof.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from service.backends.base import EngineItem, EngineRequest, Health
from service.backends.triton.description import Description
from service.backends.triton.faults import fault_from_status, is_death
from service.backends.triton.stop import CANARY_PREFIX
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Sampling

__all__ = ["HealthProbe"]

_log = logging.getLogger(__name__)

# A description that does not arrive does not make a model that generates unwell.
_REFRESH_WAIT_S: Final = 1.0
_CANARY_PROMPT: Final = "Hello"


class HealthProbe:
    """Asks the server, and takes a young token for proof; without one it generates one.

    `token_at_s` is `time.monotonic` at the last token of any generation, set by
    whoever reads it.
    """

    def __init__(
        self,
        stub: Any,
        model: str,
        description: Description,
        generate: Callable[[EngineRequest], AsyncGenerator[EngineItem]],
        interval_s: float,
    ) -> None:
        self._stub = stub
        self._model = model
        self._description = description
        self._generate = generate
        self._interval_s = interval_s
        # Checks that come together share one canary.
        self._lock = asyncio.Lock()
        self.token_at_s: float | None = None
        # Why the last check failed, as it was logged: the same is not said every few seconds.
        self._told = ""
        # The last check met a server or a model's process that is gone for good.
        self.is_dead = False

    async def check(self, timeout_s: float) -> Health:
        """Return the health within `timeout_s`; never raises but for its own cancellation."""
        self.is_dead = False
        try:
            async with asyncio.timeout(timeout_s):
                health = await self._check(Deadline.after(timeout_s))
            self._told = ""
            return health
        except TimeoutError:
            return Health.UNAVAILABLE
        except ServiceError as error:
            self.is_dead = is_death(error, self._contract)
            self._tell(error.detail or error.message)
        except grpc.aio.AioRpcError as error:
            # A server that shuts down lets the streams of an ensemble hang; one that is gone ends them itself.
            self.is_dead = is_death(fault_from_status(error, has_output=False), self._contract)
            _log.debug("Triton does not answer: %s", error.details())
            self._description.forget()
        except Exception:
            _log.exception("the health check failed")
        return Health.UNAVAILABLE

    async def _check(self, deadline: Deadline) -> Health:
        # Asked even after a young token: a server that has gone since says so at once.
        live = await self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=deadline.remaining_s())
        ready = await self._stub.ModelReady(
            service_pb2.ModelReadyRequest(name=self._model), timeout=deadline.remaining_s()
        )
        if not ready.ready:
            self._description.forget()
            return Health.LOADING if live.live else Health.UNAVAILABLE
        # A reloaded model may have other tensors.
        await self._description.refresh_if_old(_REFRESH_WAIT_S)
        async with self._lock:
            if not self._has_recent_token():
                await self._canary(deadline)
        return Health.READY

    def _tell(self, why: str) -> None:
        # Request ids and times in it differ, its beginning does not.
        level = logging.DEBUG if why[:80] == self._told else logging.WARNING
        self._told = why[:80]
        _log.log(level, "Triton's canary failed: %s", why)

    @property
    def _contract(self) -> str:
        last = self._description.last
        return "" if last is None else last.contract.name

    def doubt(self) -> None:
        """Forget the last token: a request has failed since, and the next check generates one."""
        self.token_at_s = None

    def _has_recent_token(self) -> bool:
        if self.token_at_s is None:
            return False
        return time.monotonic() - self.token_at_s < self._interval_s

    async def _canary(self, deadline: Deadline) -> None:
        """Generate one token; raises `ServiceError` when none comes."""
        run = self._generate(
            EngineRequest(
                request_id=f"{CANARY_PREFIX}{uuid.uuid4()}",
                prompt=_CANARY_PROMPT,
                sampling=Sampling(max_output_tokens=1, seed=0),
                deadline=deadline,
            )
        )
        try:
            async for _ in run:
                pass
        except ServiceError as error:
            last = self._description.last
            is_silent = error.reason is Reason.BACKEND_UNAVAILABLE
            if is_silent and last is not None and not last.server.abilities.sees_dead_processes:
                _log.warning("its model is called ready: if the model's process has died, unload and load the model")
            raise
        finally:
            await run.aclose()
