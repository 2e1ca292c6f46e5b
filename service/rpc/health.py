"""Health that tells the truth: what the engines really do, and whether work is wanted here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

from service.backends.base import Health
from service.catalog.model import Model
from service.catalog.registry import Registry
from service.rpc.drain import Drain

__all__ = [
    "GENERATION_SERVICE",
    "HEALTHY",
    "LIVE",
    "MODEL_SERVICE",
    "TOKENIZE_SERVICE",
    "HealthMonitor",
    "Serving",
    "model_health_name",
]

logger = logging.getLogger("headrace.health")

GENERATION_SERVICE: Final = "headrace.v1.GenerationService"
MODEL_SERVICE: Final = "headrace.v1.ModelService"
TOKENIZE_SERVICE: Final = "headrace.v1.TokenizeService"
LIVE: Final = "live"
HEALTHY: Final = "healthy"

# "" is the server as a whole.
_NEEDS_A_MODEL: Final = frozenset({"", GENERATION_SERVICE, TOKENIZE_SERVICE})
# A line that was full is told for so long: no two probes are further apart.
_FULL_S: Final = 10.0


class Serving(Enum):
    """Whether the server takes requests. The values are those of `headrace.v1.ServingState`."""

    READY = 1
    DEGRADED = 2
    NOT_READY = 3
    DRAINING = 4


def model_health_name(model_id: str) -> str:
    """Return the name under which one model's health is published."""
    return f"model/{model_id}"


class HealthMonitor:
    """Asks every engine for its health, and knows what that makes of the server.

    "live" serves while the process answers at all. "", GenerationService and
    TokenizeService serve while at least one model does, ModelService always,
    "model/<id>" while that model does, "healthy" while nothing is wrong. All but
    "live" end as soon as nobody should come here any more.
    """

    def __init__(self, registry: Registry, drain: Drain, *, interval_s: float) -> None:
        self._registry = registry
        self._drain = drain
        self._interval_s = interval_s
        self._models = {model_health_name(model.id): model for model in registry}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchers: set[asyncio.Event] = set()
        # What others know to be wrong, in words for people; None while nothing is.
        self.hints: list[Callable[[], str | None]] = []

    async def start(self) -> None:
        """Look at every model once, and go on in the background."""
        await self._look()
        self._task = asyncio.create_task(self._watch(), name="health monitor")

    async def stop(self) -> None:
        """Look no more; what was seen last stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def look_at(self, model: Model) -> None:
        """Look again soon: `model` has just failed a request."""
        logger.debug("looking again", extra={"model": model.id})
        self._wake.set()

    # What is so now.

    @property
    def serving(self) -> Serving:
        """Whether the server takes requests."""
        if self._drain.is_leaving:
            return Serving.DRAINING
        if not self._is_any_ready:
            return Serving.NOT_READY
        return Serving.DEGRADED if self.problems() else Serving.READY

    def problems(self) -> list[str]:
        """Return what keeps the server from being as it should, in words for people."""
        found = []
        if self._drain.is_shutting_down:
            found.append("the process is shutting down")
        elif self._drain.is_draining:
            found.append("the server was taken out of service")
        for model in self._registry:
            if model.health is not Health.READY:
                found.append(f"model {model.id} is {model.health.value}")
            if model.slots.was_full_within(_FULL_S):
                found.append(f"a waiting line of model {model.id} was full within the last {_FULL_S:.0f} s")
        found += [told for hint in self.hints if (told := hint()) is not None]
        return found

    def is_serving(self, name: str) -> bool | None:
        """Return what grpc.health.v1 says under `name`; None for a name that nobody knows."""
        if name == LIVE:
            return True
        if name == HEALTHY:
            return self.serving is Serving.READY
        if name == MODEL_SERVICE:
            is_well = True
        elif name in _NEEDS_A_MODEL:
            is_well = self._is_any_ready
        elif name in self._models:
            is_well = self._models[name].health is Health.READY
        else:
            return None
        return is_well and not self._drain.is_leaving

    @property
    def _is_any_ready(self) -> bool:
        return any(model.health is Health.READY for model in self._registry)

    # When it may have changed.

    @contextlib.contextmanager
    def changes(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever there may be something new, for the block's length."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            yield changed
        finally:
            self._watchers.discard(changed)

    def publish(self) -> None:
        """Have everyone who watches look again."""
        for changed in self._watchers:
            changed.set()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._look()
            except Exception:
                logger.exception("the health of the models could not be read")

    async def _look(self) -> None:
        await asyncio.gather(*(self._look_at_one(model) for model in self._registry))
        self.publish()

    async def _look_at_one(self, model: Model) -> None:
        before = model.health
        try:
            async with asyncio.timeout(self._interval_s * 2):
                model.health = await model.backend.health(self._interval_s)
        except TimeoutError:
            model.health = Health.UNAVAILABLE
        if model.health is Health.READY and model.follow_engine():
            logger.info(
                "model %s has %d slots now, as many as its engine runs at once",
                model.id,
                model.slots.running_limit,
                extra={"model": model.id},
            )
        if model.health is not before:
            level = logging.INFO if model.health is Health.READY else logging.WARNING
            logger.log(level, "model %s is %s", model.id, model.health.value, extra={"model": model.id})
            self.publish()
