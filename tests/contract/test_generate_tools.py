"""Tool calls and reasoning over gRPC: what the model writes, and what a caller reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from headrace.v1 import chat_pb2, generation_pb2, model_pb2, sampling_pb2
from service.backends.base import BackendInfo, EngineItem, EngineRequest, Feature
from service.backends.simulator import SimulatorBackend
from service.core.errors import Violation, invalid
from service.parsing import ReasoningFormat, ToolFormat
from service.templates import load_template
from tests.support.service import GenerateRequest, RunningService, running_service, script, simulated_model

WEATHER = chat_pb2.Tool(
    function=chat_pb2.FunctionTool(
        name="get_weather",
        description="The weather of a city.",
        parameters_json_schema='{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}',
    )
)
CLOCK = chat_pb2.Tool(function=chat_pb2.FunctionTool(name="get_time"))
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
REQUIRED = chat_pb2.ToolChoice(mode=chat_pb2.TOOL_CHOICE_MODE_REQUIRED)


class _ConstrainingSimulator(SimulatorBackend):
    """A simulator whose scripts are trusted to match the schema."""

    @property
    def info(self) -> BackendInfo:
        plain = super().info
        return dataclasses.replace(plain, features=plain.features | {Feature.JSON_SCHEMA, Feature.JSON_OBJECT})


@pytest.fixture
async def tools() -> AsyncIterator[RunningService]:
    guided = _ConstrainingSimulator()
    models = [
        simulated_model("sim", tool_format=ToolFormat.HERMES, reasoning_format=ReasoningFormat.THINK),
        simulated_model("guided", backend=guided, tool_format=ToolFormat.HERMES),
        simulated_model("plain", tool_format=None),
        simulated_model("no-template", template=None),
        simulated_model("qa", template=load_template("qa", guided.info), tool_format=ToolFormat.JSON),
    ]
    async with running_service(*models) as service:
        yield service


def ask(
    text: str, *tools: chat_pb2.Tool, model: str = "sim", size: int = 3, token_ms: float = 0, **members: Any
) -> GenerateRequest:
    """Return a request that makes the simulator write `text`, cut into tokens of `size` bytes."""
    raw = text.encode()
    pieces = ["".join(f"\\x{byte:02x}" for byte in raw[at : at + size]) for at in range(0, len(raw), size)]
    chat = members.pop("chat", {})
    return GenerateRequest(
        model=model,
        chat=chat_pb2.ChatInput(
            messages=[
                chat_pb2.ChatMessage(
                    role=chat_pb2.ROLE_USER,
                    content=[
                        chat_pb2.ContentPart(text=script(tokens=pieces, output_tokens=len(pieces), token_ms=token_ms))
                    ],
                )
            ],
            tools=tools,
            **chat,
        ),
        **members,
    )


@dataclasses.dataclass(slots=True)
class Read:
    """What a caller made of the events of one choice."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    ids: list[str] = dataclasses.field(default_factory=list)
    reason: int = 0
    events: list[generation_pb2.GenerateResponse] = dataclasses.field(default_factory=list)

    @property
    def usage(self) -> Any:
        return self.events[-1].completed.usage


async def read(service: RunningService, request: GenerateRequest) -> Read:
    out = Read(events=await service.events(request))
    for event in out.events:
        if event.WhichOneof("event") == "choice_finished":
            out.reason = event.choice_finished.reason
        match event.delta.WhichOneof("content"):
            case "text":
                out.text += event.delta.text
            case "reasoning_text":
                out.reasoning += event.delta.reasoning_text
            case "tool_call":
                piece = event.delta.tool_call
                if piece.id:
                    assert piece.index == len(out.calls)
                    assert piece.function_name
                    out.ids.append(piece.id)
                    out.calls.append((piece.function_name, ""))
                else:
                    assert not piece.function_name
                name, arguments = out.calls[piece.index]
                out.calls[piece.index] = (name, arguments + piece.arguments_fragment)
            case _:
                pass
    return out


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_a_call_is_told_apart_from_the_text_however_it_is_cut(tools: RunningService, size: int) -> None:
    got = await read(tools, ask(f"Let me look.\n{CALL}\n{CALL}", WEATHER, size=size))
    assert got.text.strip() == "Let me look."
    assert [(name, json.loads(arguments)) for name, arguments in got.calls] == [("get_weather", {"city": "Zürich"})] * 2
    assert len(set(got.ids)) == 2
    assert got.reason == generation_pb2.FINISH_REASON_TOOL_CALLS


