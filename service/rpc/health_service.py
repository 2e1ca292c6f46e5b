"""grpc.health.v1, answered from what is so at the moment of the question.

Not grpcio-health-checking's own servicer: there the first of several watchers of
a name that leaves takes the others' news with it, and one that does not read
holds the lock under which news are set, and with it the whole server's health.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.rpc.health import HealthMonitor

__all__ = ["HealthServicer"]

_Response = health_pb2.HealthCheckResponse
_STATUSES: Final = {True: _Response.SERVING, False: _Response.NOT_SERVING, None: _Response.SERVICE_UNKNOWN}


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Serves Check and Watch. A watcher is told changes, each once it has taken the one before."""

    def __init__(self, monitor: HealthMonitor) -> None:
        self._monitor = monitor

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """Return the status of one name; NOT_FOUND for a name that nobody knows."""
        is_serving = self._monitor.is_serving(request.service)
        if is_serving is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such name")
        return _Response(status=_STATUSES[is_serving])

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """Write the status of one name, and again whenever it has changed; until it is cancelled."""
        told: Any = None
        with self._monitor.changes() as changed:
            while True:
                changed.clear()
                status = _STATUSES[self._monitor.is_serving(request.service)]
                if status != told:
                    await context.write(_Response(status=status))
                    told = status
                await changed.wait()
