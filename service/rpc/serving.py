"""One generation from its account to its report, whoever runs and reads it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final

from runtime.slo import Objectives
from service.catalog.model import Model
from service.core.account import Account, Accounts, Opening, estimated_prompt_tokens
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.events import FinishReason
from service.core.request import GenerationRequest
from service.core.timing import StreamClock
from service.generation.limits import Limits
from service.generation.live import EndedGeneration, LiveGeneration, LiveGenerations, Reader
from service.generation.run import Generation
from service.generation.watch import Watch
from service.rpc.call import CallRecord
from service.rpc.drain import Drain
from service.rpc.health import HealthMonitor
from service.rpc.report import closing_of, closing_of_none, ended_generation, report
from service.telemetry.instruments import active_requests
from service.telemetry.trace import GenerationTrace

__all__ = ["ServedGeneration", "Serving"]

# After these the engine's health is looked at without waiting for the next round.
_ENGINE_FAULTS: Final = frozenset(
    {Reason.BACKEND_UNAVAILABLE, Reason.BACKEND_ERROR, Reason.FIRST_TOKEN_TIMEOUT, Reason.TOKEN_GAP_TIMEOUT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What the generations of a server share."""

    drain: Drain
    monitor: HealthMonitor
    limits: Limits
    accounts: Accounts
    objectives: Objectives = field(default_factory=Objectives)
    generations: LiveGenerations = field(default_factory=LiveGenerations)


class ServedGeneration:
    """Async context manager: opens the account, makes the generation known, and at its end settles and reports.

    The block runs the generation (`async with live`); what it raises is how the call
    counts. `ended` is what is remembered of it, None until then. Opening may raise
    the refusal of a limit. `is_counted`: a drain waits for it and may end it; not
    where it does so with what runs the block.
    """

    __slots__ = ("_account", "_call", "_deadline", "_id", "_is_counted", "_model", "_reader", "_serving", "_stack",
                 "_wanted", "ended", "live")  # fmt: skip

    def __init__(
        self,
        serving: Serving,
        generation_id: str,
        wanted: GenerationRequest,
        model: Model,
        deadline: Deadline,
        call: CallRecord,
        reader: Reader,
        *,
        is_counted: bool = True,
    ) -> None:
        self._is_counted = is_counted
        self._serving = serving
        self._id = generation_id
        self._wanted = wanted
        self._model = model
        self._deadline = deadline
        self._call = call
        self._reader = reader
        self._account: Account | None = None
        self._stack = ExitStack()
        self.live: LiveGeneration | None = None
        self.ended: EndedGeneration | None = None

    async def __aenter__(self) -> LiveGeneration:
        call, serving = self._call, self._serving
        wanted = self._within_limits(self._wanted)
        created_at_s = time.time()
        self._account = await serving.accounts.open(
            Opening(
                generation_id=self._id,
                request_id=call.request_id,
                identity=call.identity,
                model=self._model.id,
                priority=wanted.priority,
                choices=wanted.choice_count,
                prompt_tokens=estimated_prompt_tokens(wanted),
                max_output_tokens=self._wanted.sampling.max_output_tokens,
                end_user=wanted.end_user,
                received_at_s=created_at_s,
            )
        )
        call.headers = self._account.headers
        try:
            return self._begin(wanted, created_at_s)
        except BaseException as error:
            # Nobody leaves a block that was not entered.
            call.note(error)
            await self._account.close(closing_of_none(call, created_at_s))
            raise

    def _begin(self, wanted: GenerationRequest, created_at_s: float) -> LiveGeneration:
        call, serving = self._call, self._serving
        time_limit = None if wanted.time_limit_s is None else Deadline.after(wanted.time_limit_s, call.received_s)
        trace = GenerationTrace(self._id, self._model.id, self._model.backend.info, call.context)
        watch = Watch(self._deadline, serving.limits, time_limit, wanted.priority)
        clock = StreamClock(call.received_s)
        generation = Generation(self._id, wanted, self._model, watch, self._deadline, clock, trace, tenant=call.tenant)
        live = self.live = LiveGeneration(
            generation, watch, serving.limits, self._reader, tenant=call.tenant, created_at_s=created_at_s
        )
        serving.generations.add(live)
        if self._is_counted:
            self._stack.enter_context(serving.drain.running_under(live))
        active_requests.add(1)  # last: who does not get so far is not counted
        return live

    def _within_limits(self, wanted: GenerationRequest) -> GenerationRequest:
        """Return the request with the caller's own maximum of output where it names none. INVALID_FIELD above that."""
        sampling, model = wanted.sampling, self._model
        most = self._serving.accounts.max_output_tokens(self._call.identity, model.id)
        if most is None or sampling.max_output_tokens is not None:
            return wanted  # opening the account looks at a maximum that is named
        if sampling.min_output_tokens is not None and sampling.min_output_tokens > most:
            raise invalid(
                [
                    Violation(
                        "sampling.min_output_tokens",
                        f"must be at most {most}, the most that this tenant gets of this model, "
                        f"got {sampling.min_output_tokens}",
                    )
                ]
            )
        if most >= model.default_max_output_tokens:
            return wanted
        return replace(wanted, sampling=replace(sampling, max_output_tokens=most))

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        call, live, serving = self._call, self.live, self._serving
        assert live is not None
        assert self._account is not None
        # What runs is waited for at the end of the process until it is settled.
        with self._stack:
            if exc is not None:
                call.note(exc)
                if isinstance(exc, ServiceError) and exc.reason in _ENGINE_FAULTS:
                    serving.monitor.look_at(self._model)
            elif FinishReason.CANCELLED in live.generation.finish_reasons and call.outcome == "completed":
                call.outcome = "cancelled"
            active_requests.add(-1)
            self.ended = ended_generation(live, call)
            serving.generations.end(self._id, self.ended)
            report(call, live, serving.objectives)
            live.let_go()
            await self._account.close(closing_of(live, call))
