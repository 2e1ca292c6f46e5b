"""The Jinja environment of chat templates: what Hugging Face's offers, sandboxed and bounded.

A template comes with a model file, so that it is somebody else's program: it
reaches no Python internals, changes none of its inputs, and its output, loops and
repetitions have limits.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sized
from datetime import datetime
from typing import Any, Final

from jinja2 import TemplateRuntimeError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["BoundedEnvironment", "OverrunError", "RefusalError", "StepBudget"]

# Far above any real chat: 4,096 messages with a handful of loops over each.
MAX_STEPS: Final = 1_000_000
# Longest text or list that one repetition (`'ab' * n`) may make.
MAX_REPEATED: Final = 1_000_000
MAX_POWER_BITS: Final = 4096
_BUDGET: Final = "_step_budget"
_BOUNDED: Final = "_bounded"


class RefusalError(TemplateRuntimeError):
    """The template called `raise_exception`: the chat is at fault."""


class OverrunError(SecurityError):
    """A rendering took more steps, or wrote more, than any real chat does."""


class StepBudget:
    """Loop steps that one rendering may still take."""

    __slots__ = ("_left",)

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps

    def take(self, steps: int) -> None:
        """Raise OverrunError once the budget is spent."""
        self._left -= steps
        if self._left < 0:
            raise OverrunError(f"the template loops more than {MAX_STEPS} times")

    @property
    def left(self) -> int:
        """Steps that may still be taken."""
        return self._left


class _Generation(Extension):
    """`{% generation %}` marks what a model said, for training. Its content is rendered, the mark ignored."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Every rendering needs `StepBudget` under `budget_variables`."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.filters["tojson"] = _to_json
        self.filters[_BOUNDED] = _bounded
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    @staticmethod
    def budget_variables() -> dict[str, Any]:
        """Return the variables that a rendering needs for its bounds."""
        return {_BUDGET: StepBudget()}

    def names_in(self, source: str) -> frozenset[str]:
        """Return the names of variables and functions that a template reads."""
        return frozenset(node.name for node in self.parse(source).find_all(nodes.Name) if node.ctx == "load")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _BOUNDED, [], [], None, None, lineno=loop.lineno)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse a repetition or a power that would fill the memory."""
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                is_repetition = isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int)
                if is_repetition and len(sequence) * times > MAX_REPEATED:
                    raise SecurityError(f"a repetition makes more than {MAX_REPEATED} items")
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_POWER_BITS:
            raise SecurityError("a power is too large")
        return super().call_binop(context, operator, left, right)


@pass_context
def _bounded(context: Context, items: Any) -> Any:
    budget: StepBudget = context[_BUDGET]
    if isinstance(items, Undefined):
        return items
    if isinstance(items, Sized):
        budget.take(len(items))
        return items
    # Without a length, as `map` and `select` give it: taken up to what is left.
    taken = list(itertools.islice(items, budget.left + 1))
    budget.take(len(taken))
    return taken


def _raise_exception(message: str) -> None:
    raise RefusalError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the signature that templates call
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return JSON as it is: Jinja's own filter escapes it for HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
