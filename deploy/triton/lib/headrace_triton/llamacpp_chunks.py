"""What llama.cpp streams, as steps. Pure.

llama.cpp reports text and counts, not token ids, and reports a character that
spans tokens once it is complete. The ids are found again through the
vocabulary: their bytes are exact, and their number is llama.cpp's own count.
"""

from __future__ import annotations

import json
from typing import Any

from .jobs import Listener, Step
from .vocabulary import Vocabulary

__all__ = ["ChunkReader"]

_UNKNOWN = float("nan")


class ChunkReader:
    """Reads the chunks of one run and passes up to `keep` tokens to the listener.

    `produced` collects the ids. Log-probabilities are NaN where llama.cpp does
    not report them: for all but the last token of a split character.
    """

    def __init__(
        self, vocabulary: Vocabulary, listener: Listener, produced: list[int], *, keep: int, alternatives: int
    ) -> None:
        self._vocabulary = vocabulary
        self._control_id = min(vocabulary.control_ids, default=vocabulary.eos_id or 0)
        self._listener = listener
        self._produced = produced
        self._keep = keep
        self._alternatives = alternatives
        self._seen = 0
        self._held: list[int] = []
        self.is_stopped = False
        self.error: str | None = None

    def on_chunk(self, chunk: Any) -> bool:
        """Take one chunk; True stops the generation."""
        value = json.loads(chunk) if isinstance(chunk, (str, bytes)) else chunk
        if "error" in value:
            self.error = str(value["error"].get("message", "the engine failed"))
            return True
        if "prompt_progress" in value:
            self.is_stopped = self.is_stopped or self._listener(None)
            return self.is_stopped
        return self._on_tokens(value["choices"][0], value.get("timings", {}))

    def _on_tokens(self, choice: dict[str, Any], timings: dict[str, Any]) -> bool:
        counted = int(timings.get("predicted_n", self._seen))
        count, self._seen = counted - self._seen, counted
        ids = self._ids(choice["text"].encode("utf-8", "surrogatepass"), count)
        logprobs = [_UNKNOWN] * len(ids)
        alternatives: list[list[tuple[int, float]]] = [[] for _ in ids]
        details: list[dict[str, Any]] = (choice.get("logprobs") or {}).get("content") or []
        if ids and len(details) == 1:
            # Exact for a token that stands alone; of a split character only the last is known.
            if count == 1:
                ids[-1] = int(details[0]["id"])
            logprobs[-1] = float(details[0]["logprob"])
            top = details[0]["top_logprobs"][: self._alternatives]
            alternatives[-1] = [(int(one["id"]), float(one["logprob"])) for one in top]
        reason = choice.get("finish_reason")
        if choice["text"] == "" and ids and reason is None:
            # Likely the end of sequence: wait for the chunk that says so.
            self._held += ids
            return self.is_stopped
        if reason == "stop" and self._held and self._vocabulary.eos_id is not None:
            self._held[-1] = self._vocabulary.eos_id
        held = len(self._held)
        ids, self._held = self._held + ids, []
        logprobs = [_UNKNOWN] * held + logprobs
        alternatives = [[] for _ in range(held)] + alternatives
        room = self._keep - len(self._produced)
        ids = ids[:room]
        self._produced += ids
        if not self.is_stopped and (ids or reason is not None):
            prompt_s = float(timings.get("prompt_ms", 0.0)) / 1000
            step = Step(ids, logprobs[:room], prompt_s, reason == "stop", alternatives[:room])
            self.is_stopped = self._listener(step)
        return self.is_stopped or len(self._produced) >= self._keep

    def _ids(self, data: bytes, count: int) -> list[int]:
        if data:
            return self._vocabulary.ids_of(data, count)
        # Tokens without text: control tokens, or a character that never became complete.
        return [self._control_id] * max(count, 0)