async def test_arguments_are_streamed_as_they_come(tools: RunningService) -> None:
    # Paced, since what waits for its reader is joined.
    got = await read(tools, ask(CALL, WEATHER, size=2, token_ms=10))
    fragments = [event for event in got.events if event.delta.WhichOneof("content") == "tool_call"]
    assert len(fragments) > 2


async def test_text_without_a_call_stays_text_and_the_reason_stop(tools: RunningService) -> None:
    got = await read(tools, ask("It is <b>sunny</b> & <tool", WEATHER, size=1))
    assert (got.text, got.calls, got.reason) == ("It is <b>sunny</b> & <tool", [], generation_pb2.FINISH_REASON_STOP)


async def test_without_tools_nothing_is_parsed(tools: RunningService) -> None:
    got = await read(tools, ask(CALL))
    assert (got.text, got.calls, got.reason) == (CALL, [], generation_pb2.FINISH_REASON_STOP)


async def test_choice_none_hides_the_tools_and_parses_nothing(tools: RunningService) -> None:
    none = chat_pb2.ToolChoice(mode=chat_pb2.TOOL_CHOICE_MODE_NONE)
    shown = await read(tools, ask("x", WEATHER))
    hidden = await read(tools, ask("x", WEATHER, chat={"tool_choice": none}))
    assert hidden.usage.prompt_token_count < shown.usage.prompt_token_count
    got = await read(tools, ask(CALL, WEATHER, chat={"tool_choice": none}))
    assert (got.text, got.calls) == (CALL, [])


async def test_without_parallel_calls_the_engine_stops_behind_the_first(tools: RunningService) -> None:
    text = f"{CALL}\n{CALL} and much more text"
    got = await read(tools, ask(text, WEATHER, size=1, chat={"parallel_tool_calls": False}))
    assert [name for name, _ in got.calls] == ["get_weather"]
    assert got.reason == generation_pb2.FINISH_REASON_TOOL_CALLS
    assert got.usage.output_token_count <= len(CALL.encode())
    assert tools.sim.running == 0


async def test_reasoning_is_kept_apart_and_counted(tools: RunningService) -> None:
    got = await read(tools, ask(f"<think>\nHm, ü.\n</think>\n\nSo.\n{CALL}", WEATHER, size=1))
    assert got.reasoning.strip() == "Hm, ü."
    assert got.text.strip() == "So."
    assert [name for name, _ in got.calls] == ["get_weather"]
    assert 8 <= got.usage.reasoning_token_count <= len("<think>\nHm, ü.\n</think>\n".encode())
    assert got.usage.output_token_count > got.usage.reasoning_token_count


async def test_a_cut_inside_reasoning_or_a_call_ends_with_length(tools: RunningService) -> None:
    limit = sampling_pb2.SamplingParams(max_output_tokens=9)
    got = await read(tools, ask("<think>for ever and ever", size=1, sampling=limit))
    assert (got.reasoning, got.text, got.reason) == ("fo", "", generation_pb2.FINISH_REASON_LENGTH)
    limit = sampling_pb2.SamplingParams(max_output_tokens=len(CALL) - 25)
    got = await read(tools, ask(CALL, WEATHER, size=1, sampling=limit))
    assert got.reason == generation_pb2.FINISH_REASON_LENGTH
    assert got.calls[0][0] == "get_weather"
    assert '{"city": "Zürich"}'.startswith(got.calls[0][1])


