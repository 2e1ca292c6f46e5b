"""One generation told in five ways: chat and responses over HTTP, streamed and whole, and gRPC events say the same.

Random bytes as tokens, cut anywhere, with stop strings, reasoning and tool
calls in them. A failing case is named by its seed. The Responses API knows no
stop strings, one choice and no short limits: it is asked where these are not.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.v1 import chat_pb2, generation_pb2, sampling_pb2
from service.parsing import ReasoningFormat, ToolFormat
from tests.support.gateway_harness import RawClient, read_events, running_gateway
from tests.support.service import GenerateRequest, RunningService, running_service, script, simulated_model

CASES = 120
FORMATS = (ToolFormat.HERMES, ToolFormat.LLAMA3_JSON, ToolFormat.MISTRAL, ToolFormat.JSON)
REASONS = {1: "stop", 2: "length", 3: "length", 4: "tool_calls"}
# Pieces of answers: plain, many bytes a character, broken UTF-8, and what parsers look for.
PIECES = (
    b"a", b"b", b"ab", b" ", b"\n", b"END", b"EN", "聪明".encode(), "😸".encode(), b"\xff", b"\xf0\x9f",
    b"\xef\xbf\xbd", b"\x00", b"<think>", b"</think>", b"<tool_call>", b"</tool_call>", b"<tool", b"[TOOL_CALLS]",
    b"{", b"}", b'"', b"\\", b"[", b"]", b",", b'{"name": "f", "arguments": {"x": "\xc3\xbc}"}}',
    b'{"name": "f", "parameters": {"y": [1, 2]}}', b'{"name": "g"', b"```json\n",
    b'<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
    b'[TOOL_CALLS] [{"name": "f", "arguments": {}}]', b"</s>",
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@dataclass(slots=True)
class Told:
    """One choice, as one of the ways told it; `raw` are the bytes of the tokens in its log-probs."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    reason: str = ""
    raw: bytes = b""

    def check_tokens(self, case: Case) -> None:
        """Assert that the tokens are those of the text, as far as none of them is half a mark."""
        read = self.raw.decode(errors="replace")
        if not self.text or not case.answer.startswith(self.text):
            # What stood before the text was left out, and may have ended inside of its first token.
            assert self.text or not read
        elif self.calls or case.stop:
            assert read.startswith(self.text)
        else:
            assert read == self.text


@dataclass(slots=True, frozen=True)
class Case:
    """What to ask for. `answer` is all that the model would say."""

    model: str
    prompt: str
    answer: str
    stop: list[str]
    has_tools: bool
    choices: int
    limit: int


def case_of(seed: int) -> Case:
    chance = random.Random(seed)
    answer = b"".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 14)))
    tokens, at = [], 0
    while at < len(answer):
        size = chance.choice((1, 1, 2, 3, 5, 9, 40))
        tokens.append("".join(f"\\x{byte:02x}" for byte in answer[at : at + size]))
        at += size
    return Case(
        model=chance.choice(FORMATS).value,
        prompt=script(tokens=tokens, output_tokens=len(tokens)),
        answer=answer.decode(errors="replace"),
        stop=chance.sample(["END", "ab", "\n\n", "b ", "聪明", "N"], chance.choice((0, 0, 1, 2))),
        has_tools=chance.random() < 0.7,
        choices=chance.choice((1, 1, 1, 2)),
        limit=chance.choice((3, 200, 200)),
    )


def body_of(case: Case, **members: Any) -> dict[str, Any]:
    body = {
        "model": case.model,
        "messages": [{"role": "user", "content": case.prompt}],
        "max_tokens": case.limit,
        "n": case.choices,
        "stop": case.stop,
        "logprobs": True,
        **members,
    }
    return body | ({"tools": [TOOL]} if case.has_tools else {})


async def whole(port: int, case: Case) -> dict[int, Told]:
    async with RawClient(port) as client:
        answer = await client.post(body_of(case))
    assert answer.status == 200, answer.body
    told = {}
    for choice in answer.json()["choices"]:
        message = choice["message"]
        calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or []]
        told[choice["index"]] = Told(
            message["content"] or "",
            message.get("reasoning_content") or "",
            calls,
            choice["finish_reason"],
            raw_of((choice["logprobs"] or {}).get("content")),
        )
    return told


def raw_of(entries: list[dict[str, Any]] | None) -> bytes:
    return b"".join([bytes(entry["bytes"]) for entry in entries or ()])


async def streamed(port: int, case: Case) -> dict[int, Told]:
    async with RawClient(port) as client:
        answer = await client.post(body_of(case, stream=True))
    assert answer.status == 200, answer.body
    events = read_events(answer.body)
    assert events[-1] == "[DONE]"
    told: dict[int, Told] = {}
    for chunk in map(json.loads, events[:-1]):
        for choice in chunk["choices"]:
            one = told.setdefault(choice["index"], Told())
            delta = choice["delta"]
            one.text += delta.get("content") or ""
            one.reasoning += delta.get("reasoning_content") or ""
            one.raw += raw_of((choice["logprobs"] or {}).get("content"))
            for piece in delta.get("tool_calls") or ():
                if "id" in piece:
                    assert piece["index"] == len(one.calls)
                    one.calls.append([piece["function"]["name"], ""])
                one.calls[piece["index"]][1] += piece["function"].get("arguments", "")
            if choice["finish_reason"] is not None:
                assert not one.reason
                one.reason = choice["finish_reason"]
    return told


