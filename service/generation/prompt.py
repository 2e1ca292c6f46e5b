"""What the engine gets to read: the text or the ids behind an input, for whoever runs it or counts it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from service.catalog.model import Model
from service.core.errors import Reason, ServiceError, Violation
from service.core.request import Chat, Input, Prompt, TokenIds
from service.generation.calls import missing_for_tools, shown_to_template

__all__ = ["EnginePrompt", "missing_for_input", "prompt_of", "unsupported"]

# Rendering so much takes about 5 ms; one of the largest messages takes seconds.
_SHORT_CHARS: Final = 64 * 1024
_FEW_MESSAGES: Final = 256


class EnginePrompt(NamedTuple):
    """Text or token ids. `add_special_tokens` is False for ids, and for a text that begins with its own start token."""

    content: str | tuple[int, ...]
    add_special_tokens: bool


def missing_for_input(asked: Input, model: Model) -> list[str]:
    """Return the fields of an input that `model` cannot serve, whatever is done with it."""
    if not isinstance(asked, Chat):
        return []
    return ["chat"] if model.template is None else missing_for_tools(asked, model)


def unsupported(fields: Sequence[str], model: Model) -> ServiceError:
    """Return the refusal of what `model` cannot do, by the names of the fields."""
    return ServiceError(
        Reason.CAPABILITY_UNSUPPORTED,
        f"Model {model.id!r} does not support: {', '.join(fields)}.",
        violations=[Violation(field, f"not supported by model {model.id!r}") for field in fields],
        metadata={"capability": ",".join(fields)},
    )


async def prompt_of(asked: Input, model: Model) -> EnginePrompt:
    """Return the prompt of an input that `model` can serve, a chat rendered by its template.

    Raises INVALID_FIELD for a chat that the template refuses. A long chat is rendered
    in a thread: cancelling ends the wait, and leaves the thread to its end.
    """
    match asked:
        case Prompt(text=text):
            return EnginePrompt(text, add_special_tokens=True)
        case TokenIds(ids=ids):
            return EnginePrompt(ids, add_special_tokens=False)
        case Chat() as chat:
            template = model.template
            assert template is not None  # checked as a capability
            shown = shown_to_template(chat)
            text = template.render(shown) if _is_short(shown) else await asyncio.to_thread(template.render, shown)
            return EnginePrompt(text, add_special_tokens=not template.writes_bos)


def _is_short(chat: Chat) -> bool:
    if len(chat.messages) > _FEW_MESSAGES:
        return False
    chars = sum(len(tool.description) + len(tool.parameters) for tool in chat.tools)
    for message in chat.messages:
        chars += len(message.content) + len(message.reasoning or "")
        chars += sum(len(call.arguments) for call in message.tool_calls)
    return chars <= _SHORT_CHARS
