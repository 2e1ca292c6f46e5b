"""The grpc.aio servers, for callers and for operators: options, TLS, services, reflection, start and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    tokenize_pb2,
    tokenize_pb2_grpc,
)
from runtime.slo import Objectives
from runtime.telemetry_settings import InboundTrace
from service.catalog.registry import Registry
from service.core.account import Accounts, NoAccounts
from service.generation.limits import Limits
from service.retention.policy import RetentionLimits
from service.rpc.admin import AdminServicer
from service.rpc.batches import give_back_batches
from service.rpc.door import Door
from service.rpc.drain import Drain
from service.rpc.generation import DeadlinePolicy, GenerationServicer
from service.rpc.health import HealthMonitor
from service.rpc.health_service import HealthServicer
from service.rpc.models import ModelServicer
from service.rpc.observe import ObservingInterceptor
from service.rpc.outcomes import Outcomes
from service.rpc.progress import Progress
from service.rpc.recordings import Recordings
from service.rpc.serving import Serving
from service.rpc.tokenize import TokenizeServicer
from service.tenancy.authenticator import Authenticator

if TYPE_CHECKING:  # needs the package of the store, which is optional
    from service.sharing.sharing import Sharing

__all__ = ["RpcServer", "ServerOptions", "TlsFiles"]

logger = logging.getLogger("headrace.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. With `client_ca` every client must show a certificate that it signed (mTLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where and how to listen. `max_message_bytes` bounds a request and a response alike.

    Without `admin_port` there is no AdminService; TLS is the same for both ports.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    tls: TlsFiles | None = None
    max_message_bytes: int = 32 * 1024 * 1024
    health_interval_s: float = 5.0
    trust_inbound_trace: InboundTrace = "parent"


_KEEPALIVE: Final = (
    # The C-core default answers pings more often than one in five minutes with
    # GOAWAY too_many_pings, which kills every stream in a long prefill.
    # Half of the 10 s that the documentation allows: timers come a little early,
    # and three such pings end the connection. Under its other, widely quoted name
    # (min_recv_ping_interval_...) this grpcio ignores the argument.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Finds clients that vanished without a word, so that their work stops.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Where the kernel still acknowledges for a frozen process, this one decides.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Lets balancers spread long-lived clients anew.
    ("grpc.max_connection_age_ms", 30 * 60_000),
    # Two servers on one port would share it silently and split the calls.
    ("grpc.so_reuseport", 0),
    # Calls that have arrived and wait to be looked at. Above gRPC's own 1,000 a burst loses some as bare CANCELLED;
    # what is too much is for admission to say.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 40_000),
)


# After the end of the drain, for what it does not wait for: watchers of health, and the like.
_LAST_CALLS_S: Final = 1.0
_LAST_CALLS_AT_ONCE_S: Final = 0.1
# Beyond the grace, until `stop` itself cuts what is left.
_LONGEST_END_S: Final = 10.0


class RpcServer:
    """A set of models on one port, and what operators need of it on another."""

    def __init__(
        self,
        registry: Registry,
        options: ServerOptions,
        limits: Limits,
        deadlines: DeadlinePolicy,
        accounts: Accounts | None = None,
        retention: RetentionLimits | None = None,
        authenticator: Authenticator | None = None,
        sharing: Sharing | None = None,
        objectives: Objectives | None = None,
    ) -> None:
        self._options = options
        self.drain = Drain()
        self.monitor = HealthMonitor(registry, self.drain, interval_s=options.health_interval_s)
        self.outcomes = Outcomes()
        self.admin_port: int | None = None
        # After its age a connection lives until its longest call may have ended;
        # that also bounds a client that stays and never reads.
        connection_grace_s = deadlines.maximum_s
        self._door = Door()
        interceptor = ObservingInterceptor(self.outcomes, self._door, authenticator, options.trust_inbound_trace)
        self._server = _new_server(options, connection_grace_s, interceptor)
        serving = Serving(
            drain=self.drain,
            monitor=self.monitor,
            limits=limits,
            accounts=accounts or NoAccounts(),
            objectives=objectives or Objectives(),
        )
        self._progress = Progress(serving.generations)
        self.recordings = Recordings(serving, retention or RetentionLimits(), sharing)
        self._sharing = sharing
        if sharing is not None:
            self.monitor.hints.append(sharing.problem)
        self._generation = GenerationServicer(registry, serving, deadlines, self.recordings)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self._generation, self._server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(registry, self.drain), self._server)
        tokenize_pb2_grpc.add_TokenizeServiceServicer_to_server(
            TokenizeServicer(registry, self.drain, deadlines), self._server
        )
        self._add_health_and_reflection(self._server, (generation_pb2, model_pb2, tokenize_pb2))
        self._admin: Any = None
        if options.admin_port is not None:
            self._admin = _new_server(options, connection_grace_s, ObservingInterceptor())
            admin_pb2_grpc.add_AdminServiceServicer_to_server(
                AdminServicer(registry, self.drain, self.monitor, self.outcomes), self._admin
            )
            self._add_health_and_reflection(self._admin, (admin_pb2,))

    def _add_health_and_reflection(self, server: Any, files: Sequence[Any]) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(self.monitor), server)
        names = [
            service.full_name for file in (*files, health_pb2) for service in file.DESCRIPTOR.services_by_name.values()
        ]
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)

    async def start(self) -> int:
        """Listen and return the port; `admin_port` is the other one. Raises OSError if that is not possible."""
        options = self._options
        port = _bind(self._server, options.host, options.port, options.tls)
        if self._admin is not None and options.admin_port is not None:
            self.admin_port = _bind(self._admin, options.admin_host, options.admin_port, options.tls)
        await self.monitor.start()
        self._progress.start()
        if self._sharing is not None:
            await self._sharing.start(self._generation.answer)
        await self._server.start()
        if self._admin is not None:
            await self._admin.start()
        return port

    async def stop(self, grace_s: float, *, delay_s: float = 0.0) -> None:
        """Leave in order, and close.

        Health says NOT_SERVING at once. For `delay_s` everything is served as before;
        then every connection is told to go elsewhere (GOAWAY) and none is taken any
        more. Without a delay there is taken to be no elsewhere: connections stay, and
        new work gets DRAINING. Generations may finish within `grace_s`, and end with
        DRAINING after it. `hurry` cuts all of it short.
        """
        drain = self.drain
        drain.leave()
        self.monitor.publish()
        leaving: asyncio.Task[None] | None = None
        if delay_s > 0 and not drain.is_hurried:
            logger.info("not ready any more, still serving", extra={"delay_s": delay_s})
            await drain.lame_duck(delay_s)
            leaving = await self._door.close(self._server, grace_s + _LONGEST_END_S)
        logger.info("draining", extra={"running": drain.running, "grace_s": grace_s})
        try:
            await drain.finish(grace_s)
            if leaving is None and grace_s > 0 and not drain.is_hurried:
                leaving = await self._door.close(self._server, _LAST_CALLS_S)
            await self._server.stop(_LAST_CALLS_AT_ONCE_S if drain.is_hurried else _LAST_CALLS_S)
        finally:
            if leaving is not None:
                await asyncio.wait([leaving], timeout=_LAST_CALLS_S)
                leaving.cancel()
        if self._admin is not None:
            await self._admin.stop(_LAST_CALLS_AT_ONCE_S)
        if self._sharing is not None:
            await self.recordings.settle(_LAST_CALLS_S)
            await self._sharing.close()
        await self._progress.stop()
        await self.monitor.stop()

    def hurry(self) -> None:
        """End at once what runs, and what `stop` waits for."""
        self.drain.hurry()


def _new_server(options: ServerOptions, connection_grace_s: float, interceptor: ObservingInterceptor) -> Any:
    give_back_batches()
    size = options.max_message_bytes
    return grpc.aio.server(
        interceptors=[interceptor],
        options=[
            *_KEEPALIVE,
            ("grpc.max_connection_age_grace_ms", round(connection_grace_s * 1000)),
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", size),
        ],
    )


def _bind(server: Any, host: str, port: int, tls: TlsFiles | None) -> int:
    address = f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, _credentials(tls))
    except RuntimeError as error:
        hint = "" if tls is None else " (or the TLS files are no valid pair of PEM files)"
        raise OSError(f"cannot listen on {address}{hint}: {error}") from None
    return int(bound)


def _credentials(files: TlsFiles) -> Any:
    client_ca = files.client_ca.read_bytes() if files.client_ca else None
    return grpc.ssl_server_credentials(
        [(files.key.read_bytes(), files.certificate.read_bytes())],
        root_certificates=client_ca,
        require_client_auth=client_ca is not None,
    )
