"""What a generation asks of its tenant's limits, what it has used in the end, and what a refused one is told. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from service.core.account import Closing, Opening
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.events import Usage
from service.tenancy.limits.rules import Rule, Rules
from service.tenancy.limits.windows import UNKNOWN_MS, Answer, Ask, Limit, State

__all__ = ["TOKEN_LIMITS", "Reservation", "asks_of", "check_size", "refusal", "reservation_of", "used_tokens"]

# What is reserved for a choice where neither request nor rule says anything: the models' own default.
_DEFAULT_OUTPUT_TOKENS: Final = 512
# When one of a tenant's streams ends nobody knows.
_STREAM_RETRY_S: Final = 1.0
TOKEN_LIMITS: Final = frozenset({Limit.TOKENS, Limit.DAY_TOKENS})
_WORDS: Final = {
    Limit.REQUESTS: "requests per minute",
    Limit.TOKENS: "tokens per minute",
    Limit.DAY_TOKENS: "tokens per day (UTC)",
    Limit.STREAMS: "generations at once",
}


@dataclass(frozen=True, slots=True)
class Reservation:
    """The tokens that a generation may use; `output` is over all its choices."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        """Prompt and output."""
        return self.prompt + self.output


def reservation_of(opening: Opening, rules: Rules) -> Reservation:
    """Return what is reserved for a generation.

    Of a choice that names no maximum it is the rules' default, and less where that
    alone would be above a limit: nobody has asked for it.
    """
    tenant, model, each = opening.identity.tenant, opening.model, opening.max_output_tokens
    if each is not None:
        return Reservation(opening.prompt_tokens, each * opening.choices)
    each = rules.default_output_tokens(tenant, model) or _DEFAULT_OUTPUT_TOKENS
    if (most := rules.max_output_tokens(tenant, model)) is not None:
        each = min(each, most)
    output = each * opening.choices
    for rule in (rules.of(tenant), rules.of_model(tenant, model)):
        for limit in (rule.tokens_per_minute, rule.tokens_per_day):
            if limit is not None:
                output = max(0, min(output, limit - opening.prompt_tokens))
    return Reservation(opening.prompt_tokens, output)


def asks_of(opening: Opening, rules: Rules, reservation: Reservation, prefix: str = "headrace") -> list[Ask]:
    """Return the limits that a generation is held against: its tenant's over all models, and those of its model.

    `prefix` begins the names of the counters.
    """
    tenant, model = opening.identity.tenant, opening.model
    # In braces what Redis may spread keys by: those of one request belong together.
    place = f"{prefix}:limits:{{tenant={quote(tenant, safe='')}}}"
    return [
        *_asks(rules.of(tenant), place, None, reservation.total),
        *_asks(rules.of_model(tenant, model), f"{place}:model={quote(model, safe='')}", model, reservation.total),
    ]


def _asks(rule: Rule, place: str, model: str | None, tokens: int) -> Iterator[Ask]:
    for limit, most, cost in (
        (Limit.REQUESTS, rule.requests_per_minute, 1),
        (Limit.TOKENS, rule.tokens_per_minute, tokens),
        (Limit.DAY_TOKENS, rule.tokens_per_day, tokens),
        (Limit.STREAMS, rule.concurrent_streams, 1),
    ):
        if most is not None:
            yield Ask(f"{place}:{limit.value}", limit, most, cost, model)


def check_size(opening: Opening, rules: Rules, asks: Sequence[Ask]) -> None:
    """Raise INVALID_FIELD for what no wait makes right: more output than may be, more tokens than a window has."""
    wanted = opening.max_output_tokens
    most = rules.max_output_tokens(opening.identity.tenant, opening.model)
    if wanted is not None and most is not None and wanted > most:
        what = f"at most {most} tokens by the limits of this tenant, got {wanted}"
        raise invalid([Violation("sampling.max_output_tokens", what)])
    for ask in asks:
        if ask.limit in TOKEN_LIMITS and ask.cost > ask.most:
            field = "input" if opening.prompt_tokens > ask.most else "sampling.max_output_tokens"
            what = f"prompt and output may take {ask.cost} tokens, and the limit of {_WORDS[ask.limit]} is {ask.most}"
            raise invalid([Violation(field, what)])


def refusal(opening: Opening, asks: Sequence[Ask], answer: Answer, headers: Sequence[tuple[str, str]]) -> ServiceError:
    """Return what the caller is told: of several limits in its way the one that takes longest."""
    ask, state = max(
        ((ask, state) for ask, state in zip(asks, answer.states, strict=True) if state.wait_ms),
        key=lambda pair: pair[1].wait_ms,
    )
    retry_after_s = _STREAM_RETRY_S if state.wait_ms == UNKNOWN_MS else state.wait_ms / 1000
    metadata = {"limit": ask.limit.value, "limitValue": str(ask.most)}
    if ask.model is not None:
        metadata["model"] = ask.model
    told = _told(ask, state)
    return ServiceError(
        Reason.QUOTA_EXHAUSTED if ask.limit is Limit.DAY_TOKENS else Reason.RATE_LIMITED,
        f"{told} {_advice(ask, retry_after_s)}",
        violations=(Violation(f"tenant:{opening.identity.tenant}", told),),
        metadata=metadata,
        retry_after_s=retry_after_s,
        headers=tuple(headers),
    )


def _told(ask: Ask, state: State) -> str:
    where = "" if ask.model is None else f" for model {ask.model}"
    asked = f", this request may take {ask.cost}" if ask.limit in TOKEN_LIMITS else ""
    return f"Limit reached{where} on {_WORDS[ask.limit]}: limit {ask.most}, used {state.used}{asked}."


def _advice(ask: Ask, retry_after_s: float) -> str:
    if ask.limit is Limit.STREAMS:
        return "Try again when one has ended."
    if ask.limit is Limit.DAY_TOKENS:
        return "Ask for less, or come again after midnight UTC."
    return f"Try again in {retry_after_s:.3g} s."


def used_tokens(reservation: Reservation, closing: Closing) -> int:
    """Return what a generation counts for, however it has ended.

    Nothing if the engine had not answered yet. Of a number that nobody told what was
    reserved for it is taken to be used.
    """
    if not _ran(closing.usage, closing):
        return 0
    prompt, output = closing.usage.prompt_tokens, closing.usage.output_tokens
    return (reservation.prompt if prompt is None else prompt) + (reservation.output if output is None else output)


def _ran(usage: Usage, closing: Closing) -> bool:
    return usage.prompt_tokens is not None or bool(usage.output_tokens) or closing.timing.ttft_s is not None
