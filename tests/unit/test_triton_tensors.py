"""The tensor codec, against tritonclient's own and numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from service.backends.triton.tensors import (
    TensorSpec,
    add_input,
    first_number,
    floats,
    integers,
    neutral_values,
    single_bytes,
    to_uint64,
)

NUMBERS = {
    "BOOL": (np.bool_, st.booleans()),
    "INT8": (np.int8, st.integers(-128, 127)),
    "UINT16": (np.uint16, st.integers(0, 2**16 - 1)),
    "INT32": (np.int32, st.integers(-(2**31), 2**31 - 1)),
    "UINT32": (np.uint32, st.integers(0, 2**32 - 1)),
    "INT64": (np.int64, st.integers(-(2**63), 2**63 - 1)),
    "UINT64": (np.uint64, st.integers(0, 2**64 - 1)),
    "FP32": (np.float32, st.floats(width=32, allow_nan=False)),
    "FP64": (np.float64, st.floats(allow_nan=False)),
}


def spec(datatype: str, dims: tuple[int, ...] = (1,), *, is_batched: bool = True) -> TensorSpec:
    return TensorSpec(name="t", datatype=datatype, dims=dims, is_batched=is_batched)


@given(st.lists(st.text(), min_size=1))
def test_strings_are_read_back_by_tritons_own_decoder(texts: list[str]) -> None:
    request = service_pb2.ModelInferRequest()
    add_input(request, spec("BYTES", (-1,)), texts)
    assert [raw.decode() for raw in deserialize_bytes_tensor(request.raw_input_contents[0])] == texts
    assert list(request.inputs[0].shape) == [1, len(texts)]


@given(st.data(), st.sampled_from(sorted(NUMBERS)))
def test_numbers_are_read_back_by_numpy(data: st.DataObject, datatype: str) -> None:
    dtype, values = NUMBERS[datatype]
    sent = data.draw(st.lists(values, min_size=1))
    request = service_pb2.ModelInferRequest()
    add_input(request, spec(datatype, (-1,)), sent)
    assert np.frombuffer(request.raw_input_contents[0], dtype).tolist() == sent
    assert first_number(datatype, request.raw_input_contents[0]) == sent[0]


@given(st.data(), st.sampled_from(sorted(NUMBERS)))
def test_all_elements_are_read_by_their_datatype_or_refused(data: st.DataObject, datatype: str) -> None:
    dtype, values = NUMBERS[datatype]
    sent = data.draw(st.lists(values))
    raw = np.array(sent, dtype).tobytes()
    reads = {integers: "INT" in datatype, floats: "FP" in datatype}
    for read, is_read in reads.items():
        if is_read:
            assert list(read(datatype, raw)) == sent
        else:
            with pytest.raises(ValueError, match=f"^{datatype} where"):
                read(datatype, raw)


@pytest.mark.parametrize("datatype", ["INT32", "INT64"])
def test_half_an_element_is_refused(datatype: str) -> None:
    with pytest.raises(ValueError, match="whole number of elements"):
        integers(datatype, bytes(6))


@given(st.binary())
def test_an_element_is_exactly_the_bytes_that_were_sent(data: bytes) -> None:
    assert single_bytes(serialize_byte_tensor(np.array([data], dtype=np.object_)).item()) == data


@given(st.binary(), st.lists(st.binary(), min_size=1))
def test_a_second_element_is_refused_and_never_left_out(first: bytes, rest: list[bytes]) -> None:
    raw = serialize_byte_tensor(np.array([first, *rest], dtype=np.object_)).item()
    with pytest.raises(ValueError, match="not one element"):
        single_bytes(raw)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_element_or_a_value_error(raw: bytes) -> None:
    try:
        element = single_bytes(raw)
    except ValueError:
        return
    assert raw == b"" or raw[4:] == element


@pytest.mark.parametrize("raw", [b"\x01", b"\x05\x00\x00\x00abc", b"\x02\x00\x00\x00abc"])
def test_a_bytes_tensor_with_a_wrong_length_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="BYTES"):
        single_bytes(raw)


@pytest.mark.parametrize(
    ("datatype", "raw"), [("INT32", b"\x01\x00"), ("BF16", b"\x01\x00"), ("BYTES", b"\x01\x00\x00\x00x")]
)
def test_what_is_no_number_is_refused(datatype: str, raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"number|convert"):
        first_number(datatype, raw)


def test_an_empty_tensor_has_no_number_and_no_bytes() -> None:
    assert first_number("INT32", b"") is None
    assert single_bytes(b"") == b""


def test_a_count_sent_as_text_is_read() -> None:
    assert first_number("BYTES", b"\x03\x00\x00\x00117") == 117


@pytest.mark.parametrize(
    ("given_spec", "values", "shape"),
    [
        (spec("INT32"), [1], [1, 1]),
        (spec("INT32", is_batched=False), [1], [1]),
        (spec("BYTES", (-1,)), ["a", "b"], [1, 2]),
        (spec("INT32", (2, -1)), [0, 0], [1, 2, 1]),
        (spec("INT32", (2, 3), is_batched=False), [0] * 6, [2, 3]),
    ],
)
def test_the_shape_has_the_batch_dimension_where_the_model_has_one(
    given_spec: TensorSpec, values: list[object], shape: list[int]
) -> None:
    request = service_pb2.ModelInferRequest()
    add_input(request, given_spec, values)
    assert list(request.inputs[0].shape) == shape


def test_neutral_values_fill_the_smallest_tensor() -> None:
    assert neutral_values(spec("INT32", (2, -1))) == [0, 0]
    assert neutral_values(spec("BYTES")) == [""]


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_signed_seed_keeps_its_bits(seed: int) -> None:
    assert np.array([to_uint64(seed)], np.uint64).view(np.int64)[0] == seed
