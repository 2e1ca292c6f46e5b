"""The embedded engine as a backend: threads on one side, an event loop on the other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from service.backends.base import BackendInfo, EngineItem, EngineRequest, EngineStop, Feature, Health
from service.backends.llamacpp.counting import PromptCounter
from service.backends.llamacpp.engine import Engine, ModelFacts
from service.backends.llamacpp.gguf import GgufError, GgufHead, read_gguf_head
from service.backends.llamacpp.guard import ConstraintGuard
from service.backends.llamacpp.options import LlamaCppOptions
from service.backends.llamacpp.parameters import completion_body
from service.backends.llamacpp.run import Run
from service.backends.llamacpp.sample_model import ensure_sample_model
from service.backends.llamacpp.tokenizer import LlamaCppTokenizer
from service.core.errors import Reason, ServiceError

__all__ = ["FEATURES", "LlamaCppBackend"]

logger = logging.getLogger("headrace.service.llamacpp")

# Listed one by one: a feature that is new to the seam is not claimed before it is honoured here. GRAMMAR is there
# only where the options say so.
FEATURES: Final = frozenset(
    {
        Feature.TOKEN_INPUT,
        Feature.TEMPERATURE,
        Feature.TOP_P,
        Feature.TOP_K,
        Feature.MIN_P,
        Feature.FREQUENCY_PENALTY,
        Feature.PRESENCE_PENALTY,
        Feature.REPETITION_PENALTY,
        Feature.SEED,
        Feature.LOGIT_BIAS,
        Feature.IGNORE_EOS,
        Feature.TOKEN_IDS,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.JSON_OBJECT,
        Feature.JSON_SCHEMA,
        Feature.REGEX,
        Feature.CHOICE,
    }
)
# Running requests end within one engine step of a cancellation.
_CLOSE_TIMEOUT_S: Final = 10.0

_T = TypeVar("_T")


class LlamaCppBackend:
    """One llama.cpp in this process.

    Owns `slots` threads, each blocked in one running request, and three for short
    questions. A thread, and with it the engine's slot, is free one engine step
    after its `generate` has ended: 10 to 30 ms while it decodes, up to
    `batch_tokens` of prefill before that. A request that comes sooner waits for it.
    `on_stop` is told, in the event loop, about every generation that was left
    before its end, once its thread has let go of the engine.
    """

    def __init__(
        self,
        options: LlamaCppOptions | None = None,
        *,
        on_stop: Callable[[EngineStop], None] = lambda _stop: None,
    ) -> None:
        self.options = options or LlamaCppOptions()
        self._on_stop = on_stop
        self._engine: Engine | None = None
        self._guard: ConstraintGuard | None = None
        self._info: BackendInfo | None = None
        self._tokenizer: LlamaCppTokenizer | None = None
        self._is_closed = False
        self._runs: set[Run] = set()
        self._slots = ThreadPoolExecutor(self.options.slots, thread_name_prefix="llamacpp-slot")
        # Apart, so that long prompts being counted do not make the engine look hung.
        self._counting = ThreadPoolExecutor(2, thread_name_prefix="llamacpp-count")
        self._control = ThreadPoolExecutor(1, thread_name_prefix="llamacpp-control")

    async def start(self) -> None:
        """Load the model. The process stands still meanwhile (see `Engine.load`). Raises BACKEND_UNAVAILABLE."""
        if self._engine is None:
            self._engine, self._guard, self._info, self._tokenizer = await self._ask(self._load)

    async def close(self) -> None:
        """Cancel what runs, wait for it up to 10 s, and unload. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for run in list(self._runs):
            run.cancel()
        self._slots.shutdown(wait=False, cancel_futures=True)
        if self._tokenizer is not None:
            self._tokenizer.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._ask(self._slots.shutdown)
                await self._ask(self._unload)
        except TimeoutError:
            logger.error("llama.cpp did not stop within %.0f s and is left behind", _CLOSE_TIMEOUT_S)
        for pool in (self._counting, self._control):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def info(self) -> BackendInfo:
        """Facts about the engine."""
        assert self._info is not None, "start() comes first"
        return self._info

    async def health(self, timeout_s: float) -> Health:
        """Return READY if a running request moved lately, or the engine's own loop answers in time."""
        if self._engine is None:
            return Health.UNAVAILABLE if self._is_closed else Health.LOADING
        if self._is_closed:
            return Health.UNAVAILABLE
        now_s = time.monotonic()
        silences = [run.silence_s(now_s) for run in list(self._runs) if run.is_waiting_for_engine]
        if silences:
            if max(silences) > self.options.stall_timeout_s:
                return Health.UNAVAILABLE
            if min(silences) < timeout_s:
                return Health.READY
        engine = self._engine
        try:
            async with asyncio.timeout(timeout_s):
                is_answering = await self._ask(lambda: engine.is_answering(timeout_s))
        except TimeoutError:
            return Health.UNAVAILABLE
        return Health.READY if is_answering else Health.UNAVAILABLE

    async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
        """Return the prompt's length in tokens (see `PromptCounter.count`)."""
        if self._engine is None or self._is_closed:
            raise ServiceError(Reason.BACKEND_UNAVAILABLE, "The engine is not running.")
        counter = PromptCounter(self._engine, self._counting, context_tokens=self.info.max_context_tokens)
        return await counter.count(prompt, add_special_tokens=add_special_tokens)

    @property
    def tokenizer(self) -> LlamaCppTokenizer | None:
        """The model's own."""
        return self._tokenizer

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        """Run one generation (see `Backend.generate`).

        Cancelling and `aclose` set a flag that the engine sees at its next step, and
        return at once.
        """
        if self._engine is None or self._guard is None or self._is_closed:
            raise ServiceError(Reason.BACKEND_UNAVAILABLE, "The engine is not running.")
        body = completion_body(request, self.info.control_texts)
        loop = asyncio.get_running_loop()
        run = Run(self._engine, self._guard, request, loop)
        self._runs.add(run)
        future = self._slots.submit(run.drive, body)
        future.add_done_callback(lambda _: self._on_done(run, loop))
        try:
            while (item := await run.next()) is not None:
                yield item
        finally:
            run.cancel()
            future.cancel()

    def _on_done(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        # Also for a run that was dropped before a thread took it: its reader must not wait.
        run.drop()
        self._runs.discard(run)
        stop = run.stop()
        if stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever counts
                loop.call_soon_threadsafe(self._on_stop, stop)

    async def _ask(self, question: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._control, question)

    def _load(self) -> tuple[Engine, ConstraintGuard, BackendInfo, LlamaCppTokenizer]:
        path = self.options.model_path or ensure_sample_model()
        try:
            head = read_gguf_head(path)
        except (OSError, GgufError) as error:
            raise ServiceError(
                Reason.BACKEND_UNAVAILABLE, f"Model file {path} cannot be used: {error}.", detail=repr(error)
            ) from error
        started_s = time.monotonic()
        engine = Engine.load(self.options, path)
        facts = engine.facts()
        guard = ConstraintGuard(engine)
        guard.warm_up()
        logger.info(
            "llama.cpp loaded %s in %.1f s",
            path.name,
            time.monotonic() - started_s,
            extra={"slots": self.options.slots, "context_tokens": facts.context_tokens},
        )
        tokenizer = LlamaCppTokenizer(engine, vocab_size=facts.vocab_size, special_ids=head.control_ids)
        return engine, guard, _info(self.options, path, head, facts), tokenizer

    def _unload(self) -> None:
        engine, self._engine, self._guard = self._engine, None, None
        if engine is not None:
            engine.close()


def _info(options: LlamaCppOptions, path: Path, head: GgufHead, facts: ModelFacts) -> BackendInfo:
    stat = path.stat()
    parts = (facts.library_version, path.name, stat.st_size, facts.context_tokens, options.slots, options.gpu_layers)
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
    return BackendInfo(
        provider="llama_cpp",
        features=FEATURES | {Feature.GRAMMAR} if options.grammars else FEATURES,
        fingerprint=f"llamacpp-{digest[:12]}",
        max_context_tokens=facts.context_tokens,
        vocab_size=facts.vocab_size,
        chat_template=head.chat_template,
        bos_text=facts.bos_text,
        eos_text=facts.eos_text,
        control_texts=head.control_texts,
        longest_token_bytes=head.longest_token_bytes,
        max_running=options.slots,
    )
