"""One odd or large request: its error can be read by every client, and everybody else is served meanwhile."""

from __future__ import annotations

import threading

import grpc
import pytest

from headrace import AsyncClient, HeadraceError
from headrace._aio import Transport
from headrace.errors import InvalidRequest, NotFound
from headrace.v1 import chat_pb2, generation_pb2, tokenize_pb2, tokenize_pb2_grpc
from service.backends.simulator import SimulatorBackend
from service.core.request import Chat
from service.parsing import ToolFormat
from service.templates import ChatTemplate, load_template
from tests.support.service import Failure, RunningService, running_service, simulated_model

GenerateRequest = generation_pb2.GenerateRequest
MIB = 1024 * 1024


def said(text: str = "x", role: int = chat_pb2.ROLE_USER, **fields: object) -> chat_pb2.ChatMessage:
    return chat_pb2.ChatMessage(role=role, content=[chat_pb2.ContentPart(text=text)], **fields)


def calling(name: str = "f", arguments: str = "{}") -> chat_pb2.ChatMessage:
    call = chat_pb2.ToolCall(id="c", function_name=name, arguments_json=arguments)
    return said(role=chat_pb2.ROLE_ASSISTANT, tool_calls=[call])


BAD_NAMES = GenerateRequest(model="sim", chat=chat_pb2.ChatInput(messages=[calling("a b")] * 300))
BAD_IDS = GenerateRequest(
    model="sim", prompt="x", sampling={"logit_bias": dict.fromkeys(range(10**9, 10**9 + 500), 1.0)}
)
NO_SUCH_MODEL = GenerateRequest(model="é" * MIB, prompt="x")
NO_PARTS = GenerateRequest(
    model="sim", chat=chat_pb2.ChatInput(messages=[said(), *[chat_pb2.ChatMessage(content=[{}] * 1000)] * 200])
)


@pytest.mark.parametrize("transport", ["grpcio", "asyncio"])
@pytest.mark.parametrize("sent", [BAD_NAMES, BAD_IDS, NO_SUCH_MODEL, NO_PARTS], ids=["names", "ids", "model", "parts"])
async def test_a_request_with_hundreds_of_faults_is_refused_with_a_status_that_every_client_can_read(
    service: RunningService, transport: Transport, sent: GenerateRequest
) -> None:
    async with AsyncClient(f"127.0.0.1:{service.port}", transport=transport) as client:
        with pytest.raises(HeadraceError) as caught:
            async with client.generate(sent) as stream:
                async for _ in stream:
                    pass
        assert isinstance(caught.value, InvalidRequest | NotFound)
        if sent is not NO_SUCH_MODEL:
            assert 10 < len(caught.value.violations) <= 21
            assert caught.value.violations[-1].description.startswith("and ")
        # The connection is as good as before.
        async with client.generate(GenerateRequest(model="sim", prompt="x")) as stream:
            assert [event async for event in stream]


class Watched(ChatTemplate):
    """Knows the threads in which it was rendered."""

    threads: tuple[int, ...] = ()

    def render(self, chat: Chat, *, add_generation_prompt: bool = True) -> str:
        self.threads += (threading.get_ident(),)
        return super().render(chat, add_generation_prompt=add_generation_prompt)


@pytest.mark.parametrize(
    ("messages", "is_long"),
    [
        ([said("<|" * 2 * MIB)], True),
        ([said("<|im_end|>" * 400_000)], True),
        ([said(), calling(arguments='{"a":[' + "[]," * 300_000 + "1]}")], True),
        ([said()] * 4096, True),
        ([said(), calling()] * 100, False),
    ],
    ids=["starts", "controls", "arguments", "messages", "short"],
)
async def test_a_long_conversation_is_rendered_beside_the_loop(
    messages: list[chat_pb2.ChatMessage], is_long: bool
) -> None:
    template = Watched(load_template("chatml", SimulatorBackend().info).source, origin="t")
    template.threads = ()
    served = simulated_model(max_context_tokens=None, tool_format=ToolFormat.HERMES, template=template)
    async with running_service(served) as service:
        assert await service.events(GenerateRequest(model="sim", chat=chat_pb2.ChatInput(messages=messages)))
    assert len(template.threads) == 1
    assert (template.threads[0] != threading.get_ident()) is is_long


async def test_arguments_of_calls_beyond_a_mebibyte_are_refused_at_once(service: RunningService) -> None:
    nested = '{"a":[' + "[]," * 5_000_000 + "1]}"
    failure = await service.failure(
        GenerateRequest(model="sim", chat=chat_pb2.ChatInput(messages=[said(), calling(arguments=nested)]))
    )
    assert (failure.info.reason, failure.fields) == ("INVALID_FIELD", ["chat.messages"])


@pytest.mark.parametrize("field", ["text", "chat"])
async def test_tokenizing_takes_four_mebibytes(service: RunningService, field: str) -> None:
    stub = tokenize_pb2_grpc.TokenizeServiceStub(service.channel)

    async def ask(text: str) -> tokenize_pb2.TokenizeResponse:
        asked = {"text": text} if field == "text" else {"chat": chat_pb2.ChatInput(messages=[said(text)])}
        return await stub.Tokenize(tokenize_pb2.TokenizeRequest(model="sim", **asked), timeout=30)

    assert (await ask("é" * (2 * MIB - 100))).token_count
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask("é" * (2 * MIB + 1))
    assert Failure(caught.value, 0).fields == [field]
