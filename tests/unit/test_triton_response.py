"""Reading responses with text: any order of outputs, counts and times that are there or not, odd datatypes."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from service.backends.base import EngineFinish, EngineOutput
from service.backends.triton.contracts.contract import TextMode
from service.backends.triton.contracts.text_reader import UNKNOWN_TOKEN, ModeMemory, TextReader
from service.core.errors import Reason, ServiceError
from service.core.events import TokenLogprob
from tests.support.triton_contracts import output, response

TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")


def reader(
    mode: TextMode = TextMode.DELTA, *, is_certain: bool = True, memory: ModeMemory | None = None, **fields: Any
) -> TextReader:
    given = {"max_output_tokens": 10_000, **fields}
    return TextReader("ensemble", memory or ModeMemory(mode, is_certain=is_certain), **given)


@given(st.lists(st.tuples(st.binary(), st.integers(0, 9), st.permutations(range(3))), min_size=1, max_size=8))
def test_text_and_counts_do_not_depend_on_the_order_of_the_outputs(
    steps: list[tuple[bytes, int, list[int]]],
) -> None:
    names = ["text_output", "num_output_tokens", "num_input_tokens"]
    reading = reader()
    for data, tokens, order in steps:
        values = dict(zip(names, (output(data), output(tokens), output(5)), strict=True))
        message = response(**{names[place]: values[names[place]] for place in order})
        assert reading.read(message) == EngineOutput(data, tokens)
    finished = reading.finished()
    assert finished.output_tokens == sum(tokens for _, tokens, _ in steps)
    assert finished.prompt_tokens == 5
    assert finished.reason is EngineFinish.STOP


def test_one_response_without_a_count_makes_the_total_unknown() -> None:
    reading = reader(max_output_tokens=2)
    assert reading.read(response(text_output=output(b"a"), num_output_tokens=output(1))) == EngineOutput(b"a", 1)
    assert reading.read(response(text_output=output(b"b"))) == EngineOutput(b"b", None)
    finished = reading.finished()
    assert finished.output_tokens is None
    assert finished.reason is EngineFinish.UNKNOWN


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_output_tokens": 3}, EngineFinish.STOP),
        ({"max_output_tokens": 2}, EngineFinish.LENGTH),
        ({"max_output_tokens": 3, "max_context_tokens": 7}, EngineFinish.CONTEXT_LENGTH),
        ({"max_output_tokens": 2, "max_context_tokens": 7}, EngineFinish.LENGTH),
        ({"max_output_tokens": 3, "max_context_tokens": 8}, EngineFinish.STOP),
    ],
)
def test_the_reason_is_computed_from_the_counts(limits: dict[str, int], reason: EngineFinish) -> None:
    reading = reader(**limits)
    reading.read(response(text_output=output(b"ab"), num_output_tokens=output(2), num_input_tokens=output(5)))
    assert reading.finished().reason is reason


def test_the_times_are_those_of_the_last_response() -> None:
    reading = reader()
    for last in (3, 5):
        seconds = dict(zip(TIMES, (1, 2, 3, last), strict=True))
        times = {name: output(value * 10**9, "INT64") for name, value in seconds.items()}
        reading.read(response(text_output=output(b"a"), **times))
    assert reading.started().queue_s == 1
    assert reading.finished().engine_prefill_s == 1
    assert reading.finished().engine_decode_s == 2


@pytest.mark.parametrize(
    "first_scheduled", [output(0, "INT64"), output("None"), output(""), output(float("nan"), "FP32"), ("INT64", b"1")]
)
def test_a_time_that_was_not_reached_or_cannot_be_read_is_unknown(first_scheduled: tuple[str, bytes]) -> None:
    reading = reader()
    outputs = {
        "text_output": output(b"a"),
        "arrival_time_ns": output(7, "INT64"),
        "first_scheduled_time_ns": first_scheduled,
    }
    reading.read(response(**outputs))
    assert reading.started().queue_s is None
    assert reading.finished().engine_queue_s is None


@pytest.mark.parametrize("datatype", ["INT32", "UINT32", "INT64", "UINT64", "FP32"])
def test_counts_have_the_datatype_of_the_response(datatype: str) -> None:
    reading = reader()
    outputs = {"num_output_tokens": output(3, datatype), "num_input_tokens": output(7, datatype)}
    assert reading.read(response(text_output=output(b"a"), **outputs)) == EngineOutput(b"a", 3)
    assert reading.started().prompt_tokens == 7


def test_numbers_that_came_as_text_are_read() -> None:
    reading = reader()
    seconds = {name: output(str(place * 10**9)) for place, name in enumerate(TIMES, start=1)}
    reading.read(response(text_output=output(b"a"), num_output_tokens=output("3"), **seconds))
    assert reading.finished().output_tokens == 3
    assert reading.finished().engine_prefill_s == 1


def test_an_empty_count_is_no_count() -> None:
    assert reader().read(response(text_output=output(b"a"), num_output_tokens=("INT32", b""))) == EngineOutput(
        b"a", None
    )


@pytest.mark.parametrize(
    "outputs",
    [
        {"other": output(b"a")},
        {"text_output": ("BYTES", b"\x05\x00\x00\x00a")},
        {"text_output": ("BYTES", b"\x05")},
        {"text_output": output(b"a"), "num_output_tokens": ("INT32", b"\x01")},
        {"text_output": output(b"a"), "num_output_tokens": output(float("inf"), "FP32")},
        {"text_output": output(b"a"), "num_output_tokens": output("many")},
    ],
)
def test_what_cannot_be_read_is_an_error_of_the_server(outputs: dict[str, tuple[str, bytes]]) -> None:
    with pytest.raises(ServiceError, match="unexpected form") as caught:
        reader().read(response(**outputs))
    assert caught.value.reason is Reason.BACKEND_ERROR


@pytest.mark.parametrize("responses_before", [0, 1])
def test_outputs_without_their_contents_are_an_error(responses_before: int) -> None:
    reading = reader()
    message = response(text_output=output(b"a"), num_output_tokens=output(1))
    for _ in range(responses_before):
        reading.read(message)
    del message.raw_output_contents[:]
    with pytest.raises(ServiceError, match="unexpected form"):
        reading.read(message)


def test_a_response_without_outputs_is_nothing_and_no_generation() -> None:
    reading = reader()
    assert reading.read(service_pb2.ModelInferResponse()) is None
    with pytest.raises(ServiceError) as caught:
        reading.finished()
    assert caught.value.reason is Reason.BACKEND_ERROR


def test_an_empty_last_response_ends_what_came_before() -> None:
    reading = reader()
    reading.read(response(text_output=output(b"a"), num_output_tokens=output(1)))
    reading.read(service_pb2.ModelInferResponse())
    assert reading.finished().output_tokens == 1


def test_whole_texts_give_what_is_new_and_the_rest_at_the_end() -> None:
    reading = reader(TextMode.CUMULATIVE)
    unknown = "\N{REPLACEMENT CHARACTER}"
    texts = [reading.read(response(text_output=output(text))) for text in ("a", f"a{unknown}", "aé", f"aé{unknown}")]
    assert [item.data.decode() for item in texts if item is not None] == ["a", "", "é", ""]
    assert reading.rest() == EngineOutput(unknown.encode(), 0)
    assert reading.rest() is None


def test_new_texts_have_no_rest() -> None:
    reading = reader()
    reading.read(response(text_output=output("\N{REPLACEMENT CHARACTER}")))
    assert reading.rest() is None


def test_a_model_that_sends_new_texts_is_noticed_once_and_read_so_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = ModeMemory(TextMode.CUMULATIVE, is_certain=False)

    def read(*texts: str) -> str:
        reading = reader(memory=memory)
        items = [reading.read(response(text_output=output(text))) for text in texts]
        rest = reading.rest()
        return b"".join(item.data for item in [*items, rest] if item is not None).decode()

    with caplog.at_level(logging.WARNING):
        assert read("Hello", " world", " world", "!") == "Hello world world!"
        # Not to be told from a whole text by itself, but the model is known by now.
        assert read("ha", "ha", "ha") == "hahaha"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_text_that_was_held_back_is_not_lost_when_new_texts_are_noticed() -> None:
    reading = reader(TextMode.CUMULATIVE, is_certain=False)
    unknown = "\N{REPLACEMENT CHARACTER}"
    items = [reading.read(response(text_output=output(text))) for text in (f"ab{unknown}", "cd")]
    assert b"".join(item.data for item in items if item is not None).decode() == f"ab{unknown}cd"


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_whole_text_that_shrinks_is_no_new_text(is_certain: bool) -> None:
    memory = ModeMemory(TextMode.CUMULATIVE, is_certain=is_certain)
    reading = reader(memory=memory)
    for text in ("Hello", "", "Hello!"):
        reading.read(response(text_output=output(text)))
    assert memory.mode is TextMode.CUMULATIVE


def test_a_configured_mode_stays_whatever_the_responses_look_like() -> None:
    memory = ModeMemory(TextMode.CUMULATIVE, is_certain=True)
    reading = reader(memory=memory)
    for text in ("Hello", " world"):
        reading.read(response(text_output=output(text)))
    assert memory.mode is TextMode.CUMULATIVE


def test_log_probs_of_each_token_have_the_text_with_the_last() -> None:
    reading = reader(logprobs=True)
    values = ("FP32", np.array([-0.5, -1.5], np.float32).tobytes())
    item = reading.read(
        response(text_output=output("ab"), num_output_tokens=output(2), output_log_probs=values),
    )
    assert item == EngineOutput(
        b"ab", 2, (), (TokenLogprob(UNKNOWN_TOKEN, -0.5, b""), TokenLogprob(UNKNOWN_TOKEN, -1.5, b"ab"))
    )


def test_log_probs_that_were_not_asked_for_are_left_alone() -> None:
    values = ("FP32", b"odd")
    item = reader().read(response(text_output=output("ab"), num_output_tokens=output(2), output_log_probs=values))
    assert item == EngineOutput(b"ab", 2)
