"""An engine without a model: deterministic tokens with scripted delays and faults.

For tests, benchmarks, and the learner who wants to see the time to first token
move while the gap between tokens stays.

A prompt may carry a script of its own, so that one server plays any case:
`simulate: {"tokens": ["a", "b"], "token_ms": 20}`. Of several the last counts.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from service.backends.base import (
    BackendInfo,
    EngineFinish,
    EngineFinished,
    EngineItem,
    EngineOutput,
    EngineRequest,
    EngineStarted,
    EngineStop,
    Feature,
    Health,
    StopOutcome,
)
from service.backends.simulator_words import VOCAB_SIZE, WORDS, WordTokenizer, id_of_word
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.events import TokenLogprob, TopLogprob

__all__ = ["SimulatorBackend", "SimulatorOptions"]

_WORD_BYTES: Final = [word.encode() for word in WORDS]
_WORD_IDS: Final = [id_of_word(word) for word in WORDS]
# Sampling is accepted and, but for the seed and the end of sequence, without effect.
_FEATURES: Final = frozenset(
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
        Feature.MIN_OUTPUT_TOKENS,
        Feature.LOGIT_BIAS,
        Feature.IGNORE_EOS,
        Feature.TOKEN_IDS,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
    }
)
# It makes no token that nobody waits for.
_STOPPED: Final = EngineStop("simulator", StopOutcome.ACKNOWLEDGED, 0.0, 0)
_FAULTS: Final = ("none", "error", "unavailable", "crash", "hang", "cut")
_MARK: Final = "simulate:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorOptions:
    """The script. Times in milliseconds.

    `queue_ms` is the engine's own queue, `prefill_ms` plus `prefill_ms_per_token`
    the time from there to the first token, `token_ms` the gap between tokens (0:
    as fast as it can). `tokens` are the tokens' texts in turn, repeated until
    `output_tokens` (0: until max_output_tokens); written as `\\xff` a byte need not
    be UTF-8. `fault` happens after `fault_after` tokens: error, unavailable, crash
    (an exception that is no ServiceError), hang (silence), cut (the stream ends
    without its last item). `echo` answers with the prompt, a token a character.
    `is_down` makes the engine report UNAVAILABLE.
    """

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    prefill_ms_per_token: float = 0.0
    token_ms: float = 0.0
    tokens: tuple[str, ...] = WORDS
    output_tokens: int = 0
    max_context_tokens: int = 8192
    fault: str = "none"
    fault_after: int = 0
    echo: bool = False
    is_down: bool = False

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 0, got {getattr(self, name)}"
            for name in ("queue_ms", "prefill_ms", "prefill_ms_per_token", "token_ms", "output_tokens", "fault_after")
            if not getattr(self, name) >= 0
        ]
        if not self.tokens:
            problems.append("tokens must not be empty")
        if self.max_context_tokens < 1:
            problems.append(f"max_context_tokens must be at least 1, got {self.max_context_tokens}")
        if self.fault not in _FAULTS:
            problems.append(f"fault must be one of {', '.join(_FAULTS)}")
        if problems:
            raise ValueError("; ".join(problems))


class SimulatorBackend:
    """Plays `SimulatorOptions`, or the script in a prompt. The same request gives the same tokens.

    `running` is how many it plays now. `on_stop` is told about every one that was
    left before its end.
    """

    def __init__(
        self,
        options: SimulatorOptions | None = None,
        *,
        on_stop: Callable[[EngineStop], None] = lambda _stop: None,
    ) -> None:
        self.options = options or SimulatorOptions()
        self._on_stop = on_stop
        self.running = 0
        self.started = 0  # requests so far
        self._tokenizer = WordTokenizer()
        self._info = BackendInfo(
            provider="headrace.simulator",
            features=_FEATURES,
            fingerprint="simulator",
            max_context_tokens=self.options.max_context_tokens,
            vocab_size=VOCAB_SIZE,
        )

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to release."""

    @property
    def info(self) -> BackendInfo:
        """Every feature but constraints, which need a real model."""
        return self._info

    async def health(self, timeout_s: float) -> Health:  # noqa: ARG002 - answers at once
        """READY unless the script says otherwise."""
        return Health.UNAVAILABLE if self.options.is_down else Health.READY

    async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
        """One token a word."""
        return len(prompt.split()) + (1 if add_special_tokens else 0)

    @property
    def tokenizer(self) -> WordTokenizer:
        """Its own words."""
        return self._tokenizer

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        """Play the script. Cancelling ends it at once."""
        script = _script(self.options, request.prompt)
        item: EngineItem | None = None
        self.running += 1
        self.started += 1
        try:
            async with aclosing(_play(script, request, await self._prompt_tokens(request))) as items:
                async for item in items:
                    yield item
        except (GeneratorExit, asyncio.CancelledError):
            if not isinstance(item, EngineFinished):
                self._on_stop(_STOPPED)
            raise
        finally:
            self.running -= 1

    async def _prompt_tokens(self, request: EngineRequest) -> int:
        if isinstance(request.prompt, tuple):
            return len(request.prompt)
        return await self.count_tokens(request.prompt, add_special_tokens=request.add_special_tokens) or 0


