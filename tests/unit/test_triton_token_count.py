"""The count of a prompt that a tokenizer model tells: only what can be one."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from service.backends.triton.token_count import count_tokens
from tests.support.triton_contracts import model, output, response

TOKENIZER = model("QUERY BYTES 1 !", "REQUEST_INPUT_LEN INT32 1")


class Answers:
    """A tokenizer model that answers every prompt alike."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def ModelInfer(self, request: Any, timeout: float) -> Any:
        assert timeout == 1
        return self._answer


@pytest.mark.parametrize(("told", "count"), [(output(7), 7), (output(7, "INT64"), 7), (output("7"), 7), (output(0), 0)])
async def test_the_count_is_read_in_the_datatype_of_the_answer(told: tuple[str, bytes], count: int) -> None:
    assert await count_tokens(Answers(response(REQUEST_INPUT_LEN=told)), TOKENIZER, "Hi", 1) == count


@pytest.mark.parametrize(
    "told",
    [
        output(-4),
        output(2**40, "INT64"),
        ("FP64", struct.pack("<d", float("inf"))),
        ("FP64", struct.pack("<d", float("nan"))),
        output("many"),
        output("1e300"),
        ("INT32", b"\x01"),
        ("INT32", b""),
    ],
)
async def test_what_cannot_be_a_count_is_none(told: tuple[str, bytes]) -> None:
    assert await count_tokens(Answers(response(REQUEST_INPUT_LEN=told)), TOKENIZER, "Hi", 1) is None