async def test_choices_are_parsed_each_for_itself(tools: RunningService) -> None:
    events = await tools.events(ask(CALL, WEATHER, choice_count=2))
    names = [
        (event.delta.index, event.delta.tool_call.index, event.delta.tool_call.function_name)
        for event in events
        if event.delta.tool_call.id
    ]
    assert sorted(names) == [(0, 0, "get_weather"), (1, 0, "get_weather")]


@pytest.mark.parametrize("size", [1, 1000])
async def test_log_probs_and_ids_go_with_what_their_token_says(tools: RunningService, size: int) -> None:
    output = generation_pb2.OutputOptions(token_ids=True, logprobs=True)
    texts = {"reasoning_text": "<think>Hm, ü.</think>\n", "text": "So: ", "tool_call": CALL}
    request = ask("".join(texts.values()), WEATHER, size=size, output=output)
    if size > 1:  # a token for each part
        parts = ["".join(f"\\x{byte:02x}" for byte in text.encode()) for text in texts.values()]
        request.chat.messages[0].content[0].text = script(tokens=parts, output_tokens=3)
    got = await read(tools, request)
    raws = dict.fromkeys(texts, b"")
    ids = 0
    for event in got.events:
        if event.WhichOneof("event") == "delta":
            ids += len(event.delta.token_ids)
            raws[event.delta.WhichOneof("content")] += b"".join(one.raw_bytes for one in event.delta.logprobs)
    assert ids == (3 if size > 1 else len("".join(texts.values()).encode()))
    # The mark that closes the call comes when there is no call any more to send it with.
    closer = b"" if size > 1 else b"}\n</tool_call>"
    assert raws == {
        "reasoning_text": texts["reasoning_text"].encode() + closer,
        "text": got.text.encode(),
        "tool_call": CALL.encode().removesuffix(closer),
    }


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_stop_string_inside_a_call_is_no_call_to_run(tools: RunningService, size: int) -> None:
    text = CALL.replace("Zürich", "xSTOPy")
    got = await read(tools, ask(text, WEATHER, size=size, stop=sampling_pb2.StopCriteria(sequences=["STOP"])))
    assert got.calls == [("get_weather", '{"city": "x')]
    assert got.reason == generation_pb2.FINISH_REASON_STOP
    behind = sampling_pb2.StopCriteria(sequences=["</tool_call>"])
    got = await read(tools, ask(CALL, WEATHER, size=size, stop=behind))
    assert got.reason == generation_pb2.FINISH_REASON_TOOL_CALLS


@pytest.mark.parametrize("end", ['"Zü', '{"city": ', "get_weather", '"arguments"'])
async def test_an_engine_that_ends_inside_a_call_has_made_none_to_run(tools: RunningService, end: str) -> None:
    text = f"{CALL}\n{CALL}"
    cut = text[: text.rindex(end) + len(end)]
    got = await read(tools, ask(cut, WEATHER))
    # In the last row not even the second name has ended.
    is_named = end != "get_weather"
    assert len(got.calls) == 1 + is_named
    assert got.reason == (generation_pb2.FINISH_REASON_STOP if is_named else generation_pb2.FINISH_REASON_TOOL_CALLS)


@pytest.mark.parametrize(
    ("chat", "text"),
    [
        ({"tool_choice": REQUIRED}, '[{"name":"get_weather","arguments":{"city":"xSTOP"}}]'),
        (
            {"tool_choice": REQUIRED, "parallel_tool_calls": False},
            '{"name":"get_weather","arguments":{"city":"xSTOP"}}',
        ),
        ({"tool_choice": chat_pb2.ToolChoice(function_name="get_weather")}, '{"city":"xSTOP"}'),
    ],
)
async def test_a_forced_call_that_a_stop_string_cuts_ends_with_stop(
    tools: RunningService, chat: dict[str, Any], text: str
) -> None:
    stop = sampling_pb2.StopCriteria(sequences=["STOP"])
    got = await read(tools, ask(text, WEATHER, CLOCK, model="guided", chat=chat, stop=stop))
    assert (got.calls, got.text) == ([("get_weather", '{"city":"x')], "")
    assert got.reason == generation_pb2.FINISH_REASON_STOP


