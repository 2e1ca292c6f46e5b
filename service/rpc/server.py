"""The grpc.aio server: options, TLS, services, health, reflection, start and stop."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    tokenize_pb2,
    tokenize_pb2_grpc,
)
from service.catalog.registry import Registry
from service.generation.watch import Limits
from service.rpc.drain import Drain
from service.rpc.generation import DeadlinePolicy, GenerationServicer
from service.rpc.health import HealthMonitor
from service.rpc.models import ModelServicer
from service.rpc.observe import ObservingInterceptor
from service.rpc.tokenize import TokenizeServicer

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
    """Where and how to listen. `max_message_bytes` bounds a request and a response alike."""

    host: str = "127.0.0.1"
    port: int = 50051
    tls: TlsFiles | None = None
    max_message_bytes: int = 32 * 1024 * 1024
    health_interval_s: float = 5.0


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
)


class RpcServer:
    """One listening server over a set of models."""

    def __init__(self, registry: Registry, options: ServerOptions, limits: Limits, deadlines: DeadlinePolicy) -> None:
        self._options = options
        self.drain = Drain()
        health_servicer = health.aio.HealthServicer()
        self.monitor = HealthMonitor(registry, health_servicer, interval_s=options.health_interval_s)
        size = options.max_message_bytes
        self._server = grpc.aio.server(
            interceptors=[ObservingInterceptor()],
            options=[
                *_KEEPALIVE,
                # After its age a connection lives until its longest call may have
                # ended; that also bounds a client that stays and never reads.
                ("grpc.max_connection_age_grace_ms", round(deadlines.maximum_s * 1000)),
                ("grpc.max_receive_message_length", size),
                ("grpc.max_send_message_length", size),
            ],
        )
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(
            GenerationServicer(registry, self.drain, self.monitor, limits, deadlines), self._server
        )
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(registry, self.drain), self._server)
        tokenize_pb2_grpc.add_TokenizeServiceServicer_to_server(
            TokenizeServicer(registry, self.drain, deadlines), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, self._server)
        reflection.enable_server_reflection(_service_names(), self._server)

    async def start(self) -> int:
        """Listen and return the port. Raises OSError if that is not possible."""
        address = f"{self._options.host}:{self._options.port}"
        try:
            if self._options.tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, _credentials(self._options.tls))
        except RuntimeError as error:
            hint = "" if self._options.tls is None else " (or the TLS files are no valid pair of PEM files)"
            raise OSError(f"cannot listen on {address}{hint}: {error}") from None
        await self.monitor.start()
        await self._server.start()
        return int(port)

    async def stop(self, grace_s: float) -> None:
        """Drain for at most `grace_s`, then close.

        Health turns to NOT_SERVING and new calls get DRAINING at once; running
        generations may finish within the grace and end with DRAINING after it.
        """
        self.drain.is_draining = True
        await self.monitor.drain()
        await self.drain.finish(grace_s)
        await self._server.stop(1.0)


def _service_names() -> tuple[str, ...]:
    files: tuple[Any, ...] = (generation_pb2, model_pb2, tokenize_pb2, health_pb2)
    names = [service.full_name for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    return (*names, reflection.SERVICE_NAME)


def _credentials(files: TlsFiles) -> Any:
    client_ca = files.client_ca.read_bytes() if files.client_ca else None
    return grpc.ssl_server_credentials(
        [(files.key.read_bytes(), files.certificate.read_bytes())],
        root_certificates=client_ca,
        require_client_auth=client_ca is not None,
    )
