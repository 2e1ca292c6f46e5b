"""What llama.cpp answers, as engine items. Pure; one reader per run.

A chunk is the JSON of one streamed completion event: prefill progress, new
text, the end, or an error.
"""

from __future__ import annotations

import json
from typing import Any, Final

from service.backends.base import EngineFinish, EngineFinished, EngineItem, EngineOutput, EngineStarted
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.events import TokenLogprob, TopLogprob

__all__ = ["ChunkReader", "engine_error"]

# The contract's "never": minus infinity is no JSON number, and no float that all readers take.
_NEVER: Final = -9999.0


class ChunkReader:
    """Reads the chunks of one run.

    llama.cpp holds back a token whose bytes end inside a character and reports
    only the token that completes it. Such a token is counted, by the engine's own
    running count, but has no id and no log-probability.
    """

    __slots__ = ("_alternatives", "_is_started", "_token_ids", "_wanted_tokens", "output_tokens")

    def __init__(self, *, max_output_tokens: int | None, alternatives: int | None, token_ids: bool) -> None:
        self._wanted_tokens = max_output_tokens
        self._alternatives = alternatives
        self._token_ids = token_ids
        self._is_started = False
        # How many tokens the chunks so far stand for.
        self.output_tokens = 0

    def read(self, chunk: bytes) -> tuple[EngineItem, ...]:
        """Return the items of one chunk, often one, sometimes none. Raises `ServiceError` for an error chunk."""
        data: dict[str, Any] = json.loads(chunk)
        if "choices" not in data:
            raise engine_error(data.get("error", data), has_output=self.output_tokens > 0)
        progress = data.get("prompt_progress")
        if progress is not None:
            if self._is_started:
                return ()
            self._is_started = True
            return (EngineStarted(prompt_tokens=progress["total"], cached_prompt_tokens=progress["cache"]),)
        choice = data["choices"][0]
        output = self._output(choice, data)
        if choice["finish_reason"] is None:
            return (output,)
        finished = self._finished(choice["finish_reason"], data)
        return (output, finished) if output.data or output.tokens else (finished,)

    def _output(self, choice: dict[str, Any], data: dict[str, Any]) -> EngineOutput:
        # The last chunk repeats the total, which also counts an end token without a chunk.
        generated = data["timings"]["predicted_n"] if "timings" in data else self.output_tokens + 1
        tokens = generated - self.output_tokens
        self.output_tokens = generated
        text = choice["text"].encode()
        details = choice["logprobs"]
        if not details:
            return EngineOutput(text, tokens)
        content = details["content"]
        return EngineOutput(
            text,
            tokens,
            tuple([entry["id"] for entry in content]) if self._token_ids else (),
            tuple([self._logprob(entry) for entry in content]) if self._alternatives is not None else (),
        )

    def _logprob(self, entry: dict[str, Any]) -> TokenLogprob:
        top = entry["top_logprobs"][: self._alternatives or 0]
        return TokenLogprob(
            entry["id"],
            _finite(entry["logprob"]),
            bytes(entry["bytes"]),
            tuple([TopLogprob(t["id"], _finite(t["logprob"]), bytes(t["bytes"])) for t in top]),
        )

    def _finished(self, reason: str, data: dict[str, Any]) -> EngineFinished:
        usage, timings = data["usage"], data.get("timings", {})
        output_tokens = usage["completion_tokens"]
        finish = EngineFinish.STOP
        if reason == "length":
            # One word for two limits; only the window ends a run before its own limit.
            is_full = self._wanted_tokens is not None and output_tokens < self._wanted_tokens
            finish = EngineFinish.CONTEXT_LENGTH if is_full else EngineFinish.LENGTH
        return EngineFinished(
            reason=finish,
            prompt_tokens=usage["prompt_tokens"],
            cached_prompt_tokens=usage.get("prompt_tokens_details", {}).get("cached_tokens"),
            output_tokens=output_tokens,
            engine_prefill_s=_seconds(timings.get("prompt_ms")),
            engine_decode_s=_seconds(timings.get("predicted_ms")),
        )


def engine_error(error: dict[str, Any], *, has_output: bool) -> ServiceError:
    """Return the failure that an error object of llama.cpp stands for.

    Once there is output the request cannot be at fault any more, and every
    error is BACKEND_ERROR.
    """
    kind, message = str(error.get("type", "")), str(error.get("message", ""))
    if not has_output:
        if kind == "exceed_context_size_error":
            prompt_tokens, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
            return ServiceError(
                Reason.CONTEXT_LENGTH_EXCEEDED,
                f"The prompt of {prompt_tokens} tokens does not fit the context window of {limit} tokens.",
                metadata={"promptTokens": str(prompt_tokens), "maxContextTokens": str(limit)},
            )
        if kind == "invalid_request_error":
            for mark, field, description in _FAULTS_OF_THE_REQUEST:
                if mark in message:
                    return invalid([Violation(field, description)])
    if kind == "unavailable_error":
        return ServiceError(Reason.BACKEND_UNAVAILABLE, "The engine does not take requests now.", detail=message)
    return ServiceError(Reason.BACKEND_ERROR, "The engine failed this request.", detail=f"{kind}: {message}")


_FAULTS_OF_THE_REQUEST: Final = (
    ("failed to parse grammar", "constraint.grammar", "must be a valid GBNF grammar with a rule named root"),
    ("json_schema", "constraint.json_schema", "must be a JSON Schema that the engine can turn into a grammar"),
    ("invalid tokens", "tokens.ids", "must be token ids of this model"),
)


def _finite(logprob: float | None) -> float:
    return _NEVER if logprob is None else max(logprob, _NEVER)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