@pytest.mark.parametrize("name", ["functions.get_weather", "évil", "a b", "w" * 200, "get_time"])
async def test_every_call_that_is_told_can_be_sent_back_and_other_names_are_text(
    tools: RunningService, name: str
) -> None:
    text = CALL.replace("get_weather", name)
    got = await read(tools, ask(text, WEATHER))
    assert (got.text, got.calls, got.reason) == (text, [], generation_pb2.FINISH_REASON_STOP)
    offered = await read(tools, ask(CALL, WEATHER))
    request = ask("ok", WEATHER)
    turn = request.chat.messages.add(role=chat_pb2.ROLE_ASSISTANT)
    for call_id, (told, arguments) in zip(offered.ids, offered.calls, strict=True):
        turn.tool_calls.add(id=call_id, function_name=told, arguments_json=arguments)
        request.chat.messages.add(
            role=chat_pb2.ROLE_TOOL, tool_call_id=call_id, content=[chat_pb2.ContentPart(text="sunny")]
        )
    assert (await read(tools, request)).reason == generation_pb2.FINISH_REASON_STOP


async def test_null_is_no_argument(tools: RunningService) -> None:
    got = await read(tools, ask('<tool_call>{"name": "get_time", "arguments": null}</tool_call>', CLOCK, size=1))
    assert (got.calls, got.text) == ([("get_time", "{}")], "")


