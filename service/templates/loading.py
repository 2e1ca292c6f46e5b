"""Where a template comes from: the model file, a file of the operator, or this package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from service.backends.base import BackendInfo
from service.templates.template import ChatTemplate, TemplateError

__all__ = ["BUILTIN_NAMES", "load_template"]

# Built-in template to the strings that end a turn in it, for models whose own end token is another.
_STOP_SEQUENCES: Final = {
    "chatml": ("<|im_end|>", "<|im_start|>"),
    "gemma": ("<end_of_turn>",),
    "llama3": ("<|eot_id|>",),
    # A base model goes on with the next question.
    "qa": ("\nQ:", "\nA:"),
}
BUILTIN_NAMES: Final = tuple(_STOP_SEQUENCES)


@dataclass(frozen=True, slots=True)
class _Source:
    text: str
    origin: str
    bos_text: str = ""
    eos_text: str = ""
    stop_sequences: tuple[str, ...] = ()


def load_template(source: str, info: BackendInfo) -> ChatTemplate:
    """Return the template that `source` names.

    `source` is "model" (the one in the model file), a name of `BUILTIN_NAMES`, or
    the path of a Jinja file or of a `tokenizer_config.json`, which also tells the
    start and end token if the engine does not. Reads files; raises `TemplateError`.
    """
    found = _find(source, info)
    return ChatTemplate(
        found.text,
        origin=found.origin,
        bos_text=info.bos_text or found.bos_text,
        eos_text=info.eos_text or found.eos_text,
        stop_sequences=found.stop_sequences,
        control_texts=info.control_texts,
    )


def _find(source: str, info: BackendInfo) -> _Source:
    if source == "model":
        if info.chat_template is None:
            raise TemplateError(
                f"the model has no chat template of its own: choose one of {', '.join(BUILTIN_NAMES)}, or a file"
            )
        return _Source(info.chat_template, "chat template of the model")
    if source in _STOP_SEQUENCES:
        text = resources.files("service.templates").joinpath("builtin", f"{source}.jinja").read_text("utf-8")
        return _Source(text, f"built-in template {source}", stop_sequences=_STOP_SEQUENCES[source])
    path = Path(source)
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        names = ", ".join(("model", *BUILTIN_NAMES))
        raise TemplateError(f"template {source!r} is neither a file that can be read ({error}) nor {names}") from None
    return _from_tokenizer_config(text, path) if path.suffix == ".json" else _Source(text, str(path))


def _from_tokenizer_config(text: str, path: Path) -> _Source:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise TemplateError(f"{path}: {error}") from None
    template = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise TemplateError(f"{path}: has no chat_template")
    return _Source(template, str(path), _token_text(config.get("bos_token")), _token_text(config.get("eos_token")))


def _token_text(token: Any) -> str:
    """Return a token's text, which the file holds as it is or in an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
