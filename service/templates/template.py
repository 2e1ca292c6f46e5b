"""One chat template, compiled once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from jinja2 import TemplateSyntaxError

from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.request import Chat, ChatMessage, Role
from service.templates.controls import ControlTexts
from service.templates.environment import BoundedEnvironment, RefusalError

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
        except TemplateSyntaxError as error:
            raise TemplateError(f"{origin}:{error.lineno}: {error.message}") from None
        except RecursionError:
            raise TemplateError(f"{origin}: the template is nested too deeply") from None
        self._bos_text = bos_text
        self._eos_text = eos_text
        self._stop_sequences = stop_sequences
        self._controls = ControlTexts.of(source, (*control_texts, bos_text, eos_text))
        self._knows_developer = "developer" in source
        self._writes_bos = self._finds_bos(source)

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
        refuses the conversation, on `chat.template_args` if it fails with arguments,
        and INTERNAL if it fails without.
        """
        variables = {
            # Templates ask `tools is none`, which an undefined name is not.
            "tools": None,
            "documents": None,
            **{name: _plain(value) for name, value in chat.template_args.items()},
            **_ENVIRONMENT.budget_variables(),
            "messages": [self._message(message) for message in chat.messages],
            "bos_token": self._bos_text,
            "eos_token": self._eos_text,
            "add_generation_prompt": add_generation_prompt,
        }
        for name in _OWN_NAMES & chat.template_args.keys():
            raise invalid([Violation(f"chat.template_args[{name}]", "is set by the server")])
        try:
            return self._bounded(variables)
        except RefusalError as refusal:
            description = f"refused by the chat template: {refusal.message}"
            raise invalid([Violation("chat.messages", description)]) from None
        # Whatever else a foreign program may raise.
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            if chat.template_args:
                raise invalid([Violation("chat.template_args", f"the chat template failed: {error}")]) from error
            raise ServiceError(
                Reason.INTERNAL, "The chat template of this model failed on this conversation.", detail=detail
            ) from error

    def _bounded(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        room = MAX_RENDERED_CHARS
        for piece in self._template.generate(variables):
            room -= len(piece)
            if room < 0:
                raise ValueError(f"the template writes more than {MAX_RENDERED_CHARS} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _message(self, message: ChatMessage) -> dict[str, str]:
        role = message.role
        if role is Role.DEVELOPER and not self._knows_developer:
            role = Role.SYSTEM
        told = {"role": role.value, "content": self._controls.disarm(message.content)}
        if message.name is not None:
            told["name"] = self._controls.disarm(message.name)
        return told

    def _finds_bos(self, source: str) -> bool:
        if not self._bos_text:
            return False
        try:
            text = self.render(Chat(messages=(ChatMessage(role=Role.USER, content="x"),)))
        except ServiceError:  # a template with needs of its own
            return "bos_token" in source or self._bos_text in source
        return text.startswith(self._bos_text)


_OWN_NAMES: Final = frozenset(
    {"messages", "bos_token", "eos_token", "add_generation_prompt", *BoundedEnvironment.budget_variables()}
)


def _plain(value: Any) -> Any:
    """Return a value of google.protobuf.Struct, whose numbers are all floats, with whole ones as int."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
