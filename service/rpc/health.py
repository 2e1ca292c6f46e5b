"""Health that tells the truth: what the engines really do, watched and published."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from grpc_health.v1 import health, health_pb2

from service.backends.base import Health
from service.catalog.model import Model
from service.catalog.registry import Registry

__all__ = ["GENERATION_SERVICE", "MODEL_SERVICE", "TOKENIZE_SERVICE", "HealthMonitor", "model_health_name"]

logger = logging.getLogger("headrace.health")

GENERATION_SERVICE: Final = "headrace.v1.GenerationService"
MODEL_SERVICE: Final = "headrace.v1.ModelService"
TOKENIZE_SERVICE: Final = "headrace.v1.TokenizeService"


def model_health_name(model_id: str) -> str:
    """Return the name under which one model's health is published."""
    return f"model/{model_id}"


class HealthMonitor:
    """Asks every engine for its health and publishes it as grpc.health.v1.

    "", GenerationService and TokenizeService serve while at least one model does;
    ModelService serves while the process takes calls; "model/<id>" is one model.
    """

    def __init__(self, registry: Registry, servicer: health.aio.HealthServicer, *, interval_s: float) -> None:
        self._registry = registry
        self._servicer = servicer
        self._interval_s = interval_s
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look at every model once, publish, and go on watching in the background."""
        await self._look()
        self._task = asyncio.create_task(self._watch(), name="health monitor")

    async def drain(self) -> None:
        """Publish NOT_SERVING for everything, for good."""
        await self._end_watch()
        await self._servicer.enter_graceful_shutdown()

    def look_at(self, model: Model) -> None:
        """Look again soon: `model` has just failed a request."""
        logger.debug("looking again", extra={"model": model.id})
        self._wake.set()

    async def _end_watch(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

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
        is_any_ready = any(model.health is Health.READY for model in self._registry)
        await self._publish("", is_serving=is_any_ready)
        await self._publish(GENERATION_SERVICE, is_serving=is_any_ready)
        await self._publish(TOKENIZE_SERVICE, is_serving=is_any_ready)
        await self._publish(MODEL_SERVICE, is_serving=True)

    async def _look_at_one(self, model: Model) -> None:
        before = model.health
        try:
            async with asyncio.timeout(self._interval_s * 2):
                model.health = await model.backend.health(self._interval_s)
        except TimeoutError:
            model.health = Health.UNAVAILABLE
        if model.health is not before:
            level = logging.INFO if model.health is Health.READY else logging.WARNING
            logger.log(level, "model %s is %s", model.id, model.health.value, extra={"model": model.id})
        await self._publish(model_health_name(model.id), is_serving=model.health is Health.READY)

    async def _publish(self, name: str, *, is_serving: bool) -> None:
        serving = health_pb2.HealthCheckResponse.SERVING
        await self._servicer.set(name, serving if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING)
