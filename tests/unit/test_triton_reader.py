"""Reading an ensemble's responses: any order of outputs, counts that are there or not, times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from service.backends.base import EngineFinish, EngineOutput
from service.backends.triton.channel import address_of
from service.backends.triton.ensemble_reader import EnsembleReader
from service.core.errors import Reason, ServiceError

TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")


def number(value: int, dtype: Any = np.int32) -> tuple[str, bytes]:
    return {np.int32: "INT32", np.int64: "INT64"}[dtype], np.array([[value]], dtype).tobytes()


def response(data: bytes, order: list[str] | None = None, **numbers: tuple[str, bytes]) -> Any:
    text = serialize_byte_tensor(np.array([[data]], dtype=np.object_)).item()
    outputs = {"text_output": ("BYTES", text), **numbers}
    message = service_pb2.ModelInferResponse()
    for name in order or outputs:
        datatype, raw = outputs[name]
        message.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        message.raw_output_contents.append(raw)
    return message


@given(st.lists(st.tuples(st.binary(), st.integers(0, 9), st.permutations(range(3))), min_size=1, max_size=8))
def test_text_and_counts_do_not_depend_on_the_order_of_the_outputs(
    steps: list[tuple[bytes, int, list[int]]],
) -> None:
    names = ["text_output", "num_output_tokens", "num_input_tokens"]
    reader = EnsembleReader(max_output_tokens=10_000)
    for data, tokens, order in steps:
        message = response(
            data,
            [names[place] for place in order],
            num_output_tokens=number(tokens),
            num_input_tokens=number(5),
        )
        assert reader.read(message) == EngineOutput(data, tokens)
    finished = reader.finished()
    assert finished.output_tokens == sum(tokens for _, tokens, _ in steps)
    assert finished.prompt_tokens == 5
    assert finished.reason is EngineFinish.STOP


def test_one_response_without_a_count_makes_the_total_unknown() -> None:
    reader = EnsembleReader(max_output_tokens=2)
    assert reader.read(response(b"a", num_output_tokens=number(1))) == EngineOutput(b"a", 1)
    assert reader.read(response(b"b")) == EngineOutput(b"b", None)
    finished = reader.finished()
    assert finished.output_tokens is None
    assert finished.reason is EngineFinish.UNKNOWN


def test_the_times_are_those_of_the_last_response() -> None:
    reader = EnsembleReader(max_output_tokens=9)
    for last in (3, 5):
        values = dict(zip(TIMES, (1, 2, 3, last), strict=True))
        reader.read(response(b"a", **{name: number(value * 10**9, np.int64) for name, value in values.items()}))
    assert reader.started().queue_s == 1
    assert reader.finished().engine_prefill_s == 1
    assert reader.finished().engine_decode_s == 2


def test_a_time_that_was_not_reached_is_unknown() -> None:
    reader = EnsembleReader(max_output_tokens=9)
    reader.read(response(b"a", arrival_time_ns=number(7, np.int64), first_scheduled_time_ns=number(0, np.int64)))
    assert reader.started().queue_s is None


def test_a_response_without_outputs_is_nothing_and_no_generation() -> None:
    reader = EnsembleReader(max_output_tokens=9)
    assert reader.read(service_pb2.ModelInferResponse()) is None
    with pytest.raises(ServiceError) as caught:
        reader.finished()
    assert caught.value.reason is Reason.BACKEND_ERROR


def test_outputs_without_their_contents_are_an_error() -> None:
    message = response(b"a")
    del message.raw_output_contents[:]
    with pytest.raises(ServiceError, match="unexpected form"):
        EnsembleReader(max_output_tokens=9).read(message)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("triton:8001", ("triton", 8001)),
        ("dns:///triton.svc:8001", ("triton.svc", 8001)),
        ("[::1]:8001", ("::1", 8001)),
        ("unix:/tmp/triton", ("unix:/tmp/triton", None)),
    ],
)
def test_host_and_port_are_taken_from_the_target(url: str, address: tuple[str, int | None]) -> None:
    assert address_of(url) == address
