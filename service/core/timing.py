"""Latency facts of one generation, read from one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

from service.core.events import Timing

__all__ = ["StreamClock"]


@dataclass(slots=True)
class StreamClock:
    """When a generation was received, admitted, and gave its first and last token.

    Invariant: received_s <= admitted_s <= first_s <= last_s. All in seconds on
    the monotonic clock that the caller reads.
    """

    received_s: float
    admitted_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    max_gap_s: float = 0.0
    # The engine's own queue, if it reports one; part of the time after admission.
    engine_queue_s: float = 0.0

    def on_output(self, now_s: float) -> None:
        """Note that the engine produced at least one token."""
        if self.last_s is None:
            self.first_s = now_s
        else:
            gap_s = now_s - self.last_s
            if gap_s > self.max_gap_s:
                self.max_gap_s = gap_s
        self.last_s = now_s

    def on_silence(self, now_s: float) -> None:
        """Note that the engine was given up while the next token was waited for: that gap counts too."""
        if self.last_s is not None:
            self.max_gap_s = max(self.max_gap_s, now_s - self.last_s)

    @property
    def ttft_s(self) -> float | None:
        """Received to first token; None when there was none."""
        return None if self.first_s is None else self.first_s - self.received_s

    def tpot_s(self, output_tokens: int | None, choices: int) -> float | None:
        """Decode time per token after the first of each choice; None where that cannot be said."""
        if self.first_s is None or self.last_s is None or output_tokens is None or output_tokens <= choices:
            return None
        return (self.last_s - self.first_s) / (output_tokens - choices) or None

    def timing(self, now_s: float, output_tokens: int | None, choices: int) -> Timing:
        """Return the report. `output_tokens` over all choices, None if unknown."""
        admitted_s = now_s if self.admitted_s is None else self.admitted_s
        until_s = now_s if self.first_s is None else self.first_s
        # An engine's own clock may disagree by a little; never report a negative part.
        engine_queue_s = min(self.engine_queue_s, max(0.0, until_s - admitted_s))
        prefill_s = None if self.first_s is None else self.first_s - admitted_s - engine_queue_s
        decode_s = None if self.first_s is None or self.last_s is None else self.last_s - self.first_s
        rate = 0.0
        if decode_s and output_tokens is not None and output_tokens > choices:
            rate = (output_tokens - choices) / decode_s
        return Timing(
            queue_s=admitted_s - self.received_s + engine_queue_s,
            prefill_s=prefill_s,
            ttft_s=self.ttft_s,
            decode_s=decode_s,
            total_s=now_s - self.received_s,
            output_tokens_per_s=rate,
        )
