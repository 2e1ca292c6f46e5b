"""The instruments of limits: who was refused by which, and whether replicas count together."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import metrics

from runtime import metrics as table
from runtime import semconv

__all__ = ["observe_shared", "record_limited", "record_shared"]

_meter = metrics.get_meter("headrace.service")
_limited = table.LIMITED.counter(_meter)
# Empty where no store is set.
_is_shared: list[bool] = []


def record_limited(limit: str, model: str) -> None:
    """Record one refusal. `limit` is a name of the limits file, `model` a served id."""
    _limited.add(1, {semconv.LIMIT: limit, semconv.GEN_AI_REQUEST_MODEL: model})


def record_shared(is_shared: bool) -> None:  # noqa: FBT001 - a callback's only argument
    """Note whether the store of limits answers now."""
    _is_shared[:] = [is_shared]


def observe_shared(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
    """Return 1 while replicas count together, 0 while each counts for itself; nothing where there is no store."""
    return [metrics.Observation(int(is_shared)) for is_shared in _is_shared]


table.LIMITS_SHARED.gauge(_meter, observe_shared)
