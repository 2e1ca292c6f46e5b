"""Legacy completions over HTTP: several prompts, echo, best-of, against the real service with a simulated engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from service.backends.simulator import SimulatorBackend
from service.backends.simulator_words import id_of_word
from tests.support.gateway_harness import (
    RawClient,
    RawResponse,
    RunningGateway,
    read_events,
    running_gateway,
)
from tests.support.service import RunningService, eventually, running_service, script, simulated_model

COMPLETIONS = "/v1/completions"
RIVER = [id_of_word(" the"), id_of_word(" river")]


class Closed(SimulatorBackend):
    """An engine that keeps its tokenizer to itself."""

    @property
    def tokenizer(self) -> None:  # type: ignore[override]
        return None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[tuple[RunningService, RunningGateway]]:
    models = (
        simulated_model(max_choices=8),
        simulated_model("closed", backend=Closed()),
        simulated_model("small", running=1, waiting=0),
    )
    async with running_service(*models) as service, running_gateway(f"127.0.0.1:{service.port}") as gateway:
        yield service, gateway


@pytest_asyncio.fixture(loop_scope="module")
async def service(served: tuple[RunningService, RunningGateway]) -> RunningService:
    return served[0]


@pytest_asyncio.fixture(loop_scope="module")
async def client(served: tuple[RunningService, RunningGateway]) -> AsyncIterator[RawClient]:
    async with served[1].connect() as connection:
        yield connection


pytestmark = pytest.mark.asyncio(loop_scope="module")


def body(**members: Any) -> dict[str, Any]:
    return {"model": "sim", "prompt": "hi", "max_tokens": 4, **members}


def says(text: str, **options: Any) -> str:
    """Return a prompt that is answered with `text`, a token a character."""
    return script(tokens=list(text), output_tokens=len(text), **options)


async def ask(client: RawClient, **members: Any) -> Any:
    response = await client.post(body(**members), COMPLETIONS)
    assert response.status == 200, response.body
    return response.json()


async def refused(client: RawClient, **members: Any) -> dict[str, Any]:
    response = await client.post(body(**members), COMPLETIONS)
    assert response.status == 400, response.body
    error: dict[str, Any] = response.json()["error"]
    return error


def chunks(response: RawResponse) -> list[dict[str, Any]]:
    assert response.status == 200, response.body
    *events, done = read_events(response.body)
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def texts(choices: list[dict[str, Any]]) -> dict[int, str]:
    joined: dict[int, str] = {}
    for choice in choices:
        joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return joined


async def test_several_prompts_are_answered_in_their_order(client: RawClient) -> None:
    answer = await ask(client, prompt=[says("one"), says("two"), says("six"), says("ten"), says("tea"), says("end")])
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == ["one", "two", "six", "ten", "tea", "end"]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
    assert answer["id"].startswith("cmpl-gen_")
    assert answer["object"] == "text_completion"


async def test_choice_index_is_prompt_times_n_plus_choice(client: RawClient) -> None:
    answer = await ask(client, prompt=["a", "b"], n=3, seed=0, max_tokens=1)
    alone = [await ask(client, prompt=prompt, n=3, seed=0, max_tokens=1) for prompt in ("a", "b")]
    expected = [choice["text"] for one in alone for choice in one["choices"]]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    total = {name: sum(one["usage"][name] for one in alone) for name in ("prompt_tokens", "completion_tokens")}
    assert {name: answer["usage"][name] for name in total} == total
    assert answer["usage"]["total_tokens"] == sum(total.values())


async def test_token_ids_are_prompts_alone_and_in_lists(client: RawClient) -> None:
    assert (await ask(client, prompt=RIVER))["usage"]["prompt_tokens"] == 2
    answer = await ask(client, prompt=[RIVER, [1], [1, 2, 3]])
    assert answer["usage"]["prompt_tokens"] == 6
    assert len(answer["choices"]) == 3


async def test_a_stream_of_several_prompts_says_what_the_answer_says(client: RawClient) -> None:
    prompts = [says(word, token_ms=2) for word in ("first", "second", "third")]
    members: dict[str, Any] = {"prompt": prompts, "n": 2, "max_tokens": 10}
    answer = await ask(client, **members)
    response = await client.post(body(**members, stream=True, stream_options={"include_usage": True}), COMPLETIONS)
    *events, usage = chunks(response)
    choices = [choice for event in events for choice in event["choices"]]
    assert texts(choices) == texts(answer["choices"])
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    assert ends == {choice["index"]: choice["finish_reason"] for choice in answer["choices"]}
    assert usage["usage"] == answer["usage"]
    assert len({(event["id"], event["created"], event["model"]) for event in (*events, usage)}) == 1


async def test_a_stream_interleaves_its_prompts(client: RawClient) -> None:
    prompts = [says("aaaa", token_ms=20), says("bbbb", token_ms=20)]
    events = chunks(await client.post(body(prompt=prompts, stream=True), COMPLETIONS))
    order = [event["choices"][0]["index"] for event in events]
    assert order != sorted(order)


async def test_echo_puts_the_prompt_before_the_text(client: RawClient) -> None:
    answer = await ask(client, prompt="Say: ", echo=True, n=2, seed=0)
    plain = await ask(client, prompt="Say: ", n=2, seed=0)
    assert [choice["text"] for choice in answer["choices"]] == ["Say: " + one["text"] for one in plain["choices"]]
    assert answer["usage"] == plain["usage"]
    assert answer["choices"][0]["logprobs"] is None


async def test_echo_is_the_first_chunk_of_each_choice(client: RawClient) -> None:
    events = chunks(await client.post(body(prompt=["P1", "P2"], n=2, echo=True, stream=True), COMPLETIONS))
    first: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            first.setdefault(choice["index"], choice["text"])
    assert first == {0: "P1", 1: "P1", 2: "P2", 3: "P2"}


async def test_a_long_prompt_is_echoed_in_chunks_that_clients_can_read(client: RawClient) -> None:
    prompt = "é" * 20_000
    response = await client.post(body(model="sim", prompt=prompt, echo=True, stream=True), COMPLETIONS)
    assert max(map(len, response.body.split(b"\n"))) < 2**16
    text = texts([choice for event in chunks(response) for choice in event["choices"]])[0]
    assert text.startswith(prompt)


async def test_token_ids_are_echoed_as_their_text(client: RawClient) -> None:
    answer = await ask(client, prompt=[RIVER, [id_of_word(" mill")]], echo=True, seed=2, max_tokens=1)
    assert [choice["text"] for choice in answer["choices"]] == ["the river runs", "mill runs"]


async def test_echo_of_token_ids_needs_a_tokenizer_and_is_refused_by_name(client: RawClient) -> None:
    error = await refused(client, model="closed", prompt=RIVER, echo=True)
    assert (error["param"], error["code"]) == ("echo", "unsupported_value")
    assert "tokenizer" in error["message"]
    assert (await ask(client, model="closed", prompt="text", echo=True))["choices"][0]["text"].startswith("text")


async def test_best_of_counts_everything_and_shows_n(client: RawClient) -> None:
    answer = await ask(client, n=2, best_of=5, max_tokens=3, echo=True)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 15
    assert all(choice["logprobs"] is None and choice["text"].startswith("hi") for choice in answer["choices"])
    shown = await ask(client, best_of=2, max_tokens=3, logprobs=2)
    assert len(shown["choices"][0]["logprobs"]["tokens"]) == 3
    assert len(shown["choices"][0]["logprobs"]["top_logprobs"][0]) >= 1


async def test_more_than_the_model_may_run_is_refused_under_the_callers_name(client: RawClient) -> None:
    assert (await refused(client, best_of=9))["param"] == "best_of"
    assert (await refused(client, n=9))["param"] == "n"


async def test_what_is_wrong_with_one_prompt_names_it(client: RawClient) -> None:
    error = await refused(client, prompt=["fine", "word " * 9000, "fine"])
    assert (error["param"], error["code"]) == ("prompt[1]", "context_length_exceeded")
    error = await refused(client, prompt=[[1], [2, 999]])
    assert error["param"] == "prompt[1][1]"
    assert "256" in error["message"]
    error = await refused(client, prompt=[1, 999], echo=True)
    assert error["param"] == "prompt[1]"


async def test_a_failure_of_one_prompt_ends_the_whole(client: RawClient, service: RunningService) -> None:
    prompts = [says("ab", token_ms=1), script(fault="error"), script(fault="hang")]
    response = await client.post(body(prompt=prompts), COMPLETIONS)
    assert response.status == 500
    assert response.json()["error"]["code"] == "backend_error"
    await eventually(lambda: service.sim.running == 0)


async def test_a_failure_within_a_stream_is_its_only_end(client: RawClient, service: RunningService) -> None:
    prompts = [script(fault="hang", fault_after=1), script(fault="error", fault_after=2)]
    response = await client.post(body(prompt=prompts, stream=True), COMPLETIONS)
    *events, last = [json.loads(event) for event in read_events(response.body)]
    assert last["error"]["code"] == "backend_error"
    assert all("choices" in event for event in events)
    await eventually(lambda: service.sim.running == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_every_prompt(
    served: tuple[RunningService, RunningGateway], stream: bool
) -> None:
    service, gateway = served
    async with gateway.connect() as client:
        await client.send("POST", COMPLETIONS, body(prompt=[script(fault="hang", fault_after=1)] * 3, stream=stream))
        if stream:
            await client.head()
        await eventually(lambda: service.sim.running == 3)
        client.reset()
        await eventually(lambda: service.sim.running == 0)
    await gateway.wait_idle()


async def test_only_a_few_prompts_run_at_once(client: RawClient, service: RunningService) -> None:
    seen = 0

    async def watch() -> None:
        nonlocal seen
        while True:
            seen = max(seen, service.sim.running)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    answer = await ask(client, prompt=[says("ab", prefill_ms=10)] * 12)
    watching.cancel()
    assert len(answer["choices"]) == 12
    assert 1 < seen <= 4


async def test_a_full_model_is_one_error_whatever_prompt_met_it(client: RawClient) -> None:
    response = await client.post(body(model="small", prompt=[says("ab", prefill_ms=50)] * 3), COMPLETIONS)
    assert response.status == 503
    assert response.json()["error"]["code"] == "server_is_overloaded"


async def test_one_deadline_bounds_all_prompts(client: RawClient, service: RunningService) -> None:
    prompts = [says("ab", prefill_ms=150)] * 12
    response = await client.post(body(prompt=prompts), COMPLETIONS, {"request-timeout-ms": "200"})
    assert response.status == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    await eventually(lambda: service.sim.running == 0)


async def test_the_official_client_reads_it_all(served: tuple[RunningService, RunningGateway]) -> None:
    async with AsyncOpenAI(base_url=f"{served[1].url}/v1", api_key="x", max_retries=0) as openai:
        prompts = [says("one"), says("two")]
        answer = await openai.completions.create(model="sim", prompt=prompts, n=2, best_of=3, max_tokens=5, logprobs=1)
        assert [choice.text for choice in answer.choices] == ["one", "one", "two", "two"]
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.tokens == ["o", "n", "e"]
        stream = await openai.completions.create(model="sim", prompt=["A", "B"], echo=True, stream=True, max_tokens=2)
        seen: dict[int, str] = {}
        async for chunk in stream:
            for choice in chunk.choices:
                seen[choice.index] = seen.get(choice.index, "") + choice.text
        assert {index: text[0] for index, text in seen.items()} == {0: "A", 1: "B"}
        with pytest.raises(BadRequestError) as refused:
            await openai.completions.create(model="sim", prompt="x", suffix="y")
        assert (refused.value.param, refused.value.code) == ("suffix", "unsupported_parameter")
