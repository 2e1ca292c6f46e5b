"""What a prompt tells the scripted engine to do: its text, its delays and its faults. Pure.

Words of the form `name=value` anywhere in the first 64 KiB of the prompt; the rest is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from .jobs import EngineError

__all__ = ["FAULTS", "SCRIPT", "Script", "read_script"]

SCRIPT = "The quick brown fox jumps over 13 lazy dogs. Größe, 東京, 🧿. ".encode()

# A fault and what the client is to see of it.
FAULTS = {
    "error": "an error with the final flag",
    "error_then_final": "an error, and then the final flag by itself",
    "error_then_content": "an error, and then more content",
    "raise": "nothing more: the generation's thread has died",
    "kill": "nothing more: the model's process has died",
    "hang": "nothing more until it is cancelled or stopped",
    "no_output": "the final flag alone",
    "separate_final": "the final flag by itself, after the last content",
    "big": "one response of 5 Mi tokens, and then more content",
}


@dataclass(frozen=True)
class Script:
    """`text` is repeated, and ends by itself after `end_after` tokens (0: never).

    `chunk` tokens come at a time. The fault comes after `fault_after` tokens.
    """

    text: bytes = SCRIPT
    prefill_s: float = 0.0
    token_s: float = 0.01
    chunk: int = 1
    end_after: int = 0
    fault: str = ""
    fault_after: int = 0


def _milliseconds(value: str) -> float:
    return int(value) / 1000


# Word -> field, its form, and how it is read.
_WORDS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "text": ("text", r"[\w%.~-]+", unquote_to_bytes),
    "prefill_ms": ("prefill_s", r"\d+", _milliseconds),
    "token_ms": ("token_s", r"\d+", _milliseconds),
    "chunk": ("chunk", r"\d+", int),
    "end_after": ("end_after", r"\d+", int),
    "fault": ("fault", r"\w+", str),
    "fault_after": ("fault_after", r"\d+", int),
}
_PATTERN = re.compile("|".join(rf"\b{name}=({form})" for name, (_, form, _) in _WORDS.items()), re.ASCII)


def read_script(prompt: bytes, *, prefill_s: float, token_s: float) -> Script:
    """Return the script of a prompt; the delays are those for a prompt that sets none.

    Raises EngineError for an unknown fault and an empty chunk.
    """
    fields: dict[str, Any] = {"prefill_s": prefill_s, "token_s": token_s}
    for match in _PATTERN.finditer(prompt.decode("latin-1")):
        name = match[0].split("=", 1)[0]
        field, _, read = _WORDS[name]
        fields[field] = read(match[match.lastindex or 0])
    script = Script(**fields)
    if script.fault and script.fault not in FAULTS:
        raise EngineError(f"fault={script.fault} is unknown; the faults are {', '.join(FAULTS)}")
    if script.chunk < 1:
        raise EngineError("chunk= must be at least 1")
    return script
