"""What a storm is sent to: service and gateway as processes, a relay between them and one in front, all restartable."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import psutil

from headrace.v1 import admin_pb2, admin_pb2_grpc
from headrace.v1 import generation_pb2 as gen
from tests.support.chaos_plan import MODELS
from tests.support.chaos_relay import BreakingRelay, breaking_relay
from tests.support.chaos_world import Disturbance, Limits, Target, World
from tests.support.processes import Process, free_ports, gateway, service

__all__ = ["Held", "Site", "busy_with", "running_site"]

# A client finds its way back within so long after a server is there again.
_BACK_S: Final = 3.5
# A request that was sent just before is hurt as well.
_BEFORE_S: Final = 0.05
_STATUS_S: Final = 5.0
# Connections of the gateway to the service: for generations, and for everything else.
_GATEWAYS_OWN: Final = 2
_SLOTS: Final = {"wide": (10, 12), "narrow": (2, 4)}


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds: open files, its connections as "state: from -> to", and resident MiB."""

    files: int
    connections: tuple[str, ...]
    mib: float

    @classmethod
    def by(cls, process: Process) -> Held:
        """Return what `process` holds now."""
        seen = psutil.Process(process.popen.pid)
        with seen.oneshot():
            connections = tuple(sorted(_told(one) for one in seen.net_connections("tcp")))
            return cls(seen.num_fds(), connections, seen.memory_info().rss / 2**20)


def _told(connection: Any) -> str:
    far = f" -> {connection.raddr.port}" if connection.raddr else ""
    return f"{connection.status}: {connection.laddr.port}{far}"


class Site:
    """The processes that run now, and all that ran."""

    def __init__(
        self, folder: Path, world: World, relays: tuple[BreakingRelay, BreakingRelay], ports: list[int]
    ) -> None:
        self.world = world
        self.services: list[Process] = []
        self.gateways: list[Process] = []
        self.gateway_wire, self.client_wire = relays
        self.is_up = asyncio.Event()  # both serve
        self.service_since_s = 0.0  # when the service that runs now began to serve
        self._folder = folder
        self._service_port, self._admin_port, self._gateway_port = ports
        self._service: ExitStack = ExitStack()
        self._gateway: ExitStack = ExitStack()

    @property
    def target(self) -> str:
        """The service's address without a relay."""
        return f"127.0.0.1:{self._service_port}"

    @property
    def gateway_port(self) -> int:
        """Where the gateway listens."""
        return self._gateway_port

    async def start(self) -> None:
        """Start both."""
        await self._start_service()
        await self._start_gateway()
        self.is_up.set()

    async def stop(self) -> None:
        """End both; raises AssertionError if one does not end well."""
        for running in (self._gateway, self._service):
            await asyncio.to_thread(running.close)

    async def kill_gateway(self) -> None:
        """Kill the gateway without a warning, and start another."""
        with self._disturbing(Target.GATEWAY, "kill -9"):
            self.gateways[-1].send(signal.SIGKILL)
            await self.gateways[-1].ended()
            await self._restart(self._gateway, self._start_gateway)

    async def restart_gateway(self) -> None:
        """Let the gateway end as a rollout does, and start another."""
        with self._disturbing(Target.GATEWAY, "SIGTERM"):
            await self._restart(self._gateway, self._start_gateway)

    async def restart_service(self) -> None:
        """Let the service end as a rollout does, and start another."""
        with self._disturbing(Target.SERVICE, "SIGTERM"):
            self.services[-1].send(signal.SIGTERM)
            # As long as something runs there, what comes is told that it drains.
            await asyncio.sleep(self.world.limits.grace_s / 2)
            self.is_up.clear()
            assert await self.services[-1].ended() == 0, self.services[-1].recent()
            await self._restart(self._service, self._start_service)

    async def _restart(self, running: ExitStack, start: Callable[[], Awaitable[None]]) -> None:
        self.is_up.clear()
        try:
            await asyncio.to_thread(running.close)
            await start()
        finally:
            self.is_up.set()

    async def cut(self, target: Target) -> None:
        """Reset every connection through a relay."""
        with self._disturbing(target, "reset"):
            self._relay(target).reset()

    async def freeze(self, target: Target, for_s: float) -> None:
        """Let nothing through a relay for a while."""
        with self._disturbing(target, f"freeze of {for_s:.2f} s"):
            self._relay(target).freeze()
            await asyncio.sleep(for_s)
            self._relay(target).thaw()

    async def status(self) -> admin_pb2.GetServerStatusResponse:
        """Ask the service that runs now what it is doing."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._admin_port}") as channel:
            stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
            answer: admin_pb2.GetServerStatusResponse = await stub.GetServerStatus(
                admin_pb2.GetServerStatusRequest(), timeout=_STATUS_S
            )
            return answer

    async def idle(self, timeout_s: float) -> list[str]:
        """Wait until the service has nothing to do and nobody is connected; return what it still has."""
        give_up_s = time.monotonic() + timeout_s
        while True:
            left = busy_with(await self.status()) + self._connected()
            if not left or time.monotonic() > give_up_s:
                return left
            await asyncio.sleep(0.1)

    def held(self) -> tuple[Held, Held]:
        """Return what service and gateway hold."""
        return Held.by(self.services[-1]), Held.by(self.gateways[-1])

    def _connected(self) -> list[str]:
        """Return the connections that nobody should have any more: all but that of the gateway to the service."""
        found = []
        for held, name, ports, most in zip(
            self.held(),
            ("service", "gateway"),
            ((self._service_port, self._admin_port), (self._gateway_port,)),
            (_GATEWAYS_OWN, 0),
            strict=True,
        ):
            into = [one for one in held.connections if "->" in one and int(one.split()[1]) in ports]
            found += [f"{name} has connections {into}"] if len(into) > most else []
        return found

    def _relay(self, target: Target) -> BreakingRelay:
        return self.gateway_wire if target is Target.GATEWAY_WIRE else self.client_wire

    def _disturbing(self, target: Target, what: str) -> _Disturbing:
        return _Disturbing(self.world, target, what)

    async def _start_service(self) -> None:
        models = self._folder / "models.toml"
        models.write_text("".join(_model_table(name) for name in MODELS))
        settings = _service_settings(self.world.limits) | {"models_file": models, "admin_port": self._admin_port}
        self._service = ExitStack()
        running = service(self._folder, port=self._service_port, **settings)
        self.services.append(await asyncio.to_thread(self._service.enter_context, running))
        self.service_since_s = time.monotonic()

    async def _start_gateway(self) -> None:
        limits = self.world.limits
        port = int(self.gateway_wire.address.rpartition(":")[2])
        running = gateway(
            self._folder,
            port,
            port=self._gateway_port,
            send_timeout_s=limits.send_s,
            status_hold_s=0.4,
            heartbeat_s=0.3,
            drain_grace_s=limits.grace_s,
        )
        self._gateway = ExitStack()
        self.gateways.append(await asyncio.to_thread(self._gateway.enter_context, running))


class _Disturbing:
    """Notes a disturbance from the block's begin, until everybody may have got over its end."""

    def __init__(self, world: World, target: Target, what: str) -> None:
        self._world, self._target, self._what = world, target, what

    def __enter__(self) -> None:
        began_s = time.monotonic() - _BEFORE_S
        self._at = len(self._world.disturbances)
        self._world.disturbances.append(
            Disturbance(target=self._target, what=self._what, from_s=began_s, to_s=float("inf"))
        )

    def __exit__(self, *_: object) -> None:
        noted = self._world.disturbances[self._at]
        self._world.disturbances[self._at] = Disturbance(
            target=noted.target, what=noted.what, from_s=noted.from_s, to_s=time.monotonic() + _BACK_S
        )