def response_body(case: Case, **members: Any) -> dict[str, Any]:
    body = {"model": case.model, "input": case.prompt, "max_output_tokens": case.limit, **members}
    body["include"] = ["message.output_text.logprobs"]
    return body | ({"tools": [{"type": "function", **TOOL["function"]}]} if case.has_tools else {})


async def whole_response(port: int, case: Case) -> dict[int, Told]:
    async with RawClient(port) as client:
        answer = await client.post(response_body(case), "/v1/responses")
    assert answer.status == 200, answer.body
    return {0: told_by(answer.json())}


def told_by(response: dict[str, Any]) -> Told:
    one = Told()
    for item in response["output"]:
        if item["type"] == "function_call":
            one.calls.append([item["name"], item["arguments"]])
        for part in item.get("content") or ():
            if item["type"] == "reasoning":
                one.reasoning += part["text"]
            else:
                one.text += part["text"]
                one.raw += raw_of(part["logprobs"])
    one.reason = reason_of(response)
    return one


def reason_of(response: dict[str, Any]) -> str:
    return "length" if response["status"] == "incomplete" else response["status"]


async def streamed_response(port: int, case: Case) -> dict[int, Told]:
    async with RawClient(port) as client:
        answer = await client.post(response_body(case, stream=True), "/v1/responses")
    assert answer.status == 200, answer.body
    one = Told()
    for event in map(json.loads, read_events(answer.body)):
        match event["type"]:
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                one.calls.append([event["item"]["name"], ""])
            case "response.function_call_arguments.delta":
                one.calls[-1][1] += event["delta"]
            case "response.reasoning_text.delta":
                one.reasoning += event["delta"]
            case "response.output_text.delta":
                one.text += event["delta"]
                one.raw += raw_of(event["logprobs"])
            case "response.completed" | "response.incomplete":
                one.reason = reason_of(event["response"])
                assert one == told_by(event["response"])
    return {0: one}


async def over_grpc(service: RunningService, case: Case) -> dict[int, Told]:
    tools = [chat_pb2.Tool(function=chat_pb2.FunctionTool(name="f", parameters_json_schema='{"type":"object"}'))]
    request = GenerateRequest(
        model=case.model,
        chat=chat_pb2.ChatInput(
            messages=[chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, content=[chat_pb2.ContentPart(text=case.prompt)])],
            tools=tools if case.has_tools else [],
        ),
        sampling=sampling_pb2.SamplingParams(max_output_tokens=case.limit),
        stop=sampling_pb2.StopCriteria(sequences=case.stop),
        output=generation_pb2.OutputOptions(logprobs=True),
        choice_count=case.choices,
    )
    told: dict[int, Told] = {}
    for event in await service.events(request):
        delta: generation_pb2.ChoiceDelta = event.delta
        if event.WhichOneof("event") == "choice_finished":
            told.setdefault(event.choice_finished.index, Told()).reason = REASONS[event.choice_finished.reason]
        if event.WhichOneof("event") != "delta":
            continue
        one = told.setdefault(delta.index, Told())
        one.text += delta.text
        one.reasoning += delta.reasoning_text
        if delta.WhichOneof("content") == "text":
            one.raw += b"".join([entry.raw_bytes for entry in delta.logprobs])
        if delta.HasField("tool_call"):
            if delta.tool_call.id:
                one.calls.append([delta.tool_call.function_name, ""])
            one.calls[delta.tool_call.index][1] += delta.tool_call.arguments_fragment
    return told


@pytest.mark.timeout(120)
async def test_chat_responses_and_grpc_tell_the_same_streamed_and_whole() -> None:
    models = [simulated_model(form.value, tool_format=form, reasoning_format=ReasoningFormat.THINK) for form in FORMATS]
    async with running_service(*models) as service, running_gateway(f"127.0.0.1:{service.port}") as gateway:
        responses = 0
        for seed in range(CASES):
            case = case_of(seed)
            first, second, third = await asyncio.gather(
                whole(gateway.port, case), streamed(gateway.port, case), over_grpc(service, case)
            )
            assert len(first) == case.choices, seed
            assert first == second == third, f"seed {seed}: {case}"
            for told in first.values():
                told.check_tokens(case)
            if case.stop or case.choices > 1 or case.limit < 16:
                continue
            (one,) = first.values()
            expected = {0: replace(one, reason="length" if one.reason == "length" else "completed")}
            fourth, fifth = await asyncio.gather(
                whole_response(gateway.port, case), streamed_response(gateway.port, case)
            )
            assert expected == fourth == fifth, f"seed {seed}: {case}"
            responses += 1
    assert responses > CASES // 8
