"""Generations that are retained: each runs in a task of its own into a log, which its callers follow.

Found by id, and by the key that a caller chose. A key belongs to the first
request that has it; what is asked again with it joins that one. Where replicas
share a store, a generation of another one has a recording here while it is read
here, whose log is filled from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import INVALID_SPAN

from service.catalog.model import Model
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.events import Completed, Delta, Event
from service.core.request import GenerationRequest
from service.core.sequence import EventSequence
from service.generation.limits import Limits
from service.generation.live import EndedGeneration, GenerationState, LiveGeneration
from service.generation.watch import Cause
from service.retention.log import EventLog
from service.retention.policy import Policy, RetentionLimits, key_reused
from service.rpc.call import CallRecord
from service.rpc.convert_events import event_to_proto, started_of
from service.rpc.drain import RETRY_AFTER_S
from service.rpc.inlet import Inlet
from service.rpc.serving import ServedGeneration, Serving
from service.sharing.names import Claim, End

if TYPE_CHECKING:  # needs the package of the store, which is optional
    from service.sharing.sharing import Sharing

__all__ = ["Recording", "Recordings"]

logger = logging.getLogger("headrace.service")

# Fills the log of a recording, without its end. Returns or raises how it failed.
Work = Coroutine[None, None, ServiceError | None]

# What a generation that has just begun needs to be shown.
_LOOKS: Final = 10
_LOOK_S: Final = 0.03
# Python's objects around a log, about.
_RECORDING_BYTES: Final = 1024
# The server went away, and the answer cannot be completed: a repetition has to run.
_SERVER_GONE: Final = frozenset({Reason.DRAINING, Reason.GENERATION_LOST})


class Recording:
    """One retained generation.

    Made before it runs, so that whoever comes with the same key in the same moment
    finds it. A reader is whoever follows the log; with the last one gone `on_orphaned`
    is called after `reattach_s`, unless the policy says that it goes on. `id` is final
    once there is an event. `live` is None before and behind its run, and where it runs
    elsewhere.
    """

    is_blocked = False  # as the reader of its generation: the log takes everything

    def __init__(self, generation_id: str, tenant: str, model: str, policy: Policy, limits: RetentionLimits) -> None:
        self.id = generation_id
        self.tenant = tenant
        self.model = model
        self.policy = policy
        self.log = EventLog(limits.events, limits.event_bytes)
        self.live: LiveGeneration | None = None
        self.ended: EndedGeneration | None = None
        self.runs_elsewhere = False
        self.expires_at_s: float | None = None  # Unix time
        self.headers: tuple[tuple[str, str], ...] = ()
        self.trailers: tuple[tuple[str, str], ...] = ()
        self.has_output = False
        self.was_in_line = False  # known at its end
        self.is_cancelled = False  # by its id
        self.is_abandoned = False
        self.is_published = False  # to other replicas
        self.on_orphaned: Callable[[Recording], None] | None = None
        self._reattach_s = limits.reattach_s
        self._readers = 0
        self._orphan: asyncio.TimerHandle | None = None
        self.stopped_by: Cause | None = None  # before it ran, or where it runs elsewhere
        self.task: asyncio.Task[None] | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes that it takes once it has ended."""
        return self.log.size + len(self.policy.annotation) + _RECORDING_BYTES

    @property
    def is_read(self) -> bool:
        """True while somebody follows the log."""
        return self._readers > 0

    def hurry(self) -> None:
        """Do nothing: nobody holds the log up."""

    def interrupt(self, cause: Cause) -> None:
        """End the generation for `cause`, if it has not ended; of one that runs elsewhere, the reading here."""
        if self.live is not None:
            self.live.interrupt(cause)
            return
        self.stopped_by = self.stopped_by or cause
        if self.runs_elsewhere and self.task is not None:
            self.task.cancel()

    @contextmanager
    def read(self) -> Iterator[EventLog]:
        """Count the block as a reader."""
        self._readers += 1
        self.end_orphan()
        try:
            yield self.log
        finally:
            self._readers -= 1
            if not self._readers:
                self.log.pull()
            self.watch_orphan()

    def watch_orphan(self) -> None:
        """Begin to count the time without a reader, if there is none."""
        goes_on = self.policy.continues and not self.runs_elsewhere
        if not self._readers and not self.log.has_ended and not goes_on and self.on_orphaned is not None:
            self.end_orphan()
            self._orphan = asyncio.get_running_loop().call_later(self._reattach_s, self.on_orphaned, self)

    def end_orphan(self) -> None:
        """Count it no more."""
        if self._orphan is not None:
            self._orphan.cancel()
            self._orphan = None

    async def run(
        self, serving: Serving, wanted: GenerationRequest, model: Model, deadline: Deadline, record: CallRecord
    ) -> None:
        """Run the generation into the log, without its end. Raises as a call does."""
        served = ServedGeneration(serving, self.id, wanted, model, deadline, record, self, is_counted=False)
        try:
            async with served as live:
                self.live, self.headers = live, tuple(record.headers)
                if self.stopped_by is not None:
                    live.interrupt(self.stopped_by)
                try:
                    await self._append_all(live, serving.limits, record)
                finally:
                    # The caller's call may be over long before.
                    if not record.span.is_recording():
                        record.span = INVALID_SPAN
        finally:
            self.live, self.ended, self.trailers = None, served.ended, tuple(record.trailers)
            self.was_in_line = served.live is not None and served.live.generation.ticket is not None
            self.is_cancelled = self.ended is not None and self.ended.state is GenerationState.CANCELLED

    async def _append_all(self, live: LiveGeneration, limits: Limits, record: CallRecord) -> None:
        started = started_of(live)
        sequence = EventSequence(live.generation.request.choice_count)
        append, is_complete = self.log.append, False

        def write(event: Event) -> None:
            nonlocal is_complete
            number = record.last_sequence = sequence.next(event)
            if type(event) is Delta:
                self.has_output = True
            elif type(event) is Completed:
                is_complete = True
            append(event_to_proto(event, number, started).SerializeToString())

        live.outbox = inlet = Inlet(limits, self.log, write, lambda: self._readers > 0)
        async with live:
            await inlet.ended()
        if not is_complete:
            raise asyncio.CancelledError  # it was stopped because nobody is there


