"""What is too long whatever is in it is refused before anything reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from service.admission.limits import AdmissionLimits
from service.admission.slots import Slots
from service.backends.base import BackendInfo, EngineItem, EngineRequest
from service.backends.simulator import SimulatorBackend
from service.catalog.model import Model
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Chat, ChatMessage, GenerationRequest, Input, Prompt, Role, ToolCall
from service.generation.fit import fit
from service.parsing import ToolFormat
from service.templates import ChatTemplate

CONTEXT, LONGEST = 100, 16
LIMIT = CONTEXT * LONGEST


class Counting(SimulatorBackend):
    """One token for 16 bytes; `counted` are the lengths of what it was asked for."""

    def __init__(self, longest: int | None = LONGEST) -> None:
        super().__init__()
        self.counted: list[int] = []
        self.longest = longest

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, max_context_tokens=CONTEXT, longest_token_bytes=self.longest)

    async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
        self.counted.append(len(prompt))
        return -(-len(prompt.encode()) // LONGEST)

    def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        raise NotImplementedError


class Seen(ChatTemplate):
    """Counts its renderings."""

    rendered = 0

    def render(self, chat: Chat, *, add_generation_prompt: bool = True) -> str:
        self.rendered += 1
        return super().render(chat, add_generation_prompt=add_generation_prompt)


def model(backend: Counting, source: str = "{% for m in messages %}{{ m.content | trim }}{% endfor %}") -> Model:
    return Model(
        id="m",
        backend=backend,
        slots=Slots(AdmissionLimits(running=1, waiting=1)),
        max_context_tokens=CONTEXT,
        template=Seen(source + "{{ tools }}", origin="t"),
        tool_format=ToolFormat.HERMES,
    )


async def refusal(asked: Input, served: Model) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await fit(GenerationRequest(model="m", input=asked), served, Deadline.after(10), "r")
    return caught.value


def said(text: str, role: Role = Role.USER) -> ChatMessage:
    return ChatMessage(role=role, content=text)


@pytest.mark.parametrize("letter", ["x", "é", "🧿"])
async def test_texts_that_fit_no_window_are_neither_rendered_nor_counted(letter: str) -> None:
    text = letter * (LIMIT // len(letter.encode()) + 1)
    half = said(text[: len(text) // 2 + 1])
    for asked in (Prompt(text=text), Chat(messages=(said(text),)), Chat(messages=(half, half))):
        backend = Counting()
        served = model(backend)
        error = await refusal(asked, served)
        assert error.reason is Reason.CONTEXT_LENGTH_EXCEEDED
        assert error.metadata == {"maxContextTokens": "100"}
        assert "100 tokens; the prompt has at least 101" in error.message
        assert isinstance(served.template, Seen)
        assert (backend.counted, served.template.rendered) == ([], 0)


async def test_what_a_template_may_leave_out_is_not_reckoned_with() -> None:
    call = ToolCall(id="c", name="f", arguments='{"a": "' + "x" * LIMIT + '"}')
    thought = ChatMessage(role=Role.ASSISTANT, content="y", reasoning="z" * LIMIT, tool_calls=(call,))
    spaces = " " * LIMIT + "x" + "\n" * LIMIT
    served = model(Counting())
    asked = GenerationRequest(model="m", input=Chat(messages=(said(spaces), thought)))
    assert (await fit(asked, served, Deadline.after(10), "r"))[0].prompt == "xyNone"


async def test_a_prompt_that_becomes_too_long_by_its_template_is_not_counted() -> None:
    backend = Counting()
    error = await refusal(Chat(messages=(said("x"),)), model(backend, "z" * LIMIT))
    assert (error.reason, backend.counted) == (Reason.CONTEXT_LENGTH_EXCEEDED, [])


async def test_what_may_fit_is_counted() -> None:
    backend = Counting()
    asked = GenerationRequest(model="m", input=Prompt(text="x" * (LIMIT - LONGEST)))
    (request,) = await fit(asked, model(backend), Deadline.after(10), "r")
    assert (request.sampling.max_output_tokens, backend.counted) == (1, [LIMIT - LONGEST])


async def test_without_a_longest_token_everything_is_counted() -> None:
    backend = Counting(longest=None)
    error = await refusal(Prompt(text="x" * (LIMIT + 1)), model(backend))
    assert (error.metadata["promptTokens"], backend.counted) == ("101", [LIMIT + 1])


async def test_a_tokenizer_of_its_own_says_how_long_its_tokens_are() -> None:
    class Words:
        longest_token_bytes = 2

        def count(self, text: str, *, add_special_tokens: bool) -> int:
            raise AssertionError("nothing to count")

    served = model(Counting())
    served.tokenizer = Words()
    assert "at least 101" in (await refusal(Prompt(text="x" * 201), served)).message


async def test_a_tokenizer_that_does_not_answer_is_a_refusal() -> None:
    class Silent(Counting):
        async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
            raise ServiceError(Reason.BACKEND_UNAVAILABLE, "silent")

    assert (await refusal(Prompt(text="x" * 200), model(Silent()))).reason is Reason.BACKEND_UNAVAILABLE
