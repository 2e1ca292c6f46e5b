"""The client's tokenize and detokenize, against the real service with a simulated engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace import AsyncClient
from headrace.errors import CapabilityUnsupported, InvalidRequest, NotFound
from headrace.v1 import chat_pb2
from service.backends.simulator import SimulatorBackend
from tests.support.service import RunningService, running_service, simulated_model


class Closed(SimulatorBackend):
    """An engine that keeps its tokenizer to itself."""

    @property
    def tokenizer(self) -> None:  # type: ignore[override]
        return None


@pytest.fixture
async def served() -> AsyncIterator[RunningService]:
    async with running_service(simulated_model(), simulated_model("closed", backend=Closed())) as service:
        yield service


@pytest.fixture
async def client_of_service(served: RunningService) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{served.port}") as client:
        yield client


async def test_a_text_becomes_ids_and_ids_become_the_text(client_of_service: AsyncClient) -> None:
    answer = await client_of_service.tokenize("sim", "the river", include_pieces=True)
    assert list(answer.pieces) == [b"<s>", b" the", b" river"]
    assert answer.remaining_context_tokens == 8192 - answer.token_count
    assert await client_of_service.detokenize("sim", answer.token_ids, skip_special_tokens=True) == "the river"
    assert (await client_of_service.tokenize("sim", "the river", skip_special_tokens=True)).token_count == 2


async def test_a_conversation_may_be_turns_or_the_message(client_of_service: AsyncClient) -> None:
    turns = await client_of_service.tokenize("sim", chat=[("user", "hi")])
    message = chat_pb2.ChatInput(
        messages=[chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, content=[chat_pb2.ContentPart(text="hi")])]
    )
    assert await client_of_service.tokenize("sim", chat=message) == turns
    assert turns.token_count > 1


@pytest.mark.parametrize("fields", [{}, {"text": "x", "chat": [("user", "x")]}])
async def test_exactly_one_input_is_needed(client_of_service: AsyncClient, fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="text and chat"):
        await client_of_service.tokenize("sim", **fields)


async def test_refusals_are_exceptions_of_their_kind(client_of_service: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await client_of_service.tokenize("nope", "x")
    with pytest.raises(CapabilityUnsupported):
        await client_of_service.detokenize("closed", [1])
    with pytest.raises(InvalidRequest) as refused:
        await client_of_service.detokenize("sim", [1, 999])
    assert [violation.field for violation in refused.value.violations] == ["token_ids[1]"]


async def test_a_large_text_passes_both_ways(client_of_service: AsyncClient) -> None:
    text = "river " * 400_000
    answer = await client_of_service.tokenize("sim", text, skip_special_tokens=True)
    assert answer.token_count == 400_000
    assert len(await client_of_service.detokenize("sim", answer.token_ids)) == len(text) - 1
