"""Tokenize and detokenize over HTTP, against the real service with a simulated engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.openai.tokenize import DetokenizeAnswer, TokenizeAnswer
from service.backends.simulator import SimulatorBackend
from service.backends.tokenizer import EncodedText
from tests.support.gateway_harness import RawClient, RunningGateway, chat_body, running_gateway
from tests.support.service import running_service, simulated_model

TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"


class Closed(SimulatorBackend):
    """An engine that keeps its tokenizer to itself."""

    @property
    def tokenizer(self) -> None:  # type: ignore[override]
        return None


class Bytes:
    """A tokenizer whose tokens are bytes."""

    vocab_size = 256
    has_pieces = True
    max_text_bytes = 1000

    async def encode(self, text: str, *, add_special_tokens: bool, with_pieces: bool = False) -> EncodedText:
        data = text.encode()
        return EncodedText(tuple(data), [bytes([byte]) for byte in data] if with_pieces else ())

    async def decode(self, token_ids: Any, *, skip_special_tokens: bool) -> str:
        return bytes(token_ids).decode(errors="replace")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[RunningGateway]:
    models = (
        simulated_model(),
        simulated_model("closed", backend=Closed()),
        simulated_model("bytes", backend=Closed(), declared_tokenizer=Bytes(), max_context_tokens=None),
        simulated_model("base", template=None),
    )
    async with running_service(*models) as service, running_gateway(f"127.0.0.1:{service.port}") as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: RunningGateway) -> AsyncIterator[RawClient]:
    async with gateway.connect() as connection:
        yield connection


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def tokenize(client: RawClient, **members: Any) -> dict[str, Any]:
    response = await client.post({"model": "sim", **members}, TOKENIZE)
    assert response.status == 200, response.body
    TokenizeAnswer.model_validate_json(response.body)
    document: dict[str, Any] = response.json()
    return document


async def detokenize(client: RawClient, tokens: list[int], model: str = "sim") -> str:
    response = await client.post({"model": model, "tokens": tokens}, DETOKENIZE)
    assert response.status == 200, response.body
    return DetokenizeAnswer.model_validate_json(response.body).prompt


async def refused(client: RawClient, path: str, status: int = 400, **members: Any) -> dict[str, Any]:
    response = await client.post(members, path)
    assert response.status == status, response.body
    assert response.headers["x-should-retry"] == "false"
    error: dict[str, Any] = response.json()["error"]
    return error


async def test_a_text_becomes_ids_and_ids_become_the_text(client: RawClient) -> None:
    answer = await tokenize(client, prompt="the river runs")
    assert (answer["count"], answer["max_model_len"], answer["token_strs"]) == (4, 8192, None)
    assert len(answer["tokens"]) == 4
    assert await detokenize(client, answer["tokens"][1:]) == "the river runs"


async def test_special_tokens_and_strings_are_as_asked_for(client: RawClient) -> None:
    answer = await tokenize(client, prompt="the river", add_special_tokens=False, return_token_strs=True)
    assert answer["token_strs"] == [" the", " river"]
    answer = await tokenize(client, prompt="the", add_special_tokens=True, return_token_strs=True)
    assert answer["token_strs"] == ["<s>", " the"]


async def test_part_of_a_character_is_shown_as_its_bytes(client: RawClient) -> None:
    answer = await tokenize(client, model="bytes", prompt="aé", return_token_strs=True)
    assert answer["token_strs"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert answer["max_model_len"] is None
    assert await detokenize(client, answer["tokens"], "bytes") == "aé"
    assert await detokenize(client, answer["tokens"][:2], "bytes") == "a\ufffd"


async def test_nothing_has_no_tokens(client: RawClient) -> None:
    assert (await tokenize(client, prompt="", add_special_tokens=False))["tokens"] == []
    assert await detokenize(client, []) == ""


async def test_a_chat_has_as_many_tokens_as_its_completion_counts(client: RawClient) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    asked = {"messages": messages, "chat_template_kwargs": {"x": 1}, "temperature": 0.5}
    answer = await tokenize(client, **asked, add_special_tokens=False, add_generation_prompt=True)
    completion = await client.post(chat_body(model="sim", max_tokens=1, **asked))
    assert completion.json()["usage"]["prompt_tokens"] == answer["count"]


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"model": "sim"}, "prompt", "missing_required_parameter"),
        ({"prompt": "x"}, "model", "missing_required_parameter"),
        ({"model": "sim", "prompt": "x", "messages": []}, "messages", "invalid_value"),
        ({"model": "sim", "messages": []}, "messages", "empty_array"),
        ({"model": "sim", "messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"model": "sim", "prompt": ["a"]}, "prompt", "invalid_type"),
        (
            {"model": "sim", "messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
            "add_special_tokens",
            "unsupported_value",
        ),
        (
            {"model": "sim", "messages": [{"role": "user", "content": "x"}], "continue_final_message": True},
            "continue_final_message",
            "unsupported_parameter",
        ),
        ({"model": "base", "messages": [{"role": "user", "content": "x"}]}, "messages", "unsupported_parameter"),
    ],
)
async def test_what_is_wrong_is_named(client: RawClient, members: dict[str, Any], param: str, code: str) -> None:
    error = await refused(client, TOKENIZE, **members)
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tokens": [1]}, "model"),
        ({"model": "sim"}, "tokens"),
        ({"model": "sim", "tokens": "x"}, "tokens"),
        ({"model": "sim", "tokens": [1, "x"]}, "tokens[1]"),
        ({"model": "sim", "tokens": [1, -1]}, "tokens[1]"),
        ({"model": "sim", "tokens": [1, 2**31]}, "tokens[1]"),
        ({"model": "sim", "tokens": [1, 2, 256]}, "tokens[2]"),
    ],
)
async def test_what_is_wrong_with_ids_is_named(client: RawClient, members: dict[str, Any], param: str) -> None:
    assert (await refused(client, DETOKENIZE, **members))["param"] == param


async def test_a_model_without_a_tokenizer_says_so(client: RawClient) -> None:
    for path, members in ((TOKENIZE, {"prompt": "x"}), (DETOKENIZE, {"tokens": [1]})):
        error = await refused(client, path, model="closed", **members)
        assert (error["param"], error["code"]) == ("model", "unsupported_value")
        assert "`closed` does not support tokenization" in error["message"]


async def test_an_unknown_model_is_not_found(client: RawClient) -> None:
    assert (await refused(client, TOKENIZE, 404, model="nope", prompt="x"))["code"] == "model_not_found"
    assert (await refused(client, DETOKENIZE, 404, model="nope", tokens=[1]))["code"] == "model_not_found"


async def test_bodies_and_methods_are_checked_as_everywhere(client: RawClient) -> None:
    assert (await client.get(TOKENIZE)).status == 405
    assert (await client.post(b"{", TOKENIZE)).status == 400
    assert (await client.post(b"[]", DETOKENIZE)).status == 400
    headers = {"content-type": "text/plain"}
    assert (await client.post(b"{}", TOKENIZE, headers)).status == 415


async def test_there_is_no_embeddings_endpoint(client: RawClient) -> None:
    assert (await client.post({"model": "sim", "input": "x"}, "/v1/embeddings")).status == 404


async def test_the_document_describes_both(client: RawClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path, name in ((TOKENIZE, "TokenizeAnswer"), (DETOKENIZE, "DetokenizeAnswer")):
        schema = paths[path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{name}"}


async def test_the_service_is_told_who_asks(gateway: RunningGateway) -> None:
    async with gateway.connect() as client:
        response = await client.post({"model": "sim", "prompt": "x"}, TOKENIZE, {"x-request-id": "mine"})
    assert response.headers["x-request-id"] == "mine"
