"""A real service over a real socket, with simulated engines."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from headrace.v1 import generation_pb2, generation_pb2_grpc, model_pb2_grpc
from runtime.slo import Objectives
from service.admission.limits import AdmissionLimits
from service.admission.slots import Slots
from service.backends.simulator import SimulatorBackend, SimulatorOptions
from service.catalog.model import Model
from service.catalog.registry import Registry
from service.core.account import Accounts
from service.generation.limits import Limits
from service.retention.policy import RetentionLimits
from service.rpc.generation import DeadlinePolicy
from service.rpc.server import RpcServer, ServerOptions
from service.sharing.sharing import Sharing
from service.templates import ChatTemplate, load_template
from service.tenancy.authenticator import Authenticator

GenerateRequest = generation_pb2.GenerateRequest


@functools.cache
def _chatml() -> ChatTemplate:
    """Compiled once: a tenth of what a test of the service costs."""
    return load_template("chatml", SimulatorBackend().info)


def simulated_model(
    model_id: str = "sim",
    options: SimulatorOptions | None = None,
    *,
    running: int = 64,
    waiting: int = 64,
    limits: AdmissionLimits | None = None,
    **fields: Any,
) -> Model:
    """Return a model on a simulator of its own; `limits` takes the place of `running` and `waiting`."""
    backend = fields.pop("backend", None) or SimulatorBackend(options)
    if "template" not in fields:
        fields["template"] = _chatml()
    fields.setdefault("max_context_tokens", backend.info.max_context_tokens)
    limits = limits or AdmissionLimits(running=running, waiting=waiting, waiting_batch=waiting)
    return Model(id=model_id, backend=backend, slots=Slots(limits), **fields)


@dataclass(slots=True)
class RunningService:
    """A started server, a channel to it, and its models."""

    server: RpcServer
    port: int
    channel: Any
    models: dict[str, Model]
    generation: Any = field(init=False)
    model: Any = field(init=False)

    def __post_init__(self) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.model = model_pb2_grpc.ModelServiceStub(self.channel)

    @property
    def sim(self) -> SimulatorBackend:
        """The simulator behind the model "sim"."""
        backend = self.models["sim"].backend
        assert isinstance(backend, SimulatorBackend)
        return backend

    async def events(self, request: GenerateRequest, **call: Any) -> list[generation_pb2.GenerateResponse]:
        """Return all events of one call; a call without a deadline gets one here."""
        call.setdefault("timeout", 20)
        return [event async for event in self.generation.Generate(request, **call)]

    async def failure(self, request: GenerateRequest, **call: Any) -> Failure:
        """Return the failure that one call ends with."""
        received = 0
        call.setdefault("timeout", 20)
        try:
            async for _ in self.generation.Generate(request, **call):
                received += 1
        except grpc.aio.AioRpcError as error:
            return Failure(error, received)
        raise AssertionError("the call did not fail")


@dataclass(slots=True)
class Failure:
    """A status, unpacked."""

    error: grpc.aio.AioRpcError
    received: int

    @property
    def code(self) -> grpc.StatusCode:
        return self.error.code()

    @property
    def details(self) -> list[Message]:
        status = rpc_status.from_call(_Call(self.error))
        if status is None:
            return []
        unpacked = []
        for box in status.details:
            for kind in (
                error_details_pb2.ErrorInfo,
                error_details_pb2.RequestInfo,
                error_details_pb2.BadRequest,
                error_details_pb2.RetryInfo,
                error_details_pb2.ResourceInfo,
            ):
                if box.Is(kind.DESCRIPTOR):
                    message = kind()
                    box.Unpack(message)
                    unpacked.append(message)
        return unpacked

    @property
    def info(self) -> error_details_pb2.ErrorInfo:
        infos = [d for d in self.details if isinstance(d, error_details_pb2.ErrorInfo)]
        assert len(infos) == 1, "every error carries exactly one ErrorInfo"
        return infos[0]

    @property
    def fields(self) -> list[str]:
        """The field paths of the BadRequest detail."""
        return [
            violation.field
            for d in self.details
            if isinstance(d, error_details_pb2.BadRequest)
            for violation in d.field_violations
        ]

    def trailer(self, name: str) -> str | None:
        return next((value for key, value in self.error.trailing_metadata() or () if key == name), None)


class _Call:
    """What `rpc_status.from_call` wants of a call, for an aio error."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self._error = error

    def trailing_metadata(self) -> Sequence[tuple[str, Any]]:
        return tuple(self._error.trailing_metadata() or ())

    def code(self) -> grpc.StatusCode:
        return self._error.code()

    def details(self) -> str | None:
        return self._error.details()


@asynccontextmanager
async def running_service(
    *models: Model,
    limits: Limits | None = None,
    deadlines: DeadlinePolicy | None = None,
    options: ServerOptions | None = None,
    retention: RetentionLimits | None = None,
    sharing: Sharing | None = None,
    authenticator: Authenticator | None = None,
    accounts: Accounts | None = None,
    objectives: Objectives | None = None,
) -> AsyncIterator[RunningService]:
    """Serve `models` (by default one simulator named "sim") for the length of the block."""
    served = models or (simulated_model(),)
    server = RpcServer(
        Registry(served),
        options or ServerOptions(port=0, health_interval_s=0.2),
        limits or Limits(),
        deadlines or DeadlinePolicy(),
        accounts,
        retention=retention,
        sharing=sharing,
        authenticator=authenticator,
        objectives=objectives,
    )
    port = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield RunningService(server, port, channel, {model.id: model for model in served})
    finally:
        await server.stop(0)


@pytest.fixture
async def service() -> AsyncIterator[RunningService]:
    async with running_service() as running:
        yield running


def text_of(events: Sequence[generation_pb2.GenerateResponse], choice: int = 0) -> str:
    """Return a choice's whole text."""
    return "".join(e.delta.text for e in events if e.WhichOneof("event") == "delta" and e.delta.index == choice)


def script(**options: Any) -> str:
    """Return a prompt that makes the simulator play `options`."""
    return "simulate: " + json.dumps(options)


async def eventually(check: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait until `check` holds; fails after `timeout_s`. For states that another process or task reaches."""
    async with asyncio.timeout(timeout_s):
        while not check():  # noqa: ASYNC110 - the state is not ours to signal
            await asyncio.sleep(0.005)
