"""TokenizeService over a real socket: ids, pieces, what is left of the window, and every refusal by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.v1 import chat_pb2, generation_pb2, model_pb2, tokenize_pb2, tokenize_pb2_grpc
from service.backends.simulator import SimulatorBackend
from service.backends.simulator_words import id_of_word
from service.backends.tokenizer import EncodedText
from tests.support.service import Failure, RunningService, running_service, simulated_model

WAIT_S = 10.0


def stub(service: RunningService) -> Any:
    return tokenize_pb2_grpc.TokenizeServiceStub(service.channel)


async def tokenize(service: RunningService, **fields: Any) -> tokenize_pb2.TokenizeResponse:
    return await stub(service).Tokenize(tokenize_pb2.TokenizeRequest(**{"model": "sim", **fields}), timeout=WAIT_S)


async def detokenize(service: RunningService, ids: Sequence[int], **fields: Any) -> str:
    request = tokenize_pb2.DetokenizeRequest(**{"model": "sim", "token_ids": ids, **fields})
    return (await stub(service).Detokenize(request, timeout=WAIT_S)).text


async def failure(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return Failure(failed.value, 0)


def chat(*texts: str) -> chat_pb2.ChatInput:
    return chat_pb2.ChatInput(
        messages=[
            chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, content=[chat_pb2.ContentPart(text=text)]) for text in texts
        ]
    )


async def test_a_text_becomes_ids_and_ids_become_the_text(service: RunningService) -> None:
    answer = await tokenize(service, text="the river runs", include_pieces=True)
    assert answer.token_count == len(answer.token_ids) == 4
    assert list(answer.pieces) == [b"<s>", b" the", b" river", b" runs"]
    assert answer.remaining_context_tokens == 8192 - 4
    assert await detokenize(service, answer.token_ids) == "<s> the river runs"
    assert await detokenize(service, answer.token_ids, skip_special_tokens=True) == "the river runs"


async def test_special_tokens_and_pieces_can_be_left_out(service: RunningService) -> None:
    answer = await tokenize(service, text="the river", skip_special_tokens=True)
    assert (answer.token_count, list(answer.pieces)) == (2, [])


async def test_nothing_has_no_tokens_and_no_text(service: RunningService) -> None:
    assert (await tokenize(service, text="", skip_special_tokens=True)).token_count == 0
    assert await detokenize(service, []) == ""


async def test_a_prompt_has_as_many_tokens_as_its_generation_counts(service: RunningService) -> None:
    for wanted in ({"chat": chat("the river", "runs down")}, {"text": "the mill turns, slowly"}):
        answer = await tokenize(service, **wanted)
        fields = {"prompt": wanted["text"]} if "text" in wanted else wanted
        events = await service.events(generation_pb2.GenerateRequest(model="sim", **fields))
        assert events[-1].completed.usage.prompt_token_count == answer.token_count


async def test_generated_ids_are_the_ids_of_the_words(service: RunningService) -> None:
    events = await service.events(
        generation_pb2.GenerateRequest(
            model="sim", prompt="x", output=generation_pb2.OutputOptions(token_ids=True), sampling={"seed": 3}
        )
    )
    deltas = [event.delta for event in events if event.HasField("delta")]
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert await detokenize(service, ids) == "".join(delta.text for delta in deltas).removeprefix(" ")


async def test_what_does_not_fit_leaves_less_than_nothing() -> None:
    async with running_service(simulated_model(max_context_tokens=16)) as service:
        answer = await tokenize(service, text="word " * 20)
        assert answer.remaining_context_tokens == 16 - 21
    async with running_service(simulated_model(max_context_tokens=None)) as service:
        assert not (await tokenize(service, text="word")).HasField("remaining_context_tokens")


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (tokenize_pb2.TokenizeRequest(), ["model", "input"]),
        (tokenize_pb2.TokenizeRequest(chat=chat()), ["model", "chat.messages"]),
        (tokenize_pb2.TokenizeRequest(model="sim", text="x" * (2**22 + 1)), ["text"]),
        (
            tokenize_pb2.TokenizeRequest(
                model="sim", chat=chat_pb2.ChatInput(messages=[chat_pb2.ChatMessage()]), skip_special_tokens=True
            ),
            ["chat.messages[0].role", "skip_special_tokens"],
        ),
        (tokenize_pb2.DetokenizeRequest(token_ids=[1, -1]), ["model", "token_ids[1]"]),
        (tokenize_pb2.DetokenizeRequest(model="sim", token_ids=[1, 2, 256]), ["token_ids[2]"]),
        (tokenize_pb2.DetokenizeRequest(model="sim", token_ids=[1] * (2**20 + 1)), ["token_ids"]),
    ],
)
async def test_every_violation_is_named_at_once(service: RunningService, request_: Any, fields: list[str]) -> None:
    is_text = isinstance(request_, tokenize_pb2.TokenizeRequest)
    method = stub(service).Tokenize if is_text else stub(service).Detokenize
    refused = await failure(method(request_, timeout=WAIT_S))
    assert (refused.code, refused.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert refused.fields == fields


async def test_as_many_ids_as_the_contract_allows_become_text(service: RunningService) -> None:
    assert len(await detokenize(service, [id_of_word(" a")] * 2**20)) == 2 * 2**20 - 1


async def test_an_unknown_model_and_one_that_is_not_ready_are_told_apart(service: RunningService) -> None:
    assert (await failure(tokenize(service, model="nope", text="x"))).info.reason == "MODEL_NOT_FOUND"
    assert (await failure(detokenize(service, [1], model="nope"))).info.reason == "MODEL_NOT_FOUND"


async def test_its_health_and_its_description_are_published(service: RunningService) -> None:
    request = health_pb2.HealthCheckRequest(service="headrace.v1.TokenizeService")
    checked = await health_pb2_grpc.HealthStub(service.channel).Check(request, timeout=WAIT_S)
    assert checked.status == health_pb2.HealthCheckResponse.SERVING
    stream = reflection_pb2_grpc.ServerReflectionStub(service.channel).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=WAIT_S
    )
    (answer,) = [response async for response in stream]
    assert "headrace.v1.TokenizeService" in {one.name for one in answer.list_services_response.service}


class Closed(SimulatorBackend):
    """An engine that keeps its tokenizer to itself."""

    @property
    def tokenizer(self) -> None:  # type: ignore[override]
        return None


async def test_a_model_without_a_tokenizer_says_so_and_lists_no_capability() -> None:
    async with running_service(simulated_model(), simulated_model("closed", backend=Closed())) as service:
        for call in (tokenize(service, model="closed", text="x"), detokenize(service, [1], model="closed")):
            refused = await failure(call)
            assert (refused.code, refused.info.reason) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "CAPABILITY_UNSUPPORTED",
            )
            assert refused.info.metadata["capability"] == "tokenize"
        models = (await service.model.ListModels(model_pb2.ListModelsRequest(), timeout=WAIT_S)).models
        able = {model.id: model_pb2.MODEL_CAPABILITY_TOKENIZE in model.capabilities for model in models}
        assert able == {"sim": True, "closed": False}


async def test_a_chat_needs_a_template() -> None:
    async with running_service(simulated_model(template=None)) as service:
        refused = await failure(tokenize(service, chat=chat("hi")))
        assert (refused.info.reason, refused.fields) == ("CAPABILITY_UNSUPPORTED", ["chat"])


class Slow:
    """A tokenizer that works until it is told to end, and has no pieces."""

    vocab_size = 10
    has_pieces = False
    max_text_bytes = 100

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.go = asyncio.Event()
        self.entered = asyncio.Semaphore(0)

    async def encode(self, text: str, *, add_special_tokens: bool, with_pieces: bool = False) -> EncodedText:
        self.running += 1
        self.most = max(self.most, self.running)
        self.entered.release()
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return EncodedText((1,))

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "x"


async def test_a_tokenizer_without_pieces_refuses_them_by_name() -> None:
    async with running_service(simulated_model(backend=Closed(), declared_tokenizer=Slow())) as service:
        refused = await failure(tokenize(service, text="x", include_pieces=True))
        assert (refused.info.reason, refused.fields) == ("CAPABILITY_UNSUPPORTED", ["include_pieces"])


async def test_two_texts_are_read_at_once_and_the_others_wait_no_longer_than_their_deadline() -> None:
    slow = Slow()
    async with running_service(simulated_model(backend=Closed(), declared_tokenizer=slow)) as service:
        request = tokenize_pb2.TokenizeRequest(model="sim", text="x")
        calls = [stub(service).Tokenize(request, timeout=WAIT_S) for _ in range(3)]
        waiting = asyncio.gather(*calls)
        async with asyncio.timeout(WAIT_S):
            await slow.entered.acquire()
            await slow.entered.acquire()
        assert (await failure(stub(service).Tokenize(request, timeout=0.05))).code is grpc.StatusCode.DEADLINE_EXCEEDED
        slow.go.set()
        await waiting
        assert (slow.most, slow.running) == (2, 0)


async def test_a_turn_is_free_when_the_work_is_done_and_not_when_the_caller_leaves() -> None:
    slow = Slow()
    async with running_service(simulated_model(backend=Closed(), declared_tokenizer=slow)) as service:
        request = tokenize_pb2.TokenizeRequest(model="sim", text="x")
        for _ in range(2):
            call = stub(service).Tokenize(request, timeout=WAIT_S)
            async with asyncio.timeout(WAIT_S):
                await slow.entered.acquire()
            call.cancel()
        late = await failure(stub(service).Tokenize(request, timeout=0.2))
        assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (slow.most, slow.running) == (2, 2)
        slow.go.set()
        assert (await stub(service).Tokenize(request, timeout=WAIT_S)).token_count == 1


async def test_a_model_may_take_less_than_the_contract_allows() -> None:
    slow = Slow()
    slow.go.set()
    async with running_service(simulated_model(backend=Closed(), declared_tokenizer=slow)) as service:
        assert (await tokenize(service, text="x" * 100)).token_count == 1
        for field, wanted in (("text", {"text": "x" * 101}), ("chat", {"chat": chat("x" * 101)})):
            refused = await failure(tokenize(service, **wanted))
            assert refused.fields == [field]
            assert "at most 100 bytes" in str(refused.error.details())
