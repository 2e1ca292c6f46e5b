"""One generation: admission, engine, text assembly, events, in one task.

The owner of everything that the request started: leaving `events` early, for
whatever reason, stops the engine's work and frees the slots.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

from service.backends.base import EngineFinish, EngineFinished, EngineItem, EngineOutput, EngineRequest, EngineStarted
from service.catalog.model import Model
from service.core.assembly import MAX_DELTA_CHARS, Assembled, TextAssembler
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.events import ChoiceFinished, Completed, Delta, Event, FinishReason, Started, Usage
from service.core.request import GenerationRequest, Priority
from service.core.timing import StreamClock
from service.generation.calls import blamed_on_tools, is_forced, parser_of, tells_reasoning_apart
from service.generation.choice import Choice
from service.generation.fit import fit
from service.generation.kept import is_broken, is_checked
from service.generation.runs import open_runs
from service.generation.watch import Cause, Phase, Watch
from service.telemetry.trace import GenerationTrace

__all__ = ["Generation"]


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
        requests = await fit(self.request, self.model, self.deadline, self.id)
        self._prompt, self._adds_special_tokens = requests[0].prompt, requests[0].add_special_tokens
        is_batch = self.request.priority is Priority.BATCH
        async with self.model.slots.take(len(requests), batch=is_batch):
            now_s = time.monotonic()
            self.clock.admitted_s = now_s
            self.watch.enter(Phase.ENGINE, now_s)
            self.trace.admitted(self.request, requests[0].sampling)
            headers = self.trace.headers()
            if headers:
                requests = [replace(r, trace_headers=headers) for r in requests]
            self._choices = {choice: self._open_choice(choice, request) for choice, request in enumerate(requests)}
            self._max_output_tokens = requests[0].sampling.max_output_tokens
            runs = open_runs(self.model.backend, requests)
            # One flat generator: an inner one would not be closed with this one.
            try:
                is_started, has_time_limit = False, self.request.time_limit_s is not None
                while self._choices and not (has_time_limit and self.watch.is_time_limit_over):
                    self.watch.enter(Phase.ENGINE, time.monotonic())
                    try:
                        choice, item = await runs.next()
                    except asyncio.CancelledError:
                        if self.watch.took(Cause.TIME_LIMIT):
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
                            await runs.stop(choice)
                            for event in self._finish(choice, state.flush(), FinishReason.LENGTH):
                                yield event
                            continue
                        assembled = self._on_output(state, item, now_s)
                        text, token_ids, logprobs, stop_sequence, stop_token_id, _ = assembled
                        if stop_sequence is not None or stop_token_id is not None:
                            await runs.stop(choice)
                            await self._count_ahead(choice)
                            for event in self._finish(choice, assembled, FinishReason.STOP):
                                yield event
                        elif state.parser is not None:
                            for delta in state.deltas(assembled):
                                yield delta
                            if state.parser.is_complete:
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
                            await self._count_ahead(choice)
                        reason, state = self._settle(choice, item), self._choices[choice]
                        rest = state.flush()
                        events = self._finish(choice, rest, reason)
                        if reason is FinishReason.STOP and not rest.is_stopped:
                            self._check_kept(state)
                        for event in events:
                            yield event
                if self._choices:
                    await runs.aclose()
                    if not is_started:
                        yield Started(prompt_tokens=None, seed=requests[0].sampling.seed or 0)
                    for choice in list(self._choices):
                        await self._count_ahead(choice)
                        for event in self._finish(choice, self._choices[choice].flush(), FinishReason.TIME_LIMIT):
                            yield event
                yield await self._complete(len(requests))
            finally:
                await runs.aclose()

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

    def _started(self, item: EngineItem, request: EngineRequest) -> Started:
        if isinstance(item, EngineStarted):
            self.usage = Usage(prompt_tokens=item.prompt_tokens, cached_prompt_tokens=item.cached_prompt_tokens)
            self.clock.engine_queue_s = item.queue_s or 0.0
        return Started(prompt_tokens=self.usage.prompt_tokens, seed=request.sampling.seed or 0)

    def _check_kept(self, state: Choice) -> None:
        """Raise BACKEND_ERROR if an answer that its model ended is not what the engine was held to."""
        constraint = self.request.constraint
        if constraint is not None and state.answer is not None:
            is_kept = not is_broken(constraint, "".join(state.answer))
        else:
            is_kept = not is_forced(self.request) or (state.parser is not None and bool(state.parser.calls))
        if not is_kept:
            raise ServiceError(Reason.BACKEND_ERROR, "The engine did not keep to what the answer has to look like.")

    def _is_full(self, state: Choice) -> bool:
        """Return whether what comes next is above the limit: an engine that ignores it is cut here."""
        limit, tokens = self._max_output_tokens, state.output_tokens
        return limit is not None and tokens is not None and tokens >= limit

    def _on_output(self, state: Choice, item: EngineOutput, now_s: float) -> Assembled:
        if item.tokens or (item.tokens is None and item.data):
            if not self.watch.has_output:
                self.watch.has_output = True
                self.trace.first_token()
            self.clock.on_output(now_s)
        return state.feed(item)

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
        match item.reason:
            case EngineFinish.STOP:
                return FinishReason.STOP
            case EngineFinish.LENGTH:
                return FinishReason.LENGTH
            case EngineFinish.CONTEXT_LENGTH:
                return FinishReason.CONTEXT_LENGTH
            case EngineFinish.UNKNOWN:
                tokens, limit = state.output_tokens, self._max_output_tokens
                return FinishReason.LENGTH if tokens is not None and limit and tokens >= limit else FinishReason.STOP

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
