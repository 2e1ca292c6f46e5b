"""Reading responses with text: any order of outputs, counts and times that are there or not, odd datatypes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from service.backends.base import EngineFinish, EngineOutput
from service.backends.triton.contracts.contract import TextMode
from service.backends.triton.contracts.text_reader import UNKNOWN_TOKEN, TextReader, TextRule
from service.core.errors import Reason, ServiceError
from service.core.events import TokenLogprob
from tests.support.triton_contracts import output, response

TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")


def reader(mode: TextMode = TextMode.DELTA, *, is_certain: bool = True, **fields: Any) -> TextReader:
    given = {"max_output_tokens": 10_000, **fields}
    return TextReader("ensemble", TextRule(mode, is_certain=is_certain), **given)


def text(reading: TextReader, *parts: str) -> str:
    items = [reading.read(response(text_output=output(part))) for part in parts]
    return b"".join(item.data for item in [*items, reading.rest()] if item is not None).decode()


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


def test_a_total_that_cannot_be_a_count_is_an_error() -> None:
    reading = reader()
    message = response(text_output=output(b"a"), num_output_tokens=output(2**31 - 1))
    reading.read(message)
    with pytest.raises(ServiceError, match="unexpected form"):
        reading.read(message)


@pytest.mark.parametrize(
    "count",
    [output(2**40, "INT64"), output(-1), output(0), output(float("inf"), "FP32"), output("inf"), output("nan")],
)
def test_a_prompts_count_that_cannot_be_one_is_unknown(count: tuple[str, bytes]) -> None:
    reading = reader()
    reading.read(response(text_output=output(b"a"), num_output_tokens=output(1), num_input_tokens=count))
    assert reading.started().prompt_tokens is None
    assert reading.finished().prompt_tokens is None


@pytest.mark.parametrize("end", [output(2**62, "INT64"), output("1e308"), output(-(2**62), "INT64")])
def test_a_time_that_no_generation_takes_is_unknown(end: tuple[str, bytes]) -> None:
    reading = reader()
    times = {"first_token_time_ns": output(1, "INT64"), "last_token_time_ns": end}
    reading.read(response(text_output=output(b"a"), **times))
    assert reading.finished().engine_decode_s is None


def test_what_is_told_of_a_long_answer_is_short() -> None:
    with pytest.raises(ServiceError) as caught:
        reader().read(response(text_output=output(b"a"), num_output_tokens=output("x" * 100_000)))
    assert len(caught.value.detail or "") < 400


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
        {"text_output": output(b"a"), "num_output_tokens": output(-5)},
        {"text_output": output(b"a"), "num_output_tokens": output(2**31, "INT64")},
        {"text_output": output(b"a"), "num_output_tokens": output(float("nan"), "FP32")},
        {"text_output": output(b"a"), "num_output_tokens": output("1e300")},
        {"text_output": ("BYTES", output("AA")[1] + output("BB")[1])},
        {"text_output": ("BYTES", output("ok")[1] + b"JUNK")},
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


def test_a_stream_that_turns_out_to_carry_new_texts_is_read_so_from_then_on() -> None:
    noticed = []
    reading = reader(TextMode.CUMULATIVE, is_certain=False, on_delta=lambda: noticed.append(1))
    assert text(reading, "Hello", " world", " world", "!") == "Hello world world!"
    assert noticed == [1]


def test_text_that_was_held_back_is_not_lost_when_new_texts_are_noticed() -> None:
    unknown = "\N{REPLACEMENT CHARACTER}"
    assert text(reader(TextMode.CUMULATIVE, is_certain=False), f"ab{unknown}", "cd") == f"ab{unknown}cd"


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_whole_text_that_shrinks_is_no_new_text(*, is_certain: bool) -> None:
    assert text(reader(TextMode.CUMULATIVE, is_certain=is_certain), "Hello", "", "Hello!") == "Hello!"


def test_a_configured_mode_stays_whatever_the_responses_look_like() -> None:
    assert text(reader(TextMode.CUMULATIVE), "Hello", " world") == "Hellod"


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


@pytest.mark.parametrize(
    ("dtype", "datatype", "sent_", "read"),
    [
        (np.float32, "FP32", -math.inf, -9999),
        (np.float32, "FP32", math.inf, -9999),
        (np.float32, "FP32", math.nan, -9999),
        (np.float32, "FP32", -20_000, -9999),
        (np.float64, "FP64", -0.5, -0.5),
        (np.float64, "FP64", 1e39, float(np.finfo(np.float32).max)),
    ],
)
def test_a_log_prob_is_a_finite_number_of_32_bits(dtype: Any, datatype: str, sent_: float, read: float) -> None:
    values = (datatype, np.array([sent_], dtype).tobytes())
    item = reader(logprobs=True).read(response(text_output=output("a"), output_log_probs=values))
    assert item is not None
    assert [one.logprob for one in item.logprobs] == [read]
    assert np.isfinite(np.float32(item.logprobs[0].logprob))


def test_log_probs_of_another_datatype_are_an_error() -> None:
    with pytest.raises(ServiceError, match="unexpected form"):
        reader(logprobs=True).read(response(text_output=output("a"), output_log_probs=output(1)))
