"""An engine without a model: the same bytes for every prompt, with chosen delays.

One token is one byte of a text that has characters of one to four bytes. A
prompt may set its own delays: `prefill_ms=300 token_ms=5`.
"""

from __future__ import annotations

import re
import time

from .jobs import Engine, Job, Listener, Step
from .settings import Settings

__all__ = ["SCRIPT", "ScriptedEngine"]

SCRIPT = "The quick brown fox jumps over 13 lazy dogs. Größe, 東京, 🧿. ".encode()
# While it waits the engine looks for a cancel this often.
_TICK_S = 0.002
_DELAY = re.compile(rb"(prefill|token)_ms=(\d+)")


class ScriptedEngine(Engine):
    """Repeats SCRIPT up to the limit; never ends by itself before it."""

    def __init__(self, settings: Settings) -> None:
        self._prefill_s = settings.scripted_prefill_s
        self._token_s = settings.scripted_token_s

    def generate(self, job: Job, listener: Listener) -> None:
        """Run `job`; every wait looks for a cancel about every two milliseconds."""
        delays = dict(_DELAY.findall(bytes(job.prompt_ids)))
        prefill_s = float(delays[b"prefill"]) / 1000 if b"prefill" in delays else self._prefill_s
        token_s = float(delays[b"token"]) / 1000 if b"token" in delays else self._token_s
        due = time.monotonic() + prefill_s
        for position in range(job.max_tokens):
            while time.monotonic() < due:
                if listener(None):
                    return
                time.sleep(max(0.0, min(_TICK_S, due - time.monotonic())))
            due += token_s
            token = SCRIPT[position % len(SCRIPT)]
            if listener(Step([token], [0.0], prefill_s, is_last=False)):
                return
