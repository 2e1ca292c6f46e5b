"""TokenizeService: a model's token ids for a text or a conversation, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from headrace.v1 import tokenize_pb2, tokenize_pb2_grpc
from service.admission.limits import AdmissionLimits
from service.admission.slots import Slots
from service.backends.tokenizer import MAX_TEXT_BYTES, EncodedText, EngineTokenizer
from service.catalog.model import Model
from service.catalog.registry import Registry
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.request import Chat, Prompt
from service.core.validate import MAX_TOKEN_IDS
from service.core.validate_chat import chat_violations
from service.generation.prompt import missing_for_input, prompt_of, unsupported
from service.rpc.call import current_call, remaining_s
from service.rpc.convert_chat import chat_from_proto
from service.rpc.drain import Drain
from service.rpc.generation import DeadlinePolicy
from service.rpc.permission import allowed_model

__all__ = ["TokenizeServicer"]

_T = TypeVar("_T")

_LONGEST_S: Final = 60.0
# A long text keeps a thread or the engine's tokenizer busy: what generates goes first.
_RUNNING: Final = 2
_WAITING: Final = 64


class TokenizeServicer(tokenize_pb2_grpc.TokenizeServiceServicer):
    """Serves Tokenize and Detokenize. Errors leave as `ServiceError`.

    Two calls are worked on at once; the others wait in a bounded line, no longer
    than their deadlines. A call that is cancelled leaves the line; once it is worked
    on, its turn ends with the work, which no tokenizer can stop.
    """

    def __init__(self, registry: Registry, drain: Drain, deadlines: DeadlinePolicy) -> None:
        self._registry = registry
        self._drain = drain
        self._deadlines = deadlines
        self._line = Slots(AdmissionLimits(running=_RUNNING, waiting=_WAITING))
        self._working: set[asyncio.Task[Any]] = set()

    async def Tokenize(self, request: tokenize_pb2.TokenizeRequest, context: Any) -> tokenize_pb2.TokenizeResponse:
        """Return the ids of a text, or of a conversation as the model sees it."""
        self._drain.check()
        asked = _input_from_proto(request)
        model, tokenizer = self._open(request.model)
        missing = missing_for_input(asked, model)
        if request.include_pieces and not tokenizer.has_pieces:
            missing.append("include_pieces")
        if missing:
            raise unsupported(missing, model)
        limit = min(MAX_TEXT_BYTES, tokenizer.max_text_bytes)
        if isinstance(asked, Prompt) and (found := _too_long(asked, request.text, limit)):
            raise invalid(found)

        async def encode() -> EncodedText:
            content, add_special = await prompt_of(asked, model)
            assert isinstance(content, str)
            if found := _too_long(asked, content, limit):
                raise invalid(found)
            return await tokenizer.encode(
                content,
                add_special_tokens=add_special and not request.skip_special_tokens,
                with_pieces=request.include_pieces,
            )

        encoded = await self._in_turn(context, encode)
        count, window = len(encoded.token_ids), model.max_context_tokens
        return tokenize_pb2.TokenizeResponse(
            token_ids=encoded.token_ids,
            token_count=count,
            pieces=encoded.pieces,
            remaining_context_tokens=None if window is None else window - count,
        )

    async def Detokenize(
        self, request: tokenize_pb2.DetokenizeRequest, context: Any
    ) -> tokenize_pb2.DetokenizeResponse:
        """Return the text of ids."""
        self._drain.check()
        ids = request.token_ids[: MAX_TOKEN_IDS + 1]
        found = [] if request.model else [Violation("model", "required")]
        if len(ids) > MAX_TOKEN_IDS:
            found.append(Violation("token_ids", f"at most {MAX_TOKEN_IDS}"))
        elif ids and min(ids) < 0:
            found.append(_bad_id(ids, "must be at least 0", lambda token_id: token_id < 0))
        if found:
            raise invalid(found)
        _, tokenizer = self._open(request.model)
        size = tokenizer.vocab_size
        if ids and max(ids) >= size:
            raise invalid(
                [_bad_id(ids, f"must be below the vocabulary size {size}", lambda token_id: token_id >= size)]
            )
        text = await self._in_turn(
            context, lambda: tokenizer.decode(ids, skip_special_tokens=request.skip_special_tokens)
        )
        return tokenize_pb2.DetokenizeResponse(text=text)

    def _open(self, name: str) -> tuple[Model, EngineTokenizer]:
        model = allowed_model(self._registry, name, current_call().identity)
        tokenizer = model.open_tokenizer
        if tokenizer is None:
            raise ServiceError(
                Reason.CAPABILITY_UNSUPPORTED,
                f"Model {model.id!r} does not support tokenize: its engine keeps its tokenizer to itself, and no "
                "tokenizer is configured for it.",
                metadata={"capability": "tokenize"},
            )
        return model, tokenizer

    async def _in_turn(self, context: Any, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return what `work` returns, waiting for a turn and for it no longer than the deadline."""
        limit_s = min(self._deadlines.apply(remaining_s(context)), _LONGEST_S)
        reason = Reason.DEADLINE_IN_QUEUE
        try:
            async with asyncio.timeout(limit_s), AsyncExitStack() as turn:
                turn.enter_context(self._drain.short_call())
                await turn.enter_async_context(self._line.take())
                reason = Reason.DEADLINE_IN_DECODE
                task = asyncio.create_task(_holding(turn.pop_all(), work))
                self._working.add(task)
                task.add_done_callback(self._working.discard)
                return await asyncio.shield(task)
        except TimeoutError:
            raise ServiceError(reason, "The deadline passed before the tokenizer was done.") from None


async def _holding(turn: AsyncExitStack, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    async with turn:
        return await work()


def _input_from_proto(request: tokenize_pb2.TokenizeRequest) -> Prompt | Chat:
    """Return what is to be tokenized. Raises INVALID_FIELD with everything that is wrong."""
    found = [] if request.model else [Violation("model", "required")]
    asked: Prompt | Chat = Prompt(text=request.text)
    match request.WhichOneof("input"):
        case "text":
            found += _too_long(asked, request.text, MAX_TEXT_BYTES)
        case "chat":
            asked = chat_from_proto(request.chat, "chat", found)
            found += chat_violations(asked)
            if request.skip_special_tokens:
                found.append(Violation("skip_special_tokens", "goes with text alone: a template writes its own"))
        case _:
            found.append(Violation("input", "required: set one of text, chat"))
    if found:
        raise invalid(found)
    return asked


def _too_long(asked: Prompt | Chat, text: str, limit: int) -> list[Violation]:
    size = len(text.encode())
    if size <= limit:
        return []
    field, what = ("chat", " as the model sees it") if isinstance(asked, Chat) else ("text", "")
    return [Violation(field, f"this model's tokenizer takes at most {limit} bytes of UTF-8{what}, got {size}")]


def _bad_id(ids: Sequence[int], rule: str, is_bad: Any) -> Violation:
    at = next(at for at, token_id in enumerate(ids) if is_bad(token_id))
    return Violation(f"token_ids[{at}]", f"{rule}, got {ids[at]}")
