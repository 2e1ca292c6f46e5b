"""What a tenant may use, as values: one rule for all its models together, and one for a model besides.

Knows neither files nor counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict

__all__ = ["NO_RULE", "Rule", "Rules", "Table", "Values"]


class Values(TypedDict, total=False):
    """The limits that one table names; None for one that it lifts."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    tokens_per_day: int | None
    concurrent_streams: int | None
    max_output_tokens: int | None
    default_output_tokens: int | None
    queue_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Limits of one tenant, over all its models or of one; None for no limit.

    `max_output_tokens` is of one choice, `default_output_tokens` what is reserved for
    a choice whose request names no maximum. `queue_share` is a part of a model's
    waiting line, above 0 and at most 1.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_streams: int | None = None
    max_output_tokens: int | None = None
    default_output_tokens: int | None = None
    queue_share: float | None = None


NO_RULE = Rule()


@dataclass(frozen=True, slots=True)
class Table:
    """The limits of `[default]` or of one `[tenant.NAME]`, and of each of its models."""

    values: Values = field(default_factory=Values)
    models: Mapping[str, Values] = field(default_factory=dict)


class Rules:
    """The rules of every tenant. What a tenant's table leaves out is taken from the default's, limit by limit."""

    def __init__(self, default: Table | None = None, tenants: Mapping[str, Table] | None = None) -> None:
        default = default or Table()
        tables = dict[str | None, Table]((tenants or {}).items())
        tables[None] = Table()  # those whom no table names
        self._rules = {name: replace(Rule(**default.values), **table.values) for name, table in tables.items()}
        self.models = frozenset(model for table in (default, *tables.values()) for model in table.models)
        self._model_rules = {
            (name, model): replace(Rule(**default.models.get(model, {})), **table.models.get(model, {}))
            for name, table in tables.items()
            for model in self.models
        }

    def of(self, tenant: str) -> Rule:
        """Return the rule for all models of a tenant together."""
        return self._rules[self._name(tenant)]

    def of_model(self, tenant: str, model: str) -> Rule:
        """Return the rule that a tenant has for one model besides."""
        return self._model_rules.get((self._name(tenant), model), NO_RULE)

    def max_output_tokens(self, tenant: str, model: str) -> int | None:
        """Return the most that one choice may have; None for what the model itself allows."""
        both = self.of_model(tenant, model).max_output_tokens, self.of(tenant).max_output_tokens
        return min((most for most in both if most is not None), default=None)

    def default_output_tokens(self, tenant: str, model: str) -> int | None:
        """Return what is reserved for a choice that names no maximum; the model's own goes first."""
        own = self.of_model(tenant, model).default_output_tokens
        return self.of(tenant).default_output_tokens if own is None else own

    def queue_share(self, tenant: str, model: str) -> float | None:
        """Return the part of a model's line that a tenant may hold; the model's own goes first."""
        own = self.of_model(tenant, model).queue_share
        return self.of(tenant).queue_share if own is None else own

    def _name(self, tenant: str) -> str | None:
        return tenant if tenant in self._rules else None