async def _play(script: SimulatorOptions, request: EngineRequest, prompt_tokens: int) -> AsyncGenerator[EngineItem]:
    loop = asyncio.get_running_loop()
    if script.queue_ms:
        await asyncio.sleep(script.queue_ms / 1000)
    has_details = request.logprobs is not None or request.token_ids
    yield EngineStarted(prompt_tokens, 0, script.queue_ms / 1000)
    prefill_ms = script.prefill_ms + script.prefill_ms_per_token * prompt_tokens
    if prefill_ms:
        await asyncio.sleep(prefill_ms / 1000)
    limit = request.sampling.max_output_tokens or script.output_tokens
    count = min(script.output_tokens, limit) if script.output_tokens and not request.sampling.ignore_eos else limit
    pieces = _pieces(script, request)
    ids = _ids(script, request, len(pieces)) if has_details else []
    if script.echo:
        count = min(len(pieces), limit)
    gap_s, begun_s = script.token_ms / 1000, loop.time()
    plain = [EngineOutput(piece) for piece in pieces]
    for at in range(count):
        if script.fault != "none" and at == script.fault_after:
            await _fail(script.fault)
            return
        if gap_s and at:
            # Paced from the beginning, so that one late wake-up delays no later token.
            await asyncio.sleep(begun_s + at * gap_s - loop.time())
        which = at % len(pieces)
        yield _detailed(pieces[which], ids[which], request) if has_details else plain[which]
    if script.fault != "none" and script.fault_after >= count:
        await _fail(script.fault)
        return
    yield EngineFinished(
        reason=EngineFinish.LENGTH if count >= limit else EngineFinish.STOP,
        prompt_tokens=prompt_tokens,
        cached_prompt_tokens=0,
        output_tokens=count,
        engine_queue_s=script.queue_ms / 1000,
        engine_prefill_s=prefill_ms / 1000,
    )


def _pieces(script: SimulatorOptions, request: EngineRequest) -> list[bytes]:
    if script.echo:
        text = request.prompt if isinstance(request.prompt, str) else " ".join(map(str, request.prompt))
        return [character.encode() for character in text] or [b""]
    if script.tokens is WORDS:
        begin = _first_word(request)
        return _WORD_BYTES[begin:] + _WORD_BYTES[:begin]
    return [_bytes(text) for text in script.tokens]


def _ids(script: SimulatorOptions, request: EngineRequest, count: int) -> list[int]:
    """Return the ids of the pieces; a script's own tokens are numbered from 0."""
    if script.tokens is WORDS and not script.echo:
        begin = _first_word(request)
        return _WORD_IDS[begin:] + _WORD_IDS[:begin]
    return [which % VOCAB_SIZE for which in range(count)]


def _first_word(request: EngineRequest) -> int:
    """Another seed is another answer, and the same seed the same."""
    return (request.sampling.seed or 0) % len(WORDS)


def _bytes(text: str) -> bytes:
    """Encode as UTF-8, with `\\xNN` for single bytes."""
    if "\\x" not in text:
        return text.encode()
    head, *rest = text.split("\\x")
    return head.encode() + b"".join(bytes([int(part[:2], 16)]) + part[2:].encode() for part in rest)


def _detailed(piece: bytes, token_id: int, request: EngineRequest) -> EngineOutput:
    logprobs: tuple[TokenLogprob, ...] = ()
    if request.logprobs is not None:
        top = tuple(
            TopLogprob((token_id + rank) % VOCAB_SIZE, -0.5 - rank if rank < 5 else -math.inf, piece)
            for rank in range(request.logprobs)
        )
        logprobs = (TokenLogprob(token_id, -0.5, piece, top),)
    ids = (token_id,) if request.token_ids else ()
    return EngineOutput(piece, 1, ids, logprobs)


async def _fail(fault: str) -> None:
    match fault:
        case "error":
            raise ServiceError(Reason.BACKEND_ERROR, "The engine failed.", detail="scripted: /srv/engine.py line 1")
        case "unavailable":
            raise ServiceError(Reason.BACKEND_UNAVAILABLE, "The engine went away.", retry_after_s=1.0)
        case "crash":
            raise RuntimeError("scripted secret: /srv/engine.py")
        case "hang":
            await asyncio.Event().wait()
        case _:  # cut: the stream just ends
            return


def _script(options: SimulatorOptions, prompt: str | tuple[int, ...]) -> SimulatorOptions:
    """Return the options with what the prompt overrides. Raises INVALID_FIELD for a bad script."""
    if not isinstance(prompt, str) or _MARK not in prompt:
        return options
    # The last one: a conversation's newest turn. What follows it on its line is the chat template's.
    text = prompt.rsplit(_MARK, 1)[1].lstrip()
    try:
        given: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
        unknown = sorted(given.keys() - {field.name for field in fields(SimulatorOptions)})
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}")
        if "tokens" in given:
            given["tokens"] = tuple(str(token) for token in given["tokens"])
        script = replace(options, **given)
    except (ValueError, TypeError, AttributeError) as error:
        raise invalid([Violation("prompt", f"the simulator's script is wrong: {error}")]) from None
    return script