async def test_a_required_call_is_read_from_guided_json(tools: RunningService) -> None:
    calls = [{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Bern"}}]
    request = ask(json.dumps(calls), WEATHER, CLOCK, model="guided", chat={"tool_choice": REQUIRED})
    got = await read(tools, request)
    assert [(name, json.loads(arguments)) for name, arguments in got.calls] == [
        (call["name"], call["arguments"]) for call in calls
    ]
    assert (got.text, got.reason) == ("", generation_pb2.FINISH_REASON_TOOL_CALLS)


async def test_a_named_call_is_the_whole_output(tools: RunningService) -> None:
    named = chat_pb2.ToolChoice(function_name="get_weather")
    got = await read(tools, ask('{"city":"Chur"}', WEATHER, CLOCK, model="guided", chat={"tool_choice": named}))
    assert [(name, json.loads(arguments)) for name, arguments in got.calls] == [("get_weather", {"city": "Chur"})]
    assert got.reason == generation_pb2.FINISH_REASON_TOOL_CALLS


@pytest.mark.parametrize(
    ("model", "chat", "want"),
    [
        ("plain", {}, ["chat.tools"]),
        ("no-template", {}, ["chat"]),
        ("sim", {"tool_choice": REQUIRED}, ["chat.tool_choice"]),
        ("sim", {"tool_choice": chat_pb2.ToolChoice(function_name="get_weather")}, ["chat.tool_choice"]),
    ],
)
async def test_what_a_model_cannot_do_is_refused_by_name(
    tools: RunningService, model: str, chat: dict[str, Any], want: list[str]
) -> None:
    failure = await tools.failure(ask("x", WEATHER, model=model, chat=chat))
    assert failure.info.reason == "CAPABILITY_UNSUPPORTED"
    assert failure.fields == want


async def test_tool_messages_need_a_model_with_tools(tools: RunningService) -> None:
    request = ask("x", model="plain")
    request.chat.messages.add(role=chat_pb2.ROLE_TOOL, tool_call_id="call_1")
    failure = await tools.failure(request)
    assert failure.fields == ["chat.messages[1]"]


async def test_tools_and_a_constraint_contradict_each_other(tools: RunningService) -> None:
    constraint = sampling_pb2.OutputConstraint(json_object=sampling_pb2.JsonObjectConstraint())
    failure = await tools.failure(ask("x", WEATHER, model="guided", constraint=constraint))
    assert (failure.info.reason, failure.fields) == ("INVALID_FIELD", ["constraint.json_object"])


async def test_shapes_that_are_not_whole_are_named(tools: RunningService) -> None:
    request = ask("x", chat_pb2.Tool(), chat={"tool_choice": chat_pb2.ToolChoice(), "reasoning_effort": 99})
    request.priority = 9  # type: ignore[assignment]  # open enums take any number
    failure = await tools.failure(request)
    assert sorted(failure.fields) == ["chat.reasoning_effort", "chat.tool_choice", "chat.tools[0]", "priority"]


async def test_a_model_says_that_it_can_call_tools_and_reason(tools: RunningService) -> None:
    capabilities = {
        model: set((await tools.model.GetModel(model_pb2.GetModelRequest(model=model))).model.capabilities)
        for model in ("sim", "plain", "qa")
    }
    both = {model_pb2.MODEL_CAPABILITY_TOOLS, model_pb2.MODEL_CAPABILITY_REASONING}
    assert both <= capabilities["sim"]
    assert not both & capabilities["plain"]
    assert both & capabilities["qa"] == {model_pb2.MODEL_CAPABILITY_TOOLS}


@pytest.mark.parametrize("text", ['<think>hm</think>\n{"a": 1}', '{"a": 1}'])
async def test_reasoning_before_constrained_json_is_told_apart_too(text: str) -> None:
    thinking = simulated_model(backend=_ConstrainingSimulator(), reasoning_format=ReasoningFormat.THINK)
    constraint = sampling_pb2.OutputConstraint(json_object=sampling_pb2.JsonObjectConstraint())
    async with running_service(thinking) as service:
        got = await read(service, ask(text, size=1, constraint=constraint))
        assert (got.text, got.reasoning) == ('{"a": 1}', "hm" if "hm" in text else "")


class _RefusingSimulator(_ConstrainingSimulator):
    """An engine that cannot enforce any schema."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        assert request.constraint is not None
        raise invalid([Violation("constraint.json_schema", "cannot be enforced")])
        yield  # a generator, as the seam wants


async def test_a_schema_of_a_forced_call_that_cannot_be_enforced_is_blamed_on_the_tools() -> None:
    model = simulated_model(backend=_RefusingSimulator(), tool_format=ToolFormat.HERMES)
    async with running_service(model) as service:
        failure = await service.failure(ask("x", WEATHER, chat={"tool_choice": REQUIRED}))
        assert (failure.fields, failure.error.details()) == (["chat.tools"], "chat.tools: cannot be enforced")


@pytest.mark.parametrize(
    ("text", "members"),
    [
        (
            '{"a": 1} Paris',
            {"constraint": sampling_pb2.OutputConstraint(json_object=sampling_pb2.JsonObjectConstraint())},
        ),
        ('{"a": 1', {"constraint": sampling_pb2.OutputConstraint(json_schema="{}")}),
        ("I will not call.", {"chat": {"tool_choice": REQUIRED}}),
    ],
)
async def test_an_engine_that_drops_its_constraint_is_found_out(
    tools: RunningService, text: str, members: dict[str, Any]
) -> None:
    offered = [WEATHER] if "chat" in members else []
    failure = await tools.failure(ask(text, *offered, model="guided", **members))
    assert failure.info.reason == "BACKEND_ERROR"
    limit = sampling_pb2.SamplingParams(max_output_tokens=2)  # a cut answer is cut, and says so
    got = await read(tools, ask(text, *offered, model="guided", sampling=limit, **members))
    assert got.reason == generation_pb2.FINISH_REASON_LENGTH


async def test_going_on_for_ever_contradicts_a_constraint(tools: RunningService) -> None:
    constraint = sampling_pb2.OutputConstraint(json_schema="{}")
    endless = sampling_pb2.SamplingParams(ignore_eos=True)
    failure = await tools.failure(ask("x", model="guided", constraint=constraint, sampling=endless))
    assert failure.fields == ["sampling.ignore_eos"]
