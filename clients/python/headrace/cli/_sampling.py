"""The options that shape a generation, shared by `generate` and `chat`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from headrace import RequestFields
from headrace._requests import PRIORITIES, build_request

__all__ = ["sampling_options"]

# No ranges here: the service knows them, and names all violations at once.
OPTIONS: Final = (
    click.option("--model", help="Model id or alias.  [default: the first model that is ready]"),
    click.option("--max-tokens", "max_output_tokens", type=int, help="Output tokens at most."),
    click.option("--temperature", type=float, help="0 is greedy."),
    click.option("--top-p", type=float),
    click.option("--top-k", type=int),
    click.option("--seed", type=int, help="Makes sampling repeatable."),
    click.option("--stop", multiple=True, help="Stop at this text (repeatable)."),
    click.option(
        "--time-limit",
        "time_limit_s",
        type=float,
        help="Seconds after which the text ends early; --timeout ends the call as failed.",
    ),
    click.option("--priority", type=click.Choice(list(PRIORITIES)), help="batch waits behind interactive requests."),
    click.option("--queue", "queue_events", is_flag=True, help="Show the place in the waiting line on standard error."),
)


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets `model` and the rest as `fields`."""

    @functools.wraps(command)
    def with_fields(
        *,
        max_output_tokens: int | None,
        temperature: float | None,
        top_p: float | None,
        top_k: int | None,
        seed: int | None,
        stop: tuple[str, ...],
        time_limit_s: float | None,
        priority: str | None,
        queue_events: bool,
        **options: Any,
    ) -> None:
        fields: RequestFields = {}
        if max_output_tokens is not None:
            fields["max_output_tokens"] = max_output_tokens
        if temperature is not None:
            fields["temperature"] = temperature
        if top_p is not None:
            fields["top_p"] = top_p
        if top_k is not None:
            fields["top_k"] = top_k
        if seed is not None:
            fields["seed"] = seed
        if stop:
            fields["stop"] = stop
        if time_limit_s is not None:
            fields["time_limit_s"] = time_limit_s
        if priority is not None:
            fields["priority"] = priority
        if queue_events:
            fields["queue_events"] = True
        _check(fields)
        command(fields=fields, **options)

    for option in reversed(OPTIONS):
        with_fields = option(with_fields)
    return with_fields


def _check(fields: RequestFields) -> None:
    """Refuse what no message can hold, such as a number of too many digits."""
    try:
        build_request({**fields, "prompt": ""})
    except TypeError as error:
        raise click.UsageError(str(error)) from error
