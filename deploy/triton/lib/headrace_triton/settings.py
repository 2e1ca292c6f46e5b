"""Settings of the models: environment first, then `parameters` in config.pbtxt.

The stub processes inherit Triton's environment, so one variable reaches all models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Settings", "load_settings"]


@dataclass(frozen=True)
class Settings:
    """Names, units and defaults; README.md of this folder lists them for users."""

    # "llamacpp" (a real model) or "scripted" (fixed bytes with a delay, no model file).
    engine: str = "llamacpp"
    # Path of the GGUF; empty takes the sample model of the virtual environment.
    gguf: str = ""
    # Generations that run at once, and those that may wait for a slot.
    slots: int = 4
    max_queue_size: int = 64
    # Tokens per slot, prompt and output together.
    context_tokens: int = 2048
    # Compute threads. One core less than there are: llama.cpp's threads spin at
    # a barrier, and on a busy machine one thread too many is tens of times slower.
    threads: int = max(1, (os.cpu_count() or 2) - 1)
    # Prompt tokens per step: a cancel during prefill is seen between two steps, and
    # the other streams wait for one. On a CPU small steps prefill as fast as large ones.
    batch_tokens: int = 32
    # How often a thread looks whether clients have cancelled, where the contract has such a thread.
    cancellation_check_period_ms: int = 100
    # "bytes" (exact) or "text" (every response decoded by itself, as the original does).
    postprocessing: str = "bytes"
    # "true": tensorrt_llm_bls gives its engine request the client's request id.
    forward_request_id: str = "false"
    # Path that receives one JSON line per engine event; empty is off.
    event_log: str = ""
    # Scripted engine: seconds before the first token and between tokens.
    scripted_prefill_s: float = 0.0
    scripted_token_s: float = 0.01


_CHOICES = {
    "engine": ("llamacpp", "scripted"),
    "postprocessing": ("bytes", "text"),
    "forward_request_id": ("true", "false"),
}


def load_settings(args: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of one model, from the arguments of its `initialize`.

    A variable is `HEADRACE_TRITON_` and the field in capitals. Raises
    ValueError that names the setting when a value has the wrong type.
    """
    environ = os.environ if environ is None else environ
    parameters = json.loads(args["model_config"]).get("parameters", {})
    values = {}
    for name, default in vars(Settings()).items():
        raw = environ.get("HEADRACE_TRITON_" + name.upper()) or parameters.get(name, {}).get("string_value", "")
        if raw == "":
            continue
        try:
            values[name] = type(default)(raw)
        except ValueError:
            raise ValueError(f"setting {name} must be {type(default).__name__}, got {raw!r}") from None
    settings = Settings(**values)
    for name, known in _CHOICES.items():
        if getattr(settings, name) not in known:
            raise ValueError(f"setting {name} must be {' or '.join(known)}, got {getattr(settings, name)!r}")
    return settings
