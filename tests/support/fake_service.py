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
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_status import rpc_status

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc, model_pb2, model_pb2_grpc, usage_pb2

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
    "started",
]

WAIT_S: Final = 10.0  # bound of every wait in here; a test that reaches it is broken
HANG: Final = object()


@dataclass(frozen=True, kw_only=True)
class Fail:
    """End the call with `code`, and the details of a Headrace error if `reason` is given."""

    code: grpc.StatusCode
    message: str = "refused by the script"
    reason: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Sequence[tuple[str, str]] = ()
    retry_after_s: float | None = None
    request_id: str | None = None
    raw_details: bytes | None = None  # sent as they are, to test broken trailers

    def status(self) -> status_pb2.Status:
        """Return the google.rpc.Status that goes into the trailers."""
        details: list[Any] = []
        if self.reason:
            info = {"reason": self.reason, "domain": "headrace.v1", "metadata": self.metadata}
            details.append(error_details_pb2.ErrorInfo(**info))
        if self.violations:
            fields = [{"field": f, "description": d} for f, d in self.violations]
            details.append(error_details_pb2.BadRequest(field_violations=fields))
        if self.retry_after_s is not None:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(round(self.retry_after_s * 1e9))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        if self.request_id:
            details.append(error_details_pb2.RequestInfo(request_id=self.request_id))
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in details:
            status.details.add().Pack(detail)
        return status


Step = gen.GenerateResponse | Fail | asyncio.Event | object


def started(**fields: Any) -> gen.GenerateResponse:
    """Return the first event; keywords override its fields."""
    values = {"generation_id": "gen-1", "model": "fake", "fingerprint": "fp", "prompt_token_count": 3, "seed": 7}
    return gen.GenerateResponse(started=gen.GenerationStarted(**(values | fields)))


def delta(text: str, index: int = 0, **fields: Any) -> gen.GenerateResponse:
    """Return a piece of text of choice `index`."""
    return gen.GenerateResponse(delta=gen.ChoiceDelta(index=index, text=text, **fields))


def finished(reason: str = "STOP", index: int = 0, **fields: Any) -> gen.GenerateResponse:
    """Return the end of choice `index`; `reason` is a FinishReason without its prefix."""
    value = gen.FinishReason.Value(f"FINISH_REASON_{reason}")
    return gen.GenerateResponse(choice_finished=gen.ChoiceFinished(index=index, reason=value, **fields))


def completed(prompt_tokens: int | None = 3, output_tokens: int | None = 2) -> gen.GenerateResponse:
    """Return the last event: usage, and timing of 10 ms queue, 40 ms prefill, 50 ms decode."""
    usage = usage_pb2.Usage(prompt_token_count=prompt_tokens, output_token_count=output_tokens)
    timing = usage_pb2.Timing(output_tokens_per_second=20.0)
    timing.queue_duration.FromMilliseconds(10)
    timing.prefill_duration.FromMilliseconds(40)
    timing.time_to_first_token.FromMilliseconds(50)
    timing.decode_duration.FromMilliseconds(50)
    timing.total_duration.FromMilliseconds(100)
    return gen.GenerateResponse(completed=gen.GenerationCompleted(usage=usage, timing=timing))


def model(model_id: str = "fake", **fields: Any) -> model_pb2.Model:
    """Return a ready model; keywords override its fields."""
    values: dict[str, Any] = {
        "owned_by": "tests",
        "state": model_pb2.MODEL_STATE_READY,
        "max_context_tokens": 4096,
        "max_output_tokens": 1024,
        "capabilities": [model_pb2.MODEL_CAPABILITY_PROMPT, model_pb2.MODEL_CAPABILITY_CHAT],
    }
    return model_pb2.Model(id=model_id, **(values | fields))


@dataclass(slots=True, eq=False)
class FakeCall:
    """What the server saw of one Generate call."""

    request: gen.GenerateRequest
    metadata: tuple[tuple[str, str | bytes], ...]
    time_remaining_s: float | None
    sent: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)  # cancelled, or the deadline passed
    is_over: bool = False

    def header(self, key: str) -> str | bytes | None:
        """Return the first value of one metadata key, or None."""
        return next((value for name, value in self.metadata if name == key), None)

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
        self.model_calls: list[tuple[dict[str, Any], float]] = []  # metadata and seconds left of calls about models
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
            call.cancelled.set()
            raise
        except grpc.aio.InternalError:  # the call was cancelled while a write waited for the reader
            call.cancelled.set()
        finally:
            call.is_over = True

    async def _run(self, step: Step, call: FakeCall, context: Any) -> None:
        if isinstance(step, gen.GenerateResponse):
            event = gen.GenerateResponse()
            event.CopyFrom(step)
            event.sequence = event.sequence or call.sent + 1
            if call.sent == 0:
                await context.send_initial_metadata(self.initial_metadata)
            call.sent += 1
            await context.write(event)
        elif isinstance(step, Fail):
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
        return await context.abort_with_status(rpc_status.to_status(refusal.status()))


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
    for name in ("", "headrace.v1.GenerationService", "headrace.v1.ModelService"):
        await fake.set_serving(name, serving=True)
    host = "127.0.0.1:0"
    port = server.add_secure_port(host, credentials) if credentials else server.add_insecure_port(host)
    fake.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(0)