class Recordings:
    """The retained generations that run, are kept or are read in this process.

    `state_of` gives what other replicas and later questions are told of one.
    """

    def __init__(self, serving: Serving, limits: RetentionLimits, sharing: Sharing | None = None) -> None:
        self.limits = limits
        self.sharing = sharing
        self.state_of: Callable[[Recording], bytes] = lambda _: b""
        self._serving = serving
        self._by_id: dict[str, Recording] = {}
        self._by_key: dict[tuple[str, str], Recording] = {}
        # In the order in which they ended.
        self._ended: dict[Recording, asyncio.TimerHandle] = {}
        self._ended_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ids(self) -> list[str]:
        """The ids of all of them."""
        return list(self._by_id)

    def joined(self, tenant: str, policy: Policy) -> Recording | None:
        """Return what a request with this key joins; None if it is the first. IDEMPOTENCY_MISMATCH for another one."""
        found = self._by_key.get((tenant, policy.key)) if policy.key else None
        if found is not None and found.policy.digest != policy.digest:
            raise key_reused(found.id)
        return found

    def start(
        self,
        generation_id: str,
        wanted: GenerationRequest,
        model: Model,
        deadline: Deadline,
        call: CallRecord,
        policy: Policy,
    ) -> Recording:
        """Run a generation into a log, and return it at once.

        Where another replica has the key, it becomes that one's: `id` changes, and
        nothing runs here.
        """
        recording = self._make(generation_id, call.tenant, model.id, policy)
        # What is told of the generation is told of a copy: the caller's call may be over long before.
        record = replace(call, on_end=None)
        self._run(recording, self._run_or_follow(recording, wanted, model, deadline, record), record)
        return recording

    def find(self, tenant: str, generation_id: str) -> Recording | None:
        """Return a tenant's recording by the id of its generation."""
        found = self._by_id.get(generation_id)
        return found if found is not None and found.tenant == tenant else None

    def find_by_key(self, tenant: str, key: str) -> Recording | None:
        """Return a tenant's recording by its key."""
        return self._by_key.get((tenant, key))

    def keeps_key(self, generation_id: str) -> bool:
        """Return whether a repetition with the key of this generation gets it."""
        found = self._by_id.get(generation_id)
        return found is not None and self._by_key.get((found.tenant, found.policy.key)) is found

    async def find_elsewhere(self, tenant: str, generation_id: str) -> Recording | None:
        """Return a recording of a generation that another replica runs or has run; None if none does."""
        sharing = self.sharing
        if sharing is None:
            return None
        facts = await sharing.find(tenant, generation_id)
        if facts is None and await sharing.ask("get", tenant, generation_id) is not None:
            # It has just begun, and its owner shows it in a moment.
            for _ in range(_LOOKS):
                await asyncio.sleep(_LOOK_S)
                if (facts := await sharing.find(tenant, generation_id)) is not None:
                    break
        if facts is None:
            return None
        if (found := self.find(tenant, generation_id)) is not None:
            return found  # of whoever asked at the same time
        model = facts.get("model", b"").decode()
        recording = self._make(generation_id, tenant, model, Policy(annotation=facts.get("annotation", b"")))
        recording.runs_elsewhere = True
        owner = facts["owner"].decode()
        self._run(recording, self._follow(recording, Claim(generation_id, owner, "")), None)
        return recording

    async def settle(self, limit_s: float) -> None:
        """Wait until what has ended is settled with the other replicas, no longer than `limit_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

    def _make(self, generation_id: str, tenant: str, model: str, policy: Policy) -> Recording:
        recording = Recording(generation_id, tenant, model, policy, self.limits)
        recording.on_orphaned = self._on_orphaned
        self._by_id[generation_id] = recording
        if policy.key:
            self._by_key[tenant, policy.key] = recording
        return recording

    def _run(self, recording: Recording, work: Work, record: CallRecord | None) -> None:
        recording.task = self._begin(self._to_its_end(recording, work, record), f"record {recording.id}")

    def _begin(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _to_its_end(self, recording: Recording, work: Work, record: CallRecord | None) -> None:
        """Await `work`; what it returns or raises is how the log ends. Counts as running until others know."""
        with self._serving.drain.running_under(recording):
            await self._end(recording, work, record)

    async def _end(self, recording: Recording, work: Work, record: CallRecord | None) -> None:
        failure: ServiceError | None = None
        try:
            failure = await work
        except ServiceError as error:
            failure = error
        except asyncio.CancelledError:
            recording.is_abandoned = True
            failure = _ended_early(recording)
        except Exception as error:
            request_id = "" if record is None else record.request_id
            logger.error(
                "unexpected failure", exc_info=error, extra={"request_id": request_id, "generation_id": recording.id}
            )
            failure = ServiceError(Reason.INTERNAL, f"Internal error; the server's log has it as {request_id}.")
        finally:
            recording.end_orphan()
            keep_s = self._keep_s(recording, failure)
            if not self._keeps_key(recording, failure):
                self._free_key(recording)
            recording.log.end(failure)
            if record is not None:
                record.error = None
            failure = recording.task = None  # it has passed this frame
            self._keep(recording, keep_s)
        await self._tell_others(recording, keep_s)

    def _keep_s(self, recording: Recording, failure: ServiceError | None) -> float:
        """Return how long its events are kept."""
        retain_s = recording.policy.retain_s
        # One that goes on by itself may have failed where nobody saw it, but for a refusal.
        is_told = not (recording.policy.continues and recording.was_in_line)
        is_nothing = recording.is_abandoned or (failure is not None and not recording.log.last and is_told)
        return 0.0 if is_nothing else self.limits.retain_s if retain_s is None else retain_s

    def _keeps_key(self, recording: Recording, failure: ServiceError | None) -> bool:
        """Return whether a repetition gets this one: it failed with something to show, or did not fail."""
        if failure is None:
            return True
        return recording.has_output and not recording.is_abandoned and failure.reason not in _SERVER_GONE

    async def _run_or_follow(
        self, recording: Recording, wanted: GenerationRequest, model: Model, deadline: Deadline, record: CallRecord
    ) -> ServiceError | None:
        policy, sharing = recording.policy, self.sharing
        if sharing is not None:
            if policy.key:
                theirs = await sharing.claim(
                    recording.tenant, policy.key, policy.digest.hex(), recording.id, self.keeps_key
                )
                if theirs is not None:
                    self._by_id.pop(recording.id, None)
                    recording.id = theirs.generation_id
                    self._by_id.setdefault(recording.id, recording)
                    return await self._follow(recording, theirs)
            facts = {
                "tenant": recording.tenant.encode(),
                "model": recording.model.encode(),
                "annotation": policy.annotation,
            }
            recording.is_published = True
            sharing.publish(recording.id, recording.log, facts, _shared_key(recording))
        await recording.run(self._serving, wanted, model, deadline, record)
        return None

    async def _follow(self, recording: Recording, theirs: Claim) -> ServiceError | None:
        """Fill the log with what another replica shows; return how that one failed."""
        sharing = self.sharing
        assert sharing is not None
        recording.runs_elsewhere = True
        ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()

        def on_end(end: End) -> None:
            if not ended.done():
                ended.set_result(end)

        sharing.follow(theirs.generation_id, theirs.owner, recording.log, on_end, lambda: recording.is_read)
        recording.watch_orphan()
        try:
            end = await ended
        finally:
            sharing.unfollow(theirs.generation_id, recording.log)
        recording.is_cancelled = end.is_cancelled
        return end.failure

    async def _tell_others(self, recording: Recording, keep_s: float) -> None:
        sharing, policy = self.sharing, recording.policy
        if sharing is None or recording.runs_elsewhere:
            return
        failure = recording.log.failure() if recording.log.has_failed else None
        has_key = self._by_key.get((recording.tenant, policy.key)) is recording
        if policy.key and not has_key:
            await sharing.free(recording.tenant, policy.key, recording.id, policy.digest.hex())
        if not recording.is_published:
            return
        await sharing.finish(
            recording.id,
            recording.log.last,
            End(failure, is_cancelled=recording.is_cancelled),
            self.state_of(recording),
            _shared_key(recording) if has_key else None,
            keep_s,
        )

    def _on_orphaned(self, recording: Recording) -> None:
        if recording.runs_elsewhere:
            recording.interrupt(Cause.CALLER)
        elif self.sharing is None:
            self._stop(recording)
        else:
            self._begin(self._stop_unless_read(recording, self.sharing), f"orphan {recording.id}")

    async def _stop_unless_read(self, recording: Recording, sharing: Sharing) -> None:
        if await sharing.has_readers(recording.id):
            recording.watch_orphan()
        elif not recording.is_read:
            self._stop(recording)

    def _stop(self, recording: Recording) -> None:
        # Who comes with its key from now on does not get what is being stopped.
        self._free_key(recording)
        recording.interrupt(Cause.CALLER)

    def _keep(self, recording: Recording, keep_s: float) -> None:
        if keep_s == 0 or recording.runs_elsewhere:
            self._forget(recording)
            return
        recording.expires_at_s = time.time() + keep_s
        self._ended[recording] = asyncio.get_running_loop().call_later(keep_s, self._forget, recording)
        self._ended_bytes += recording.kept_bytes
        while self._ended_bytes > self.limits.ended_bytes:
            self._forget(next(iter(self._ended)))

    def _forget(self, recording: Recording) -> None:
        if self._by_id.get(recording.id) is recording:
            del self._by_id[recording.id]
        self._free_key(recording)
        timer = self._ended.pop(recording, None)
        if timer is not None:
            timer.cancel()
            self._ended_bytes -= recording.kept_bytes

    def _free_key(self, recording: Recording) -> None:
        key = (recording.tenant, recording.policy.key)
        if self._by_key.get(key) is recording:
            del self._by_key[key]


def _shared_key(recording: Recording) -> tuple[str, str, str] | None:
    """Return tenant, key and digest, as other replicas know them; None if it has no key."""
    policy = recording.policy
    return (recording.tenant, policy.key, policy.digest.hex()) if policy.key else None


def _ended_early(recording: Recording) -> ServiceError:
    """Return what the readers of a recording are told that was stopped."""
    if recording.stopped_by is Cause.DRAIN:
        return ServiceError(
            Reason.DRAINING,
            "The server is shutting down; the generation runs at another one, and can be joined there.",
            retry_after_s=RETRY_AFTER_S,
        )
    return ServiceError(Reason.GENERATION_NOT_FOUND, "The generation was stopped: nobody read it.")
