"""GenerationService: one request in, numbered events out; and what can be asked of a generation by its id or key."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.v1 import error_reason_pb2, generation_pb2, generation_pb2_grpc
from service.catalog.registry import Registry
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.request import GenerationRequest
from service.core.sequence import EventSequence
from service.core.validate import violations
from service.generation.live import EndedGeneration, GenerationState, LiveGeneration, not_found
from service.generation.watch import Cause
from service.retention.policy import MAX_KEY_CHARS, Policy, policy_violations
from service.rpc.call import CallRecord, current_call, remaining_s
from service.rpc.convert import policy_from_proto, request_from_proto
from service.rpc.convert_events import event_to_proto, started_of
from service.rpc.follow import follow
from service.rpc.permission import allowed_model
from service.rpc.reader import ReaderWatch
from service.rpc.recordings import Recording, Recordings
from service.rpc.report import state_to_proto
from service.rpc.serving import ServedGeneration, Serving

if TYPE_CHECKING:  # needs the package of the store, which is optional
    from service.sharing.sharing import Sharing

__all__ = ["DeadlinePolicy", "GenerationServicer"]

# Longer ones are nobody's, and go to no other replica.
_MAX_ID_CHARS: Final = 128
# A message between replicas may be lost.
_QUESTIONS: Final = 2


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

    def __init__(self, registry: Registry, serving: Serving, deadlines: DeadlinePolicy, recordings: Recordings) -> None:
        self._registry = registry
        self._serving = serving
        self._deadlines = deadlines
        self._recordings = recordings
        recordings.state_of = self._state_for_others

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Any) -> None:
        """Write the events of one generation.

        A coroutine that awaits each write, not a generator: a client that
        leaves while a write is blocked is then noticed in this very task.
        """
        call = current_call()
        wanted, policy = self._accept(request)
        deadline = Deadline.after(self._deadlines.apply(remaining_s(context)))
        if policy is not None:
            await self._generate_retained(wanted, policy, deadline, call, context)
            return
        self._serving.drain.check()
        model = allowed_model(self._registry, wanted.model, call.identity)
        reader = ReaderWatch(deadline, self._serving.limits.reader_s)
        async with ServedGeneration(self._serving, _new_id(), wanted, model, deadline, call, reader) as live:
            with reader:
                await self._serve(live, reader, call, context)

    async def AttachGeneration(self, request: generation_pb2.AttachGenerationRequest, context: Any) -> None:
        """Write the events of a retained generation behind a given one."""
        call = current_call()
        after = request.after_sequence
        if after < 0:
            raise invalid([Violation("after_sequence", f"must not be negative, got {after}")])
        deadline = Deadline.after(self._deadlines.apply(remaining_s(context)))
        tenant = call.tenant
        generation_id, recording = await self._meant(request)
        if recording is None:
            recording = await self._recordings.find_elsewhere(tenant, generation_id)
        if recording is None or not call.identity.may_use(recording.model):
            raise not_found()
        await self._check_after(recording, after)
        await follow(recording, after, call, context, deadline=deadline, reader_s=self._serving.limits.reader_s)

    async def GetGeneration(
        self,
        request: generation_pb2.GetGenerationRequest,
        context: Any,  # noqa: ARG002
    ) -> generation_pb2.GetGenerationResponse:
        """Return where a generation is."""
        generation_id, recording = await self._meant(request)
        identity = current_call().identity
        told = self._told(identity.tenant, generation_id, recording)
        sharing = self._recordings.sharing
        if told is None and sharing is not None:
            answer = await sharing.ask("get", identity.tenant, generation_id)
            told = None if answer is None else generation_pb2.GetGenerationResponse.FromString(answer)
            if told is None and (facts := await sharing.find(identity.tenant, generation_id)) is not None:
                told = await self._told_by_store(generation_id, facts, sharing)
        if told is None or not identity.may_use(told.model):
            raise not_found()
        return told

    async def CancelGeneration(
        self,
        request: generation_pb2.CancelGenerationRequest,
        context: Any,  # noqa: ARG002
    ) -> generation_pb2.CancelGenerationResponse:
        """Stop a generation; its own stream tells its end."""
        generation_id, recording = await self._meant(request)
        identity = current_call().identity
        state = self._told(identity.tenant, generation_id, recording)
        if state is not None:
            if not identity.may_use(state.model):
                raise not_found()
            return self._cancel(identity.tenant, generation_id, recording)
        sharing = self._recordings.sharing
        if sharing is None:
            raise not_found()
        for _ in range(_QUESTIONS):
            answer = await sharing.ask("get", identity.tenant, generation_id)
            if answer is None:
                continue
            if not identity.may_use(generation_pb2.GetGenerationResponse.FromString(answer).model):
                raise not_found()
            told = await sharing.ask("cancel", identity.tenant, generation_id)
            if told is not None:
                return generation_pb2.CancelGenerationResponse.FromString(told)
        facts = await sharing.find(identity.tenant, generation_id)
        if facts is None:
            raise not_found()
        state = await self._told_by_store(generation_id, facts, sharing)
        if not identity.may_use(state.model):
            raise not_found()
        return generation_pb2.CancelGenerationResponse(state=state.state)

    def answer(self, kind: str, tenant: str, generation_id: str) -> bytes | None:
        """Return what another replica is answered that asks about a generation; None if it is not here."""
        sharing = self._recordings.sharing
        if kind.startswith("owns "):
            if sharing is None or kind != f"owns {sharing.store.instance}":
                return None
            return b"1" if self._recordings.keeps_key(generation_id) else b"0"
        recording = self._recordings.find(tenant, generation_id)
        state = self._told(tenant, generation_id, recording)
        if state is None:
            return None
        if kind == "cancel":
            cancelled: bytes = self._cancel(tenant, generation_id, recording).SerializeToString()
            return cancelled
        told: bytes = state.SerializeToString()
        return told

    async def _meant(self, request: Any) -> tuple[str, Recording | None]:
        """Return the id that a request means, and the recording here, if there is one.

        INVALID_FIELD if it means none, GENERATION_NOT_FOUND if no generation has the key.
        """
        tenant, key = current_call().tenant, request.idempotency_key
        if not key:
            if not request.generation_id:
                raise invalid([Violation("generation_id", "must not be empty where there is no idempotency_key")])
            if len(request.generation_id) > _MAX_ID_CHARS:
                raise not_found()
            return request.generation_id, self._recordings.find(tenant, request.generation_id)
        found = self._recordings.find_by_key(tenant, key)
        if found is not None:
            return found.id, found
        sharing = self._recordings.sharing
        generation_id = None
        if sharing is not None and len(key) <= MAX_KEY_CHARS:
            generation_id = await sharing.find_key(tenant, key)
        if generation_id is None:
            raise not_found()
        return generation_id, self._recordings.find(tenant, generation_id)

    def _known(
        self, tenant: str, generation_id: str, recording: Recording | None
    ) -> LiveGeneration | EndedGeneration | None:
        """Return what this process knows of a generation that it runs or has run."""
        if recording is not None and recording.ended is not None:
            return recording.ended
        return self._serving.generations.find(generation_id, tenant, time.monotonic())

    def _told(
        self, tenant: str, generation_id: str, recording: Recording | None
    ) -> generation_pb2.GetGenerationResponse | None:
        """Return where a generation is that this process runs, has run or is about to run; None for others."""
        found = self._known(tenant, generation_id, recording)
        if found is not None:
            return self._state(generation_id, found, recording)
        if recording is None or recording.runs_elsewhere:
            return None
        return generation_pb2.GetGenerationResponse(
            generation_id=generation_id,
            state=generation_pb2.GENERATION_STATE_QUEUED,
            model=recording.model,
            annotation=recording.policy.annotation,
        )

    async def _told_by_store(
        self, generation_id: str, facts: Mapping[str, bytes], sharing: Sharing
    ) -> generation_pb2.GetGenerationResponse:
        """Return what the store says of a generation that no replica knows. STORE_UNAVAILABLE if it may run."""
        if "state" in facts:
            return generation_pb2.GetGenerationResponse.FromString(facts["state"])
        if await sharing.is_alive(facts["owner"].decode()):
            raise ServiceError(
                Reason.STORE_UNAVAILABLE,
                "The server that runs this generation does not answer the others now.",
                retry_after_s=1.0,
            )
        return generation_pb2.GetGenerationResponse(
            generation_id=generation_id,
            model=facts.get("model", b"").decode(),
            state=generation_pb2.GENERATION_STATE_FAILED,
            failure_reason=error_reason_pb2.ERROR_REASON_GENERATION_LOST,
            annotation=facts.get("annotation", b""),
        )

    def _state(
        self, generation_id: str, found: LiveGeneration | EndedGeneration, recording: Recording | None
    ) -> generation_pb2.GetGenerationResponse:
        message = state_to_proto(generation_id, found, time.monotonic())
        if recording is not None:
            message.annotation = recording.policy.annotation
            if recording.log.last:
                message.first_sequence = recording.log.first
            if recording.expires_at_s is not None:
                message.expire_time.FromNanoseconds(round(recording.expires_at_s * 1e9))
        return message

    def _state_for_others(self, recording: Recording) -> bytes:
        if recording.ended is None:
            return b""
        state: bytes = self._state(recording.id, recording.ended, recording).SerializeToString()
        return state

    def _cancel(
        self, tenant: str, generation_id: str, recording: Recording | None
    ) -> generation_pb2.CancelGenerationResponse:
        """Stop what this process runs or is about to run."""
        found = self._known(tenant, generation_id, recording)
        state = GenerationState.CANCELLED if found is None else found.state
        if found is None and recording is not None:
            recording.interrupt(Cause.CANCEL)  # as soon as it runs
        elif isinstance(found, LiveGeneration) and not found.has_ended:
            found.interrupt(Cause.CANCEL)
            state = GenerationState.CANCELLED
        return generation_pb2.CancelGenerationResponse(state=generation_pb2.GenerationState.Name(state.value))

    async def _check_after(self, recording: Recording, after: int) -> None:
        """Raise INVALID_FIELD for the number of an event that has not been.

        Of a generation that runs elsewhere, what its own readers have may not be shown
        here yet: who has more waits for it.
        """
        newest, sharing = recording.log.last, self._recordings.sharing
        if recording.runs_elsewhere and sharing is not None:
            if after <= newest or not await sharing.has_ended(recording.id):
                return
            newest = max(newest, await sharing.newest(recording.id))
        elif recording.live is None and not recording.log.has_ended:
            return  # nobody knows yet where it runs
        if after > newest:
            raise invalid([Violation("after_sequence", f"must be at most {newest}, the newest event, got {after}")])

    def _accept(self, request: generation_pb2.GenerateRequest) -> tuple[GenerationRequest, Policy | None]:
        wanted, found = request_from_proto(request)
        found += violations(wanted)
        policy = policy_from_proto(request)
        if policy is not None:
            found += policy_violations(policy, self._recordings.limits)
        if found:
            raise invalid(found)
        return wanted, policy

    async def _generate_retained(
        self, wanted: GenerationRequest, policy: Policy, deadline: Deadline, call: CallRecord, context: Any
    ) -> None:
        recordings, reader_s = self._recordings, self._serving.limits.reader_s
        model = allowed_model(self._registry, wanted.model, call.identity)
        recording = recordings.joined(call.tenant, policy)
        if recording is not None:
            await follow(recording, 0, call, context, deadline=deadline, reader_s=reader_s, joins=True)
            return
        self._serving.drain.check()
        until = Deadline.after(self._deadlines.maximum_s) if policy.continues else deadline
        recording = recordings.start(_new_id(), wanted, model, until, call, policy)
        try:
            await follow(recording, 0, call, context, deadline=deadline, reader_s=reader_s, has_started_it=True)
        finally:
            # A line of its own tells of the generation.
            call.is_logged = recording.ended is not None
            call.trailers = recording.trailers

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
            f"Nothing was read for {self._serving.limits.reader_s:g} s; the generation was stopped.",
            metadata={"pendingEvents": str(live.outbox.waiting)},
        )

    async def _write_events(self, live: LiveGeneration, reader: ReaderWatch, call: CallRecord, context: Any) -> None:
        generation = live.generation
        started = started_of(live)
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


def _new_id() -> str:
    return f"gen_{secrets.token_hex(12)}"
