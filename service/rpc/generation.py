"""GenerationService: one request in, numbered events out."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from headrace.v1 import generation_pb2, generation_pb2_grpc
from runtime import semconv
from service.catalog.model import Model
from service.catalog.registry import Registry
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError, invalid
from service.core.request import GenerationRequest
from service.core.sequence import EventSequence
from service.core.timing import StreamClock
from service.core.validate import violations
from service.generation.run import Generation
from service.generation.watch import Limits, Phase, Watch
from service.rpc.call import CallRecord, current_call, remaining_s
from service.rpc.convert import event_to_proto, request_from_proto
from service.rpc.drain import Drain
from service.rpc.health import HealthMonitor
from service.rpc.request_log import log_generation
from service.telemetry.instruments import active_requests, record_generation
from service.telemetry.trace import GenerationTrace

__all__ = ["DeadlinePolicy", "GenerationServicer"]

# After these the engine's health is looked at without waiting for the next round.
_ENGINE_FAULTS = frozenset({Reason.BACKEND_UNAVAILABLE, Reason.BACKEND_ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePolicy:
    """Seconds. `default_s` applies where the caller sets none, `maximum_s` to all.

    A request with less than `floor_s` left is refused before it takes a slot.
    """

    default_s: float = 600.0
    maximum_s: float = 3600.0
    floor_s: float = 0.01

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
        return min(remaining_s, self.maximum_s)


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Serves Generate. Errors leave as `ServiceError`; the interceptor maps them."""

    def __init__(
        self, registry: Registry, drain: Drain, monitor: HealthMonitor, limits: Limits, deadlines: DeadlinePolicy
    ) -> None:
        self._registry = registry
        self._drain = drain
        self._monitor = monitor
        self._limits = limits
        self._deadlines = deadlines

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Any) -> None:
        """Write the events of one generation.

        A coroutine that awaits each write, not a generator: a client that
        leaves while a write is blocked is then noticed in this very task.
        """
        call = current_call()
        wanted, model = self._accept(request)
        deadline = Deadline.after(self._deadlines.apply(remaining_s(context)))
        time_limit = None if wanted.time_limit_s is None else Deadline.after(wanted.time_limit_s, call.received_s)
        generation_id = f"gen_{secrets.token_hex(12)}"
        trace = GenerationTrace(generation_id, model.id, model.backend.info, call.context)
        active_requests.add(1)
        with Watch(deadline, self._limits, time_limit) as watch, self._drain.running_under(watch):
            generation = Generation(generation_id, wanted, model, watch, deadline, StreamClock(call.received_s), trace)
            try:
                await self._write_events(generation, call, context)
            except BaseException as error:
                failure: BaseException | None = watch.failure() if isinstance(error, asyncio.CancelledError) else None
                failure = failure or error
                call.note(failure)
                if isinstance(failure, ServiceError) and failure.reason in _ENGINE_FAULTS:
                    self._monitor.look_at(model)
                if failure is not error:
                    raise failure from None
                raise
            finally:
                active_requests.add(-1)
                _report(call, generation)

    def _accept(self, request: generation_pb2.GenerateRequest) -> tuple[GenerationRequest, Model]:
        self._drain.check()
        wanted, found = request_from_proto(request)
        found += violations(wanted)
        if found:
            raise invalid(found)
        return wanted, self._registry.get_ready(wanted.model)

    async def _write_events(self, generation: Generation, call: CallRecord, context: Any) -> None:
        started = generation_pb2.GenerationStarted(
            generation_id=generation.id,
            model=generation.model.id,
            fingerprint=generation.model.backend.info.fingerprint,
        )
        started.create_time.FromNanoseconds(time.time_ns())
        sequence = EventSequence(generation.request.choice_count)
        enter, write, monotonic = generation.watch.enter, context.write, time.monotonic
        async with aclosing(generation.events()) as events:
            async for event in events:
                number = sequence.next(event)
                if number == 1:
                    enter(Phase.HEADERS, monotonic())
                    await context.send_initial_metadata(
                        (("x-request-id", call.request_id), ("x-generation-id", generation.id))
                    )
                enter(Phase.READER, monotonic())
                await write(event_to_proto(event, number, started))
                call.last_sequence = number


def _report(call: CallRecord, generation: Generation) -> None:
    """Span attributes, metrics and the log line of one generation, whatever its end was."""
    now_s = time.monotonic()
    clock, info = generation.clock, generation.model.backend.info
    output_tokens = generation.output_tokens_so_far
    timing = clock.timing(now_s, output_tokens, generation.request.choice_count)
    if timing.ttft_s is not None:
        call.span.set_attribute(semconv.TTFT_S, timing.ttft_s)
        call.span.set_attribute(semconv.MAX_GAP_S, clock.max_gap_s)
    if clock.admitted_s is not None:
        call.span.set_attribute(semconv.QUEUE_S, timing.queue_s)
    call.is_logged = True
    log_generation(
        generation,
        timing,
        request_id=call.request_id,
        status=call.status,
        outcome=call.outcome,
        reason=call.error.reason.name if call.error else None,
    )
    generation.trace.end(
        ttft_s=timing.ttft_s,
        usage=replace(generation.usage, output_tokens=output_tokens),
        finish_reasons=generation.finish_reasons,
        error_type=call.error_type,
        detail=call.error.detail if call.error else None,
    )
    if clock.admitted_s is not None:
        record_generation(
            operation=generation.trace.operation,
            provider=info.provider,
            model=generation.model.id,
            outcome=call.outcome,
            duration_s=timing.total_s,
            ttft_s=timing.ttft_s,
            decode_s=timing.decode_s,
            output_tokens=output_tokens,
            choices=generation.request.choice_count,
            error_type=call.error_type,
            context=call.context,
        )
