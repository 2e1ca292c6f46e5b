"""GenerationService: one request in, numbered events out."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Any

from headrace.v1 import generation_pb2, generation_pb2_grpc
from service.catalog.model import Model
from service.catalog.registry import Registry
from service.core.account import Accounts
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.events import FinishReason
from service.core.request import GenerationRequest
from service.core.sequence import EventSequence
from service.core.timing import StreamClock
from service.core.validate import violations
from service.generation.limits import Limits
from service.generation.live import EndedGeneration, GenerationState, LiveGeneration, LiveGenerations
from service.generation.run import Generation
from service.generation.watch import Cause, Watch
from service.rpc.call import CallRecord, current_call, remaining_s
from service.rpc.convert import request_from_proto
from service.rpc.convert_events import event_to_proto
from service.rpc.drain import Drain
from service.rpc.health import HealthMonitor
from service.rpc.reader import ReaderWatch
from service.rpc.report import closing_of, ended_generation, opening_of, report, state_to_proto
from service.telemetry.instruments import active_requests
from service.telemetry.trace import GenerationTrace

__all__ = ["DeadlinePolicy", "GenerationServicer"]

# After these the engine's health is looked at without waiting for the next round.
_ENGINE_FAULTS = frozenset(
    {Reason.BACKEND_UNAVAILABLE, Reason.BACKEND_ERROR, Reason.FIRST_TOKEN_TIMEOUT, Reason.TOKEN_GAP_TIMEOUT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePolicy:
    """Seconds. `default_s` applies where the caller sets none, `maximum_s` to all.

    A request with less than `floor_s` left is refused before it takes a slot. Work
    ends a margin before the caller's own deadline, so that the caller is told why
    before its clock runs out: `margin_share` of it, `margin_s` at most.
    """

    default_s: float = 600.0
    maximum_s: float = 3600.0
    floor_s: float = 0.01
    margin_s: float = 0.05
    margin_share: float = 0.05

    def apply(self, remaining_s: float | None) -> float:
        """Return the seconds that a call may take. Raises DEADLINE_TOO_SHORT."""
        if remaining_s is None:
            return min(self.default_s, self.maximum_s)
        if remaining_s < self.floor_s:
            raise ServiceError(
                Reason.DEADLINE_TOO_SHORT,
                f"The deadline leaves {remaining_s * 1000:.0f} ms; at least {self.floor_s * 1000:.0f} ms are needed.",
                metadata={
                    "remainingMs": str(round(remaining_s * 1000)),
                    "floorMs": str(round(self.floor_s * 1000)),
                },
            )
        return min(remaining_s - min(self.margin_s, remaining_s * self.margin_share), self.maximum_s)


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Serves generations. Errors leave as `ServiceError`; the interceptor maps them."""

    def __init__(
        self,
        registry: Registry,
        drain: Drain,
        monitor: HealthMonitor,
        limits: Limits,
        deadlines: DeadlinePolicy,
        accounts: Accounts,
    ) -> None:
        self._registry = registry
        self._drain = drain
        self._monitor = monitor
        self._limits = limits
        self._deadlines = deadlines
        self._accounts = accounts
        self._generations = LiveGenerations()

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Any) -> None:
        """Write the events of one generation.

        A coroutine that awaits each write, not a generator: a client that
        leaves while a write is blocked is then noticed in this very task.
        """
        call = current_call()
        wanted, model = self._accept(request)
        deadline = Deadline.after(self._deadlines.apply(remaining_s(context)))
        live, reader = self._open(wanted, model, deadline, call)
        account = await self._accounts.open(opening_of(live, call))
        call.headers = account.headers
        active_requests.add(1)
        self._generations.add(live)
        try:
            with reader, self._drain.running_under(live):
                await self._serve(live, reader, call, context)
        except BaseException as error:
            call.note(error)
            if isinstance(error, ServiceError) and error.reason in _ENGINE_FAULTS:
                self._monitor.look_at(model)
            raise
        finally:
            if FinishReason.CANCELLED in live.generation.finish_reasons and call.outcome == "completed":
                call.outcome = "cancelled"
            active_requests.add(-1)
            self._generations.end(live.generation.id, ended_generation(live, call))
            report(call, live)
            live.let_go()
            await account.close(closing_of(live, call))

    async def GetGeneration(
        self,
        request: generation_pb2.GetGenerationRequest,
        context: Any,  # noqa: ARG002
    ) -> generation_pb2.GetGenerationResponse:
        """Return where a generation is."""
        found = self._find(request.generation_id)
        return state_to_proto(found, time.monotonic())

    async def CancelGeneration(
        self,
        request: generation_pb2.CancelGenerationRequest,
        context: Any,  # noqa: ARG002
    ) -> generation_pb2.CancelGenerationResponse:
        """Stop a generation; its own stream tells its end."""
        found = self._find(request.generation_id)
        state = found.state
        if isinstance(found, LiveGeneration) and not found.has_ended:
            found.interrupt(Cause.CANCEL)
            state = GenerationState.CANCELLED
        return generation_pb2.CancelGenerationResponse(state=generation_pb2.GenerationState.Name(state.value))

    def _find(self, generation_id: str) -> LiveGeneration | EndedGeneration:
        if not generation_id:
            raise invalid([Violation("generation_id", "must not be empty")])
        return self._generations.get(generation_id, current_call().tenant, time.monotonic())

    def _accept(self, request: generation_pb2.GenerateRequest) -> tuple[GenerationRequest, Model]:
        self._drain.check()
        wanted, found = request_from_proto(request)
        found += violations(wanted)
        if found:
            raise invalid(found)
        return wanted, self._registry.get_ready(wanted.model)

    def _open(
        self, wanted: GenerationRequest, model: Model, deadline: Deadline, call: CallRecord
    ) -> tuple[LiveGeneration, ReaderWatch]:
        time_limit = None if wanted.time_limit_s is None else Deadline.after(wanted.time_limit_s, call.received_s)
        generation_id = f"gen_{secrets.token_hex(12)}"
        trace = GenerationTrace(generation_id, model.id, model.backend.info, call.context)
        watch = Watch(deadline, self._limits, time_limit, wanted.priority)
        clock = StreamClock(call.received_s)
        generation = Generation(generation_id, wanted, model, watch, deadline, clock, trace, tenant=call.tenant)
        reader = ReaderWatch(deadline, self._limits.reader_s)
        live = LiveGeneration(generation, watch, self._limits, reader, tenant=call.tenant, created_at_s=time.time())
        return live, reader

    async def _serve(self, live: LiveGeneration, reader: ReaderWatch, call: CallRecord, context: Any) -> None:
        async with live:
            try:
                await self._write_events(live, reader, call, context)
            except asyncio.CancelledError:
                if not reader.took():
                    raise
                raise self._reader_failure(live) from None

    def _reader_failure(self, live: LiveGeneration) -> ServiceError:
        """Return why a write was given up."""
        if live.failure is not None:
            return live.failure
        if live.generation.deadline.remaining_s() <= 0:
            live.interrupt(Cause.DEADLINE)
            return ServiceError(Reason.DEADLINE_IN_DECODE, "The deadline passed before everything was read.")
        live.interrupt(Cause.READER_STALL)
        return ServiceError(
            Reason.CONSUMER_TOO_SLOW,
            f"Nothing was read for {self._limits.reader_s:g} s; the generation was stopped.",
            metadata={"pendingEvents": str(live.outbox.waiting)},
        )

    async def _write_events(self, live: LiveGeneration, reader: ReaderWatch, call: CallRecord, context: Any) -> None:
        generation = live.generation
        started = generation_pb2.GenerationStarted(
            generation_id=generation.id,
            model=generation.model.id,
            fingerprint=generation.model.backend.info.fingerprint,
        )
        started.create_time.FromNanoseconds(round(live.created_at_s * 1e9))
        sequence = EventSequence(generation.request.choice_count)
        take, write, monotonic = live.outbox.next, context.write, time.monotonic
        while (event := await take()) is not None:
            number = sequence.next(event)
            if number == 1:
                reader.begin_headers()
                await context.send_initial_metadata(
                    (("x-request-id", call.request_id), ("x-generation-id", generation.id), *call.headers)
                )
            reader.begin(monotonic())
            # Before it is written: a write that is given up has handed its event to the transport all the same.
            call.last_sequence = number
            await write(event_to_proto(event, number, started))
            reader.end()
