"""One generation: admission, engine, text assembly, events, in one task.

The owner of everything that the request started: leaving `events` early, for
whatever reason, stops the engine's work and frees the slots.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Final

from service.admission.slots import Ticket
from service.backends.base import EngineFinished, EngineItem, EngineOutput, EngineRequest, EngineStarted
from service.catalog.model import Model
from service.core.assembly import MAX_DELTA_CHARS, Assembled, TextAssembler
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.events import ChoiceFinished, Completed, Delta, Event, FinishReason, Queued, Started, Usage
from service.core.request import GenerationRequest
from service.core.timing import StreamClock
from service.generation.calls import blamed_on_tools, parser_of, tells_reasoning_apart
from service.generation.choice import Choice
from service.generation.finish import SOFT_ENDS, events_without_run, finish_reason
from service.generation.fit import fit
from service.generation.kept import check_kept, is_checked
from service.generation.runs import open_runs
from service.generation.watch import Cause, Phase, Watch
from service.telemetry.instruments import record_first_token
from service.telemetry.trace import GenerationTrace

__all__ = ["Generation"]

# How often a waiting caller is told of its place.
_QUEUE_EVENT_S: Final = 1.0


@dataclass(slots=True)
class Generation:
    """One generation and, while and after it runs, the facts about it.

    `events` may be iterated once, inside `with watch`, in the task that created
    the watch. Times are `time.monotonic()`.
    """

    id: str
    request: GenerationRequest
    model: Model
    watch: Watch
    deadline: Deadline
    clock: StreamClock
    trace: GenerationTrace
    # Whose it is, as admission tells callers apart; empty for all who do not say.
    tenant: str = ""
    # Its place in the line, from the moment it has one.
    ticket: Ticket | None = None
    finish_reasons: list[FinishReason] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    completed: Completed | None = None
    _choices: dict[int, Choice] = field(default_factory=dict)
    _output_tokens: int | None = 0
    _reasoning_tokens: int = 0
    _prompt: str | tuple[int, ...] = ""
    _adds_special_tokens: bool = True
    _max_output_tokens: int | None = None

    async def events(self) -> AsyncGenerator[Event]:
        """Yield the events in contract order.

        Raises `ServiceError` for a refusal or a failure. CancelledError passes
        through after the engine was stopped; the caller asks `watch.failure()`
        whether one of the limits was behind it.
        """
        slots, output = self.model.slots, self.request.output
        count, priority = self.request.choice_count, self.request.priority
        slots.check_room(priority, self.tenant)
        slots.check_deadline(self.deadline.remaining_s(), count, priority=priority, tenant=self.tenant)
        self.watch.enter(Phase.PREPARE, time.monotonic())
        requests = await fit(self.request, self.model, self.deadline, self.id)
        self._prompt, self._adds_special_tokens = requests[0].prompt, requests[0].add_special_tokens
        self._max_output_tokens = requests[0].sampling.max_output_tokens
        # There may be fewer slots than when that was checked.
        taken = min(count, slots.running_limit)
        async with slots.enter(taken, priority=priority, tenant=self.tenant) as ticket:
            self.ticket, ahead = ticket, -1
            self.watch.enter(Phase.QUEUE, time.monotonic())
            if not ticket.is_granted:
                self.trace.waits()
            while not ticket.is_granted and not self.watch.ends_softly():
                if output.queue_events and (now_ahead := ticket.ahead) != ahead:
                    ahead = now_ahead
                    yield Queued(ahead, ticket.estimated_wait_s())
                    if self.watch.ends_softly():
                        break  # taken while the event waited for its reader
                try:
                    await ticket.wait(_QUEUE_EVENT_S if output.queue_events else None)
                except asyncio.CancelledError:
                    if not self.watch.took_soft():
                        raise
            if not ticket.is_granted:
                for event in self._without_run(requests[0]):
                    yield event
                return
            now_s = time.monotonic()
            self.clock.admitted_s = now_s
            self.watch.enter(Phase.ENGINE, now_s)
            self.trace.admitted(self.request, requests[0].sampling)
            headers = self.trace.headers()
            if headers:
                requests = [replace(r, trace_headers=headers) for r in requests]
            self._choices = {choice: self._open_choice(choice, request) for choice, request in enumerate(requests)}
            runs = open_runs(self.model.backend, requests)
            # One flat generator: an inner one would not be closed with this one.
            try:
                is_started, watch = False, self.watch
                while self._choices and watch.soft is None:
                    watch.enter(Phase.ENGINE, time.monotonic())
                    try:
                        choice, item = await runs.next()
                    except asyncio.CancelledError:
                        if watch.took_soft():
                            break
                        raise
                    except ServiceError as error:
                        raise blamed_on_tools(error, self.request) from error.__cause__
                    now_s = time.monotonic()
                    if not is_started:
                        is_started = True
                        yield self._started(item, requests[0])
                    if type(item) is EngineOutput:
                        state = self._choices[choice]
                        if item.tokens and self._is_full(state):
                            watch.enter(Phase.WORK, now_s)
                            await runs.stop(choice)
                            for event in self._finish(choice, state.flush(), FinishReason.LENGTH):
                                yield event
                            continue
                        assembled = self._on_output(state, item, now_s)
                        text, token_ids, logprobs, stop_sequence, stop_token_id, _ = assembled
                        if stop_sequence is not None or stop_token_id is not None:
                            watch.enter(Phase.WORK, now_s)
                            await runs.stop(choice)
                            await self._count_ahead(choice)
                            for event in self._finish(choice, assembled, FinishReason.STOP):
                                yield event
                        elif state.parser is not None:
                            for delta in state.deltas(assembled):
                                yield delta
                            if state.parser.is_complete:
                                watch.enter(Phase.WORK, now_s)
                                await runs.stop(choice)
                                await self._count_ahead(choice)
                                for event in self._finish(choice, Assembled(), FinishReason.STOP):
                                    yield event
                        elif len(text) > MAX_DELTA_CHARS:
                            for delta in state.deltas(assembled):
                                yield delta
                        elif text or token_ids or logprobs:
                            yield Delta(choice, text, token_ids, logprobs)
                    elif isinstance(item, EngineFinished):
                        if item.output_tokens is None:
                            watch.enter(Phase.WORK, now_s)
                            await self._count_ahead(choice)
                        reason, state = self._settle(choice, item), self._choices[choice]
                        rest = state.flush()
                        events = self._finish(choice, rest, reason)
                        if reason is FinishReason.STOP and not rest.is_stopped:
                            check_kept(self.request, state)
                        for event in events:
                            yield event
                if self._choices:
                    watch.enter(Phase.WORK, time.monotonic())
                    await runs.aclose()
                    if not is_started:
                        yield Started(prompt_tokens=None, seed=requests[0].sampling.seed or 0)
                    for choice in list(self._choices):
                        await self._count_ahead(choice)
                        for event in self._finish(
                            choice, self._choices[choice].flush(), SOFT_ENDS[watch.soft or Cause.TIME_LIMIT]
                        ):
                            yield event
                watch.enter(Phase.WORK, time.monotonic())
                yield await self._complete(len(requests))
            finally:
                # A soft cause that meets it is for the next wait, of which there is none.
                self.watch.enter(Phase.WORK, time.monotonic())
                await runs.aclose()

    @property
    def holds_back(self) -> bool:
        """True while text waits for what follows: it may become a stop string, or is part of a character."""
        return any(state.holds_back for state in self._choices.values())

    @property
    def output_tokens_so_far(self) -> int | None:
        """Tokens generated until now over all choices, also when the generation was cut; None if unknown."""
        counts = [self._output_tokens, *(state.output_tokens for state in self._choices.values())]
        return None if None in counts else sum(count for count in counts if count is not None)

    def _open_choice(self, number: int, request: EngineRequest) -> Choice:
        assembler = TextAssembler(
            request.stop_sequences, request.stop_token_ids, include_stop=self.request.stop.include_in_output
        )
        return Choice(
            number,
            assembler,
            parser_of(self.request, self.model, request.prompt),
            shows_ids=self.request.output.token_ids,
            keeps_raw=self.model.tokenizer is not None,
            keeps_answer=is_checked(self.request),
        )

    def _without_run(self, request: EngineRequest) -> list[Event]:
        """Return the events of a generation that ended while it waited. Raises DEADLINE_IN_QUEUE for the time limit."""
        if self.watch.soft is Cause.TIME_LIMIT:
            message = "The time limit passed while waiting for a free slot."
            raise ServiceError(Reason.DEADLINE_IN_QUEUE, message)
        choices = self.request.choice_count
        self.usage = Usage(output_tokens=0)
        self.finish_reasons += [FinishReason.CANCELLED] * choices
        self.completed = Completed(usage=self.usage, timing=self.clock.timing(time.monotonic(), 0, choices))
        return events_without_run(choices, request.sampling.seed or 0, self.completed)

    def _started(self, item: EngineItem, request: EngineRequest) -> Started:
        if isinstance(item, EngineStarted):
            self.usage = Usage(prompt_tokens=item.prompt_tokens, cached_prompt_tokens=item.cached_prompt_tokens)
            self.clock.engine_queue_s = item.queue_s or 0.0
        return Started(prompt_tokens=self.usage.prompt_tokens, seed=request.sampling.seed or 0)

    def _is_full(self, state: Choice) -> bool:
        """Return whether what comes next is above the limit: an engine that ignores it is cut here."""
        limit, tokens = self._max_output_tokens, state.output_tokens
        return limit is not None and tokens is not None and tokens >= limit

    def _on_output(self, state: Choice, item: EngineOutput, now_s: float) -> Assembled:
        if item.tokens or (item.tokens is None and item.data):
            if not self.watch.has_output:
                self.watch.has_output = True
                self.trace.first_token()
                self._record_first_token(now_s)
                if self.clock.admitted_s is not None:
                    self.model.slots.note_first_token(now_s - self.clock.admitted_s)
            self.clock.on_output(now_s)
        return state.feed(item)

    def _record_first_token(self, now_s: float) -> None:
        """Record how long the first token took, now: the end of a stream may be minutes away."""
        model, queue_s = self.model, self.clock.engine_queue_s
        admitted_s = now_s if self.clock.admitted_s is None else self.clock.admitted_s
        record_first_token(
            operation=self.trace.operation,
            provider=model.backend.info.provider,
            model=model.id,
            priority=self.request.priority,
            ttft_s=now_s - self.clock.received_s,
            queue_s=admitted_s - self.clock.received_s + queue_s,
            prefill_s=max(0.0, now_s - admitted_s - queue_s),
            context=self.trace.call_context,
        )

    def _settle(self, choice: int, item: EngineFinished) -> FinishReason:
        """Take over what only the engine's last item knows, and why it ended."""
        state = self._choices[choice]
        if item.output_tokens is not None:
            state.output_tokens = item.output_tokens
        if item.prompt_tokens is not None:
            self.usage = Usage(prompt_tokens=item.prompt_tokens, cached_prompt_tokens=item.cached_prompt_tokens)
        if item.engine_queue_s is not None:
            self.clock.engine_queue_s = item.engine_queue_s
        self.trace.engine_reported(item)
        return finish_reason(item.reason, state.output_tokens, self._max_output_tokens)

    async def _count_ahead(self, choice: int) -> None:
        """Count a choice's text by the configured tokenizer, where the engine did not; a long one in a thread."""
        state = self._choices[choice]
        if state.output_tokens is None and state.raw is not None:
            text = b"".join(state.raw).decode(errors="replace")
            state.output_tokens = await self.model.count_tokens(text, add_special_tokens=False)

    def _finish(self, choice: int, rest: Assembled, reason: FinishReason) -> list[Event]:
        """Close a choice: its last text, then its end. A stop match in `rest` wins over `reason`."""
        state = self._choices.pop(choice)
        events: list[Event] = list(state.deltas(rest, is_last=True))
        if rest.is_stopped:
            reason = FinishReason.STOP
        # A call that was cut is none to run: by a stop string, or by an engine that ended inside of it.
        if reason is FinishReason.STOP and state.parser and state.parser.calls and not state.parser.is_call_open:
            reason = FinishReason.TOOL_CALLS
        self.finish_reasons.append(reason)
        self._reasoning_tokens += state.reasoning_tokens
        tokens = state.output_tokens
        self._output_tokens = None if tokens is None or self._output_tokens is None else self._output_tokens + tokens
        events.append(
            ChoiceFinished(
                choice=choice,
                reason=reason,
                stop_sequence=rest.stop_sequence,
                stop_token_id=rest.stop_token_id,
                output_tokens=tokens,
            )
        )
        return events

    async def _complete(self, choices: int) -> Completed:
        now_s = time.monotonic()
        tells_reasoning = self._output_tokens is not None and tells_reasoning_apart(self.request, self.model)
        self.usage = replace(
            self.usage,
            output_tokens=self._output_tokens,
            reasoning_tokens=self._reasoning_tokens if tells_reasoning else None,
        )
        if self.usage.prompt_tokens is None:
            self.usage = replace(self.usage, prompt_tokens=await self._prompt_tokens())
        self.completed = Completed(usage=self.usage, timing=self.clock.timing(now_s, self._output_tokens, choices))
        return self.completed

    async def _prompt_tokens(self) -> int | None:
        if isinstance(self._prompt, tuple):
            return len(self._prompt)
        if self.model.tokenizer is None:
            return None
        return await self.model.count_tokens(self._prompt, add_special_tokens=self._adds_special_tokens)
