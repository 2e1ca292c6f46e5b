"""What the service itself says about its load, over its port for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from headrace.v1 import admin_pb2, admin_pb2_grpc
from headrace.v1 import generation_pb2 as pb

__all__ = ["Gauges", "Load"]

# Behind engines that run flat out on the same two cores an answer takes its time.
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Slots in use, requests in the two waiting lines, generations that are not over, and ended ones by outcome."""

    running: int = 0
    waiting: int = 0
    waiting_batch: int = 0
    active: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_none(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self.running or self.waiting or self.waiting_batch or self.active)


class Gauges:
    """A channel to the AdminService; an async context manager."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._stub: Any = admin_pb2_grpc.AdminServiceStub(self._channel)

    async def __aenter__(self) -> Gauges:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def load(self) -> Load:
        """Return the load of all models together. SystemExit if the service does not say."""
        try:
            answer = await self._stub.GetServerStatus(admin_pb2.GetServerStatusRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise SystemExit(f"bench: the service does not tell its load: {error.code().name}") from None
        waiting = {pb.PRIORITY_INTERACTIVE: 0, pb.PRIORITY_BATCH: 0}
        for model in answer.models:
            for one in model.classes:
                waiting[one.priority] += one.waiting_count
        return Load(
            running=sum(model.running_count for model in answer.models),
            waiting=waiting[pb.PRIORITY_INTERACTIVE],
            waiting_batch=waiting[pb.PRIORITY_BATCH],
            active=answer.active_count,
            outcomes=dict(answer.outcome_counts),
        )
