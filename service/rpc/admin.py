"""AdminService: what the server is doing, out of service, back into it."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from headrace.v1 import admin_pb2, admin_pb2_grpc, generation_pb2
from service import __version__
from service.catalog.model import Model
from service.catalog.registry import Registry
from service.core.errors import Reason, Violation, invalid
from service.core.request import Priority
from service.rpc.call import current_call
from service.rpc.convert import model_to_proto
from service.rpc.drain import Drain
from service.rpc.health import HealthMonitor
from service.rpc.outcomes import Outcomes
from service.rpc.status import DOMAIN

__all__ = ["AdminServicer"]

logger = logging.getLogger("headrace.service")

_PRIORITIES: Final = (
    (Priority.INTERACTIVE, generation_pb2.PRIORITY_INTERACTIVE),
    (Priority.BATCH, generation_pb2.PRIORITY_BATCH),
)


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Serves GetServerStatus, Drain and ResumeServing. Errors leave as `ServiceError`, but for one of its own."""

    def __init__(self, registry: Registry, drain: Drain, monitor: HealthMonitor, outcomes: Outcomes) -> None:
        self._registry = registry
        self._drain = drain
        self._monitor = monitor
        self._outcomes = outcomes
        self._began_s = time.monotonic()

    async def GetServerStatus(
        self,
        request: admin_pb2.GetServerStatusRequest,  # noqa: ARG002
        context: Any,  # noqa: ARG002
    ) -> admin_pb2.GetServerStatusResponse:
        """Return state, load and outcomes as of now."""
        status = admin_pb2.GetServerStatusResponse(
            version=__version__,
            state=admin_pb2.ServingState.Name(self._monitor.serving.value),
            problems=self._monitor.problems(),
            models=[self._load_of(model) for model in self._registry],
            active_count=self._drain.running,
            outcome_counts=self._outcomes.counts,
        )
        status.uptime.FromMilliseconds(round((time.monotonic() - self._began_s) * 1000))
        return status

    async def Drain(self, request: admin_pb2.DrainRequest, context: Any) -> admin_pb2.DrainResponse:  # noqa: ARG002
        """Take the server out of service; returns at once, while work still runs."""
        grace_s = None
        if request.HasField("grace"):
            grace_s = request.grace.seconds + request.grace.nanos / 1e9
            if grace_s < 0:
                raise invalid([Violation("grace", f"must not be negative, got {grace_s:g} s")])
        self._drain.begin(grace_s)
        self._monitor.publish()
        logger.info("taken out of service by an operator", extra={"running": self._drain.running, "grace_s": grace_s})
        return admin_pb2.DrainResponse(active_count=self._drain.running)

    async def ResumeServing(
        self,
        request: admin_pb2.ResumeServingRequest,  # noqa: ARG002
        context: Any,
    ) -> admin_pb2.ResumeServingResponse:
        """Take new work again, which a server that was never drained does anyway."""
        if not self._drain.resume():
            await _abort_shutting_down(context)
        self._monitor.publish()
        logger.info("back in service")
        return admin_pb2.ResumeServingResponse()

    def _load_of(self, model: Model) -> admin_pb2.ModelLoad:
        slots = model.slots
        return admin_pb2.ModelLoad(
            model=model.id,
            state=model_to_proto(model, is_draining=self._drain.is_draining).state,
            running_count=slots.running,
            running_limit=slots.running_limit,
            classes=[
                admin_pb2.ClassLoad(
                    priority=value,
                    running_count=slots.running_of(priority),
                    waiting_count=slots.waiting_of(priority),
                    waiting_limit=slots.limits.waiting_of(priority),
                )
                for priority, value in _PRIORITIES
            ],
        )


async def _abort_shutting_down(context: Any) -> None:
    """End the call: the same reason as for refused work, but no other try will help, and so another status."""
    call = current_call()
    call.status, call.outcome = grpc.StatusCode.FAILED_PRECONDITION.name, "rejected"
    info, request = any_pb2.Any(), any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=Reason.DRAINING.name, domain=DOMAIN))
    request.Pack(error_details_pb2.RequestInfo(request_id=call.request_id))
    status = status_pb2.Status(
        code=code_pb2.FAILED_PRECONDITION,
        message="The process is shutting down and cannot serve again; start another one.",
        details=[info, request],
    )
    await context.abort_with_status(rpc_status.to_status(status))