def _model_table(name: str) -> str:
    running, waiting = _SLOTS[name]
    return (
        f'[[models]]\nid = "{name}"\nbackend = "simulator"\ntemplate = "chatml"\n'
        f"max_running = {running}\nmax_waiting = {waiting}\nmax_waiting_batch = {waiting}\n"
    )


def _service_settings(limits: Limits) -> Mapping[str, Any]:
    return {
        "first_token_timeout_s": limits.first_token_s,
        "token_gap_timeout_s": limits.token_gap_s,
        "reader_timeout_s": limits.reader_s,
        "full_reader_timeout_s": limits.room_s,
        "queue_timeout_s": limits.queue_s,
        "batch_queue_timeout_s": limits.batch_queue_s,
        "deadline_floor_s": limits.floor_s,
        "shutdown_grace_s": limits.grace_s,
        "health_interval_s": 0.5,
    }


def busy_with(status: admin_pb2.GetServerStatusResponse) -> list[str]:
    """Return what a server has that says it is idle if it has nothing of it."""
    left = [f"{status.active_count} generations are active"] if status.active_count else []
    for model in status.models:
        left += [f"{model.running_count} slots of {model.model} are in use"] if model.running_count else []
        for one in model.classes:
            name = gen.Priority.Name(one.priority).removeprefix("PRIORITY_").lower()
            for what, count in (("run", one.running_count), ("wait", one.waiting_count)):
                left += [f"{count} {name} requests of {model.model} {what}"] if count else []
    return left


@asynccontextmanager
async def running_site(folder: Path, world: World) -> AsyncIterator[Site]:
    """Run everything for the length of the block."""
    ports = free_ports(3)
    async with AsyncExitStack() as stack:
        target = f"127.0.0.1:{ports[0]}"
        relays = (
            await stack.enter_async_context(breaking_relay(target)),
            await stack.enter_async_context(breaking_relay(target)),
        )
        site = Site(folder, world, relays, ports)
        try:
            await site.start()
            yield site
        finally:
            await site.stop()
