"""Where the events of a call come from: one generation of the service, or one for each prompt, filtered and merged."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

from gateway.fan_out import FanOut, Source
from gateway.openai.completion_events import BestOf, Echo, EventFilter
from gateway.openai.completions import CompletionPlan
from gateway.openai.errors import ApiError, Naming
from gateway.openai.requests import GenerationCall
from gateway.timeouts import Budget
from gateway.upstream import CallOptions, Upstream
from headrace.v1 import generation_pb2 as gen

__all__ = ["Events", "open_events"]

Events = AsyncIterator[gen.GenerateResponse]


def open_events(
    upstream: Upstream, call: GenerationCall, options: CallOptions, attach_to: str | None = None
) -> AbstractAsyncContextManager[Events]:
    """Return the events of `call` to enter and read, in the order that one generation has.

    `attach_to` is the id of a retained generation to read in place of a new one.

    Leaving the block cancels every generation behind them. ApiError for every
    failure of the service, of whichever prompt. All prompts share one budget: one
    that begins late gets what is left of it, of the deadline and of the time limit.
    """
    plan = call.plan
    if plan is None:
        if attach_to is not None:
            return upstream.attach(attach_to, options, call.naming)
        return upstream.generate(_limited(call.request, options.budget), options, call.naming)
    opening = partial(_open_prompt, upstream, call, plan, options, attach_to)
    return FanOut([Source(partial(opening, number), plan.choices) for number in range(len(plan.requests))])


@asynccontextmanager
async def _open_prompt(
    upstream: Upstream,
    call: GenerationCall,
    plan: CompletionPlan,
    options: CallOptions,
    attach_to: str | None,
    number: int,
) -> AsyncIterator[Events]:
    request = plan.requests[number]
    naming = _naming_of(call.naming, f"prompt[{number}]" if len(plan.requests) > 1 else "prompt")
    filters: list[EventFilter] = []
    if plan.picks_best:
        filters.append(BestOf(plan.choices, shows_logprobs=call.request.output.logprobs))
    if plan.echo:
        text = request.prompt or await _text_of(upstream, request, options, naming)
        filters.append(Echo(text, plan.choices))
    if attach_to is not None:
        opened = upstream.attach(attach_to, options, naming)
    else:
        opened = upstream.generate(_limited(request, options.budget), options, naming)
    async with opened as events:
        if not filters:
            yield events
            return
        async with aclosing(_filtered(events, filters)) as shown:
            yield shown


async def _filtered(events: Events, filters: Sequence[EventFilter]) -> AsyncGenerator[gen.GenerateResponse]:
    async for event in events:
        shown: Sequence[gen.GenerateResponse] = (event,)
        for one in filters:
            shown = [after for before in shown for after in one.feed(before)]
        for after in shown:
            yield after


async def _text_of(upstream: Upstream, request: gen.GenerateRequest, options: CallOptions, naming: Naming) -> str:
    try:
        return await upstream.detokenize(request.model, request.tokens.ids, options, naming, skip_special_tokens=True)
    except ApiError as error:
        if error.reason == "CAPABILITY_UNSUPPORTED":
            error.message = f"Unsupported value: 'echo' does not support true with token ids. {error.message}"
            error.param, error.code = "echo", "unsupported_value"
        raise


def _limited(request: gen.GenerateRequest, budget: Budget) -> gen.GenerateRequest:
    """Return the request with what is left of the caller's time limit, if there is one; set in place."""
    left_s = budget.time_limit_left_s(time.perf_counter())
    if left_s is not None:
        request.time_limit.FromMicroseconds(round(left_s * 1e6))
    return request


def _naming_of(naming: Naming, name: str) -> Naming:
    """Return the names for the prompt that the caller knows as `name`."""
    own = dict.fromkeys(("input", "prompt", "tokens", "tokens.ids", "token_ids"), name)
    return replace(naming, fields={**naming.fields, **own}, prompt=name)
