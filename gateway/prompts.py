"""Where the events of a call come from: one generation of the service, or one for each prompt, filtered and merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

from gateway.fan_out import FanOut, Source
from gateway.openai.completion_events import BestOf, Echo, EventFilter
from gateway.openai.completions import CompletionPlan
from gateway.openai.errors import ApiError, Naming, from_upstream
from gateway.openai.requests import GenerationCall
from gateway.upstream import CallOptions, Upstream
from headrace.v1 import generation_pb2 as gen

__all__ = ["Events", "open_events"]

Events = AsyncIterator[gen.GenerateResponse]


def open_events(upstream: Upstream, call: GenerationCall, options: CallOptions) -> AbstractAsyncContextManager[Events]:
    """Return the events of `call` to enter and read, in the order that one generation has.

    Leaving the block cancels every generation behind them. ApiError for every
    failure of the service, of whichever prompt.
    """
    plan = call.plan
    if plan is None:
        return upstream.generate(call.request, options, call.naming)
    # One deadline for all prompts, also for those that begin late.
    ends_s = asyncio.get_running_loop().time() + options.timeout_s
    opening = partial(_open_prompt, upstream, call, plan, options, ends_s)
    return FanOut([Source(partial(opening, number), plan.choices) for number in range(len(plan.requests))])


@asynccontextmanager
async def _open_prompt(
    upstream: Upstream, call: GenerationCall, plan: CompletionPlan, options: CallOptions, ends_s: float, number: int
) -> AsyncIterator[Events]:
    request = plan.requests[number]
    naming = _naming_of(call.naming, f"prompt[{number}]" if len(plan.requests) > 1 else "prompt")
    filters: list[EventFilter] = []
    if plan.picks_best:
        filters.append(BestOf(plan.choices, shows_logprobs=call.request.output.logprobs))
    if plan.echo:
        text = request.prompt or await _text_of(upstream, request, _remaining(options, ends_s), naming)
        filters.append(Echo(text, plan.choices))
    async with upstream.generate(request, _remaining(options, ends_s), naming) as events:
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


def _remaining(options: CallOptions, ends_s: float) -> CallOptions:
    """Return the options with the time that is left. ApiError (504) if none is."""
    left_s = ends_s - asyncio.get_running_loop().time()
    if left_s <= 0:
        raise from_upstream("DEADLINE_EXCEEDED", None, "")
    return replace(options, timeout_s=left_s)


def _naming_of(naming: Naming, name: str) -> Naming:
    """Return the names for the prompt that the caller knows as `name`."""
    own = dict.fromkeys(("input", "prompt", "tokens", "tokens.ids", "token_ids"), name)
    return replace(naming, fields={**naming.fields, **own}, prompt=name)
