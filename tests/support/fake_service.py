"""A scripted Headrace service on a real socket, for tests of its clients.

It owns what a test wants a server to do: which events, when, and how the call
ends. It knows nothing of `service`; it speaks the contract over grpc.aio.

    async with fake_service() as fake:
        fake.will(started(), delta("Hi"), finished(), completed())
        ...                                  # talk to fake.address
        call = await fake.next_call()        # request, metadata, deadline, outcome

A script is a list of steps for one Generate call: a `GenerateResponse` is sent
(numbered 1, 2, 3... unless it has a sequence), a `Fail` ends the call, an
`asyncio.Event` is waited for, `HANG` waits for a cancel; at its end comes OK.
Every `will` serves one call, then `fake.default` serves all others.

GetGeneration and CancelGeneration know the calls by the id in their first event.
A script that waits is stopped by the latter: every choice that is open ends as
CANCELLED, then come usage and OK. `fake.generations` holds answers about others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_status import rpc_status

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc, model_pb2, model_pb2_grpc
from tests.support.fake_script import HANG, Fail, Step, completed, delta, finished, model, queued, started

__all__ = [
    "HANG",
    "Fail",
    "FakeCall",
    "FakeService",
    "completed",
    "delta",
    "fake_service",
    "finished",
    "model",
    "queued",
    "started",
]

WAIT_S: Final = 10.0  # bound of every wait in here; a test that reaches it is broken


@dataclass(slots=True, eq=False)
class FakeCall:
    """What the server saw of one Generate call."""

    request: gen.GenerateRequest
    metadata: tuple[tuple[str, str | bytes], ...]
    time_remaining_s: float | None
    sent: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)  # cancelled, or the deadline passed
    is_over: bool = False
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)  # of the handler
    is_stopped: bool = False  # by CancelGeneration
    has_failed: bool = False
    generation_id: str = ""
    is_started: bool = False
    open_choices: set[int] = field(default_factory=set)

    def header(self, key: str) -> str | bytes | None:
        """Return the first value of one metadata key, or None."""
        return next((value for name, value in self.metadata if name == key), None)

    @property
    def state(self) -> gen.GenerationState:
        """What GetGeneration says of it."""
        if self.has_failed:
            return gen.GENERATION_STATE_FAILED
        if self.is_stopped or self.cancelled.is_set():
            return gen.GENERATION_STATE_CANCELLED
        if self.is_over:
            return gen.GENERATION_STATE_COMPLETED
        return gen.GENERATION_STATE_RUNNING if self.is_started else gen.GENERATION_STATE_QUEUED

    def note(self, event: gen.GenerateResponse) -> None:
        """Keep what an event that is about to be sent says of the generation."""
        kind = event.WhichOneof("event")
        if kind in ("queued", "started"):
            self.generation_id = getattr(event, kind).generation_id
        if kind == "started":
            self.is_started = True
            self.open_choices = set(range(self.request.choice_count or 1))
        elif kind == "choice_finished":
            self.open_choices.discard(event.choice_finished.index)

    async def wait_cancelled(self) -> None:
        """Return when the handler is over because of a cancel or the deadline; TimeoutError after WAIT_S."""
        await asyncio.wait_for(self.cancelled.wait(), WAIT_S)


class FakeService(generation_pb2_grpc.GenerationServiceServicer, model_pb2_grpc.ModelServiceServicer):
    """The servicers and the memory of one fake server."""

    def __init__(self) -> None:
        self.address = ""
        self.models: list[model_pb2.Model] = [model()]
        self.default: Sequence[Step] = (started(), delta("Hello"), delta(" world"), finished(), completed())
        self.initial_metadata = (("x-request-id", "req-1"), ("x-generation-id", "gen-1"))  # with the first event
        self.calls: list[FakeCall] = []
        self.model_calls: list[tuple[dict[str, Any], float]] = []  # metadata and seconds left of unary calls
        self.generations: dict[str, gen.GetGenerationResponse] = {}
        self.unary_failures: deque[Fail] = deque()  # each ends one call of GetGeneration or CancelGeneration
        self.health = health_aio.HealthServicer()
        self._scripts: deque[Sequence[Step]] = deque()
        self._arrived: asyncio.Queue[FakeCall] = asyncio.Queue()

    def will(self, *steps: Step) -> None:
        """Queue the script of one Generate call."""
        self._scripts.append(steps)

    async def next_call(self) -> FakeCall:
        """Return the next Generate call not yet handed out; TimeoutError after WAIT_S."""
        return await asyncio.wait_for(self._arrived.get(), WAIT_S)

    def forget(self) -> None:
        """Forget the calls so far, handed out or not."""
        self.calls.clear()
        while not self._arrived.empty():
            self._arrived.get_nowait()

    async def set_serving(self, service: str, *, serving: bool) -> None:
        """Set what grpc.health.v1 answers for one service name."""
        states = health_pb2.HealthCheckResponse
        await self.health.set(service, states.SERVING if serving else states.NOT_SERVING)

    async def Generate(self, request: gen.GenerateRequest, context: Any) -> None:
        """Run the next script."""
        call = FakeCall(request, tuple(context.invocation_metadata() or ()), context.time_remaining())
        self.calls.append(call)
        self._arrived.put_nowait(call)
        try:
            for step in self._scripts.popleft() if self._scripts else self.default:
                await self._run(step, call, context)
        except asyncio.CancelledError:
            if call.is_stopped and call.task is not None and call.task.uncancel() == 0:
                await self._end_stopped(call, context)
                return
            call.cancelled.set()
            raise
        except grpc.aio.InternalError:  # the call was cancelled while a write waited for the reader
            call.cancelled.set()
        finally:
            call.is_over = True

    async def _end_stopped(self, call: FakeCall, context: Any) -> None:
        usage = completed() if call.is_started else completed(output_tokens=0)
        if not call.is_started:  # it waited for its slot
            await self._run(started(generation_id=call.generation_id), call, context)
        for index in sorted(call.open_choices):
            await self._run(finished("CANCELLED", index), call, context)
        await self._run(usage, call, context)

    async def _run(self, step: Step, call: FakeCall, context: Any) -> None:
        if isinstance(step, gen.GenerateResponse):
            event = gen.GenerateResponse()
            event.CopyFrom(step)
            event.sequence = event.sequence or call.sent + 1
            if call.sent == 0:
                await context.send_initial_metadata(self.initial_metadata)
            call.note(event)
            call.sent += 1
            await context.write(event)
        elif isinstance(step, Fail):
            call.has_failed = True
            if step.raw_details is not None:
                context.set_trailing_metadata((("grpc-status-details-bin", step.raw_details),))
                await context.abort(step.code, step.message)
            await context.abort_with_status(rpc_status.to_status(step.status()))
        elif isinstance(step, asyncio.Event):
            # Not wait_for: in Python 3.11 it swallows a cancel that comes just as the event is set.
            async with asyncio.timeout(WAIT_S):
                await step.wait()
        elif step is HANG:
            await asyncio.Event().wait()
        else:
            raise TypeError(f"not a step: {step!r}")

    def _note(self, context: Any) -> None:
        self.model_calls.append((dict(context.invocation_metadata()), context.time_remaining()))

    async def _refuse(self, failure: Fail, context: Any) -> Any:
        return await context.abort_with_status(rpc_status.to_status(failure.status()))

    async def _find(self, generation_id: str, context: Any) -> FakeCall | gen.GetGenerationResponse:
        self._note(context)
        if self.unary_failures:
            await self._refuse(self.unary_failures.popleft(), context)
        found = next((call for call in reversed(self.calls) if call.generation_id == generation_id), None)
        if not generation_id or (found is None and generation_id not in self.generations):
            await self._refuse(Fail(code=grpc.StatusCode.NOT_FOUND, reason="GENERATION_NOT_FOUND"), context)
        return found or self.generations[generation_id]

    async def GetGeneration(self, request: gen.GetGenerationRequest, context: Any) -> gen.GetGenerationResponse:
        """Return where a generation is, else NOT_FOUND."""
        found = await self._find(request.generation_id, context)
        if isinstance(found, gen.GetGenerationResponse):
            return found
        return gen.GetGenerationResponse(
            state=found.state, last_sequence=found.sent, model="fake", priority=found.request.priority
        )

    async def CancelGeneration(
        self, request: gen.CancelGenerationRequest, context: Any
    ) -> gen.CancelGenerationResponse:
        """Stop a generation whose script waits, else NOT_FOUND; it has not yet ended when this answers."""
        found = await self._find(request.generation_id, context)
        state = found.state
        if isinstance(found, FakeCall) and not (found.is_over or found.is_stopped) and found.task is not None:
            found.is_stopped = True
            found.task.cancel()
        return gen.CancelGenerationResponse(state=state)

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:
        """Return the models in pages; the page token is the next offset."""
        self._note(context)
        first = int(request.page_token or 0)
        last = first + (request.page_size or 50)
        token = str(last) if last < len(self.models) else ""
        return model_pb2.ListModelsResponse(models=self.models[first:last], next_page_token=token)

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> model_pb2.GetModelResponse:
        """Return one model by id or alias, else NOT_FOUND."""
        self._note(context)
        for found in self.models:
            if request.model == found.id or request.model in found.aliases:
                return model_pb2.GetModelResponse(model=found)
        refusal = Fail(code=grpc.StatusCode.NOT_FOUND, reason="MODEL_NOT_FOUND", message=f"no model {request.model!r}")
        return await self._refuse(refusal, context)


@asynccontextmanager
async def fake_service(
    *, credentials: grpc.ServerCredentials | None = None, options: Sequence[tuple[str, Any]] = ()
) -> AsyncIterator[FakeService]:
    """Serve on 127.0.0.1 and a free port; leaving the block cuts every call."""
    # Without so_reuseport=0 two servers could silently share one port.
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *options])
    fake = FakeService()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(fake, server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(fake, server)
    health_pb2_grpc.add_HealthServicer_to_server(fake.health, server)
    for name in ("", "healthy", "headrace.v1.GenerationService", "headrace.v1.ModelService"):
        await fake.set_serving(name, serving=True)
    host = "127.0.0.1:0"
    port = server.add_secure_port(host, credentials) if credentials else server.add_insecure_port(host)
    fake.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(0)
