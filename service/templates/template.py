"""One chat template, compiled once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jinja2 import TemplateSyntaxError

from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.request import Chat, ChatMessage, ReasoningEffort, Role, Tool, ToolCall
from service.templates.conversation import Conversation
from service.templates.environment import BoundedEnvironment, OverrunError, RefusalError

__all__ = ["ChatTemplate", "TemplateError"]

# The contract bounds a request at some tens of MB; a prompt of this size fits no window.
MAX_RENDERED_CHARS: Final = 16 * 1024 * 1024
_ENVIRONMENT: Final = BoundedEnvironment()


class TemplateError(Exception):
    """A template cannot be used at all; the text says where and why."""


class ChatTemplate:
    """A template and the facts of its model.

    `origin` names the source in messages. `bos_text` and `eos_text` are the
    model's, and are what the template sees as `bos_token` and `eos_token`.
    `control_texts` are disarmed in messages, together with those that the
    template writes itself. Raises `TemplateError` on faulty syntax.
    """

    def __init__(
        self,
        source: str,
        *,
        origin: str,
        bos_text: str = "",
        eos_text: str = "",
        stop_sequences: tuple[str, ...] = (),
        control_texts: Iterable[str] = (),
    ) -> None:
        try:
            self._template = _ENVIRONMENT.from_string(source)
            self._names = _ENVIRONMENT.names_in(source)
        except TemplateSyntaxError as error:
            raise TemplateError(f"{origin}:{error.lineno}: {error.message}") from None
        except RecursionError:
            raise TemplateError(f"{origin}: the template is nested too deeply") from None
        self._source = source
        self._bos_text = bos_text
        self._eos_text = eos_text
        self._stop_sequences = stop_sequences
        self._conversation = Conversation.of(source, (*control_texts, bos_text, eos_text))
        if "tool_calls" in source and self._wants_text_arguments():
            self._conversation = dataclasses.replace(self._conversation, has_text_arguments=True)
        self._writes_bos = self._finds_bos(source)

    @property
    def source(self) -> str:
        """The template's own text."""
        return self._source

    @property
    def knows_tools(self) -> bool:
        """True if it shows tools to the model."""
        return "tools" in self._names

    @property
    def knows_reasoning_effort(self) -> bool:
        """True if the effort makes a difference: it takes the level, or lets reasoning be switched off."""
        return not self._names.isdisjoint({"reasoning_effort", "enable_thinking"})

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        """Strings that end the model's turn, in addition to its own end token."""
        return self._stop_sequences

    @property
    def writes_bos(self) -> bool:
        """True if the text begins with the model's start token, so that the tokenizer must not add one."""
        return self._writes_bos

    def render(self, chat: Chat, *, add_generation_prompt: bool = True) -> str:
        """Return the prompt.

        Raises INVALID_FIELD on `chat.messages` with the template's own reason if it
        refuses the conversation, or if that makes it loop or write beyond all bounds;
        on `chat.template_args` or `chat.tools` if it fails with them and not without;
        and INTERNAL if it fails by itself. May take as long as the texts are long.
        """
        taken = _OWN_NAMES | {"tools"} if chat.tools else _OWN_NAMES
        for name in sorted(taken & chat.template_args.keys()):
            raise invalid([Violation(f"chat.template_args[{name}]", "is set by the server")])
        try:
            return self._rendered(chat, add_generation_prompt=add_generation_prompt)
        except RefusalError as refusal:
            description = f"refused by the chat template: {refusal.message}"
            raise invalid([Violation("chat.messages", description)]) from None
        # Whatever else a foreign program may raise.
        except Exception as error:
            field = self._blamed(chat, error)
            if field is not None:
                raise invalid([Violation(field, f"the chat template failed: {error}")]) from error
            detail = f"{type(error).__name__}: {error}"
            raise ServiceError(
                Reason.INTERNAL, "The chat template of this model failed on this conversation.", detail=detail
            ) from error

    def _rendered(self, chat: Chat, *, add_generation_prompt: bool = True) -> str:
        return self._bounded(
            {
                # Templates ask `documents is none`, which an undefined name is not.
                "documents": None,
                "tools": self._conversation.tools(chat),
                **self._effort(chat.reasoning_effort),
                **{name: _plain(value) for name, value in chat.template_args.items()},
                **_ENVIRONMENT.budget_variables(),
                "messages": self._conversation.messages(chat),
                "bos_token": self._bos_text,
                "eos_token": self._eos_text,
                "add_generation_prompt": add_generation_prompt,
            }
        )

    def _blamed(self, chat: Chat, error: Exception) -> str | None:
        """Return the field that makes the template fail; None if that is its own fault."""
        less, given = chat, [field for field in _EXTRAS if getattr(chat, field)]
        for field in given:
            less = dataclasses.replace(less, **{field: _EXTRAS[field]})
            if not self._fails(less):
                return f"chat.{field}"
        if isinstance(error, OverrunError):
            return None if self._fails(_QUESTION) else "chat.messages"
        # A template that fails without them on any conversation may well need them.
        return f"chat.{given[0]}" if given and self._fails(_QUESTION) else None

    def _fails(self, chat: Chat) -> bool:
        try:
            self._rendered(chat)
        except RefusalError:
            return False
        except Exception:  # whatever a foreign program may raise
            return True
        return False

    def _effort(self, effort: ReasoningEffort | None) -> dict[str, Any]:
        if effort is None:
            return {}
        variables: dict[str, Any] = {"reasoning_effort": effort.value}
        if "enable_thinking" in self._names:
            variables["enable_thinking"] = effort is not ReasoningEffort.NONE
        return variables

    def _bounded(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        room = MAX_RENDERED_CHARS
        for piece in self._template.generate(variables):
            room -= len(piece)
            if room < 0:
                raise OverrunError(f"the template writes more than {MAX_RENDERED_CHARS} characters")
            pieces.append(piece)
        return _without_lone_surrogates("".join(pieces))

    def _wants_text_arguments(self) -> bool:
        """Return whether arguments have to be JSON text: a mapping fails, or shows as Python would write it."""
        for has_text in (False, True):
            conversation = dataclasses.replace(self._conversation, has_text_arguments=has_text)
            trial = {"messages": conversation.messages(_TRIAL), "tools": conversation.tools(_TRIAL)}
            try:
                text = self._bounded(
                    {**trial, "bos_token": "", "eos_token": "", "documents": None, **_ENVIRONMENT.budget_variables()}
                )
            except RefusalError:
                return False
            except Exception:  # noqa: S112 - whatever a foreign program may raise; the other form is tried
                continue
            if _AS_PYTHON not in text:
                return has_text
        return False

    def _finds_bos(self, source: str) -> bool:
        if not self._bos_text:
            return False
        try:
            text = self.render(_QUESTION)
        except ServiceError:  # a template with needs of its own
            return "bos_token" in source or self._bos_text in source
        return text.startswith(self._bos_text)


# What a request may give a template besides its messages, and how it is without.
_EXTRAS: Final[Mapping[str, Any]] = {"template_args": {}, "tools": ()}
# What every template for chats can render.
_QUESTION: Final = Chat(messages=(ChatMessage(role=Role.USER, content="x"),))
# One call of a function, and its result.
_TRIAL: Final = Chat(
    messages=(
        ChatMessage(role=Role.USER, content="x"),
        ChatMessage(
            role=Role.ASSISTANT,
            content="",
            tool_calls=(ToolCall(id="call00000", name="f", arguments='{"trial": "x"}'),),
        ),
        ChatMessage(role=Role.TOOL, content="x", tool_call_id="call00000"),
    ),
    tools=(Tool(name="f"),),
)
_AS_PYTHON: Final = "'trial'"
_OWN_NAMES: Final = frozenset(
    {"messages", "bos_token", "eos_token", "add_generation_prompt", *BoundedEnvironment.budget_variables()}
)


def _without_lone_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for each half of a pair, which JSON can escape and no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _plain(value: Any) -> Any:
    """Return a value of google.protobuf.Struct, whose numbers are all floats, with whole ones as int."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
