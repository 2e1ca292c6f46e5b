"""One served model: its engine, its template, its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from service.admission.limits import AdmissionLimits
from service.admission.slots import Slots
from service.backends.base import Backend, Feature, Health
from service.backends.tokenizer import EngineTokenizer
from service.core.request import Chat, Sampling
from service.parsing import ReasoningFormat, ToolFormat
from service.tokens import read_text

__all__ = ["Model", "Template", "Tokenizer"]


class Template(Protocol):
    """A chat template; `service.templates` has the implementation."""

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        """Strings that end a turn, in addition to what the request asks for."""
        ...

    @property
    def knows_tools(self) -> bool:
        """True if it shows tools to the model."""
        ...

    @property
    def writes_bos(self) -> bool:
        """True if the rendered text begins with the model's own start token."""
        ...

    def render(self, chat: Chat) -> str:
        """Return the prompt. Raises INVALID_FIELD if the template refuses the chat."""
        ...


class Tokenizer(Protocol):
    """Counts tokens for an engine that does not."""

    @property
    def longest_token_bytes(self) -> int | None:
        """No token stands for more of a text than so many bytes of UTF-8; None if that is not known."""
        ...

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        """Return the length of `text` in tokens."""
        ...


@dataclass(slots=True, weakref_slot=True, kw_only=True, eq=False)
class Model:
    """One model as it is served.

    `template` is None for a model without chat. `max_context_tokens` is None
    when neither the engine nor the configuration says. `tool_format` and
    `reasoning_format` are how its answers are read; None if they are not parsed.
    `health` is what the monitor saw last. `limits_for` are the bounds of admission for
    an engine that runs so many at once; None where that is declared.
    """

    id: str
    backend: Backend
    slots: Slots
    aliases: tuple[str, ...] = ()
    owned_by: str = "headrace"
    created_at_s: float = 0.0
    template: Template | None = None
    tool_format: ToolFormat | None = None
    reasoning_format: ReasoningFormat | None = None
    tokenizer: Tokenizer | None = None
    # Stands in for the engine's own where that is not to be had.
    declared_tokenizer: EngineTokenizer | None = None
    stop_sequences: tuple[str, ...] = ()
    max_context_tokens: int | None = None
    max_output_tokens: int = 4096
    default_max_output_tokens: int = 512
    max_choices: int = 8
    default_sampling: Sampling = field(default_factory=Sampling)
    health: Health = Health.LOADING
    limits_for: Callable[[int], AdmissionLimits] | None = None

    def follow_engine(self) -> bool:
        """Have as many slots as the engine says now that it runs; return whether that changed anything.

        An engine that comes after the service, or is loaded anew, says so late.
        """
        told = self.backend.info.max_running
        if self.limits_for is None or told is None or told == self.slots.running_limit:
            return False
        self.slots.resize(self.limits_for(told))
        return True

    @property
    def can_call_tools(self) -> bool:
        """True if its template shows tools and its calls are parsed."""
        return self.template is not None and self.template.knows_tools and self.tool_format is not None

    @property
    def can_constrain(self) -> bool:
        """True if any output constraint is served."""
        features = self.backend.info.features
        return bool(
            features & {Feature.JSON_OBJECT, Feature.JSON_SCHEMA, Feature.REGEX, Feature.GRAMMAR, Feature.CHOICE}
        )

    @property
    def open_tokenizer(self) -> EngineTokenizer | None:
        """The engine's own tokenizer, else the declared one; None if texts cannot be tokenized for a caller."""
        return self.backend.tokenizer or self.declared_tokenizer

    def fewest_tokens(self, size_bytes: int) -> int:
        """Return how many tokens a text of this size has at least, without looking at it; 0 if nothing is known."""
        counter = self.backend.info if self.tokenizer is None else self.tokenizer
        longest = counter.longest_token_bytes
        return -(-size_bytes // longest) if longest else 0

    async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
        """Return the prompt's length in tokens by the configured tokenizer or the engine; None if neither can.

        Raises what `Backend.count_tokens` does.
        """
        if self.tokenizer is not None:
            return await read_text(self.tokenizer.count, prompt, add_special_tokens=add_special_tokens)
        return await self.backend.count_tokens(prompt, add_special_tokens=add_special_tokens)
