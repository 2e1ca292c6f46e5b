"""An engine without a model: the bytes, the delays and the faults that the prompt asks for.

One token is one byte. Without anything in the prompt it is a text that has
characters of one to four bytes, over and over.
"""

from __future__ import annotations

import time
from dataclasses import replace

from .jobs import Engine, EngineError, Job, Listener, NoOutputError, ProcessDiedError, Step, ThreadDiedError
from .scripts import SCRIPT, Script, read_script
from .settings import Settings

__all__ = ["SCRIPT", "ScriptedEngine"]

# While it waits the engine looks for a stop this often.
_TICK_S = 0.002
# While it hangs: a sign of life, at which every contract looks for a cancel.
_HANG_S = 0.02
_BIG_TOKENS = 5 * 1024 * 1024
# What of a prompt is looked at for a script, so that one of megabytes costs no time.
_SCRIPT_BYTES = 64 * 1024
_SEPARATES_FINAL = ("error_then_final", "separate_final")


class ScriptedEngine(Engine):
    """Plays the script of the prompt up to the job's limit."""

    takes_biases = False

    def __init__(self, settings: Settings) -> None:
        self._prefill_s = settings.scripted_prefill_s
        self._token_s = settings.scripted_token_s

    def generate(self, job: Job, listener: Listener) -> None:
        """Run `job`; every wait looks for a stop about every two milliseconds."""
        script = self._script(job)
        due = time.monotonic() + script.prefill_s
        limit = min(job.max_tokens, script.end_after or job.max_tokens)
        at = 0
        while True:
            while time.monotonic() < due:
                if listener(None):
                    return
                time.sleep(max(0.0, min(_TICK_S, due - time.monotonic())))
            if script.fault and at >= script.fault_after:
                if _play(script, job, listener):
                    return
                script = replace(script, fault="")
            size = min(script.chunk, limit - at)
            if script.fault:  # comes after exactly so many tokens
                size = min(size, script.fault_after - at)
            if size <= 0:
                return
            due += script.token_s
            if listener(_step(script, job, at, size)):
                return
            at += size

    def separates_final(self, job: Job) -> bool:
        """Return whether the script asks for it."""
        return self._script(job).fault in _SEPARATES_FINAL

    def _script(self, job: Job) -> Script:
        prompt = bytes(token for token in job.prompt_ids[:_SCRIPT_BYTES] if token < 256)
        return read_script(prompt, prefill_s=self._prefill_s, token_s=self._token_s)


def _step(script: Script, job: Job, at: int, size: int) -> Step:
    ids = [script.text[(at + i) % len(script.text)] for i in range(size)]
    alternatives = [[((token + rank) % 256, -float(rank)) for rank in range(job.logprobs or 0)] for token in ids]
    return Step(ids, [0.0] * size, script.prefill_s, at + size == script.end_after, alternatives)


def _play(script: Script, job: Job, listener: Listener) -> bool:
    """Play the fault; True when the generation is over with it."""
    fault = script.fault
    if fault in ("error", "error_then_final"):
        raise EngineError("scripted fault: the engine broke")
    if fault == "raise":
        raise ThreadDiedError
    if fault == "no_output":
        raise NoOutputError
    if fault == "kill":
        raise ProcessDiedError
    if fault == "hang":
        while not listener(Step(())):
            time.sleep(_HANG_S)
        return True
    if fault == "error_then_content":
        return listener(Step((), error="scripted fault: the engine broke"))
    if fault == "big":
        ids = (script.text * (_BIG_TOKENS // len(script.text) + 1))[:_BIG_TOKENS]
        # Only where they are asked for: it is to come quickly.
        known = len(ids) if job.logprobs is not None else 0
        return listener(Step(ids, [0.0] * known, is_counted=False, alternatives=[()] * known))
    return False  # separate_final: played at the end
