"""Public bug reports about log-probabilities: infinities that JSON cannot hold, and the bytes of half a character."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tritonclient.utils import serialize_byte_tensor

from service.tokens import TokenCodec
from tests.support.report_replay import Answer, Replay, replays, says_ids
from tests.support.triton_fake import FakeTriton, Final, Says, model_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEVER = -9999.0
CAT = "\U0001f638"


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer in which the cat is two tokens of two bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*alphabet, "ðŁ", "ĺ\u00b8"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("ð", "Ł"), ("ĺ", "\u00b8")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def raw(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replay]:
    """The token-level model: log-probs of the sampled tokens."""
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_tokenizer().save(str(path))
    async with replays(options={"model": "tensorrt_llm"}, tokenizer=TokenCodec(path)) as running:
        yield running


def items_of(answer: Answer) -> list[dict[str, Any]]:
    """Return the entries of `logprobs.content`, streamed or not."""
    choices = [choice for chunk in answer.chunks for choice in chunk["choices"]]
    if not answer.chunks:
        assert answer.response is not None
        choices = answer.response.json()["choices"]
    return [item for choice in choices for item in (choice["logprobs"] or {"content": []})["content"]]


@pytest.mark.report("F01")
async def test_a_token_that_could_not_happen_has_a_finite_logprob(raw: Replay) -> None:
    answers = await raw.everywhere([says_ids(65, logprobs=[-math.inf]), says_ids(66, logprobs=[-0.5]), Final()],
                                   logprobs=True)  # fmt: skip
    for answer in answers[:2]:
        items = items_of(answer)
        assert [item["logprob"] for item in items] == [NEVER, -0.5]
        assert [item["top_logprobs"] for item in items] == [[], []]
    told = [one.logprob for event in answers[2].events for one in event.delta.logprobs]
    assert told == [NEVER, -0.5]


def text_output(text: str) -> tuple[str, list[int], bytes]:
    return "BYTES", [1], serialize_byte_tensor(np.array([text.encode()], np.object_)).item()


def vllm_says(token: str, alternatives: dict[str, float]) -> Says:
    """Return a response of vLLM's backend, whose log-probs are Python's JSON: an infinity is in it as -Infinity."""
    entry = {
        str(number): {"logprob": value, "rank": number, "decoded_token": text}
        for number, (text, value) in enumerate(alternatives.items(), 1)
    }
    outputs = {
        "text_output": text_output(token),
        "logprobs": text_output(json.dumps([entry])),
        "num_output_tokens": ("UINT32", [1], np.array([1], np.uint32).tobytes()),
        "num_input_tokens": ("UINT32", [1], np.array([7], np.uint32).tobytes()),
    }
    return Says(token.encode(), outputs=outputs)


@pytest.mark.report("F01")
async def test_alternatives_that_could_not_happen_have_a_finite_logprob() -> None:
    def prepare(fake: FakeTriton) -> None:
        fake.configs["vllm_model"] = model_config("vllm_model", "vllm")

    async with replays(options={"model": "vllm_model"}, prepare=prepare) as replay:
        played = [vllm_says("a", {"a": -0.25, "b": -math.inf}), vllm_says("c", {"c": -math.inf, "d": -0.5}), Final()]
        answers = await replay.everywhere(played, logprobs=True, top_logprobs=2)
        for answer in answers[:2]:
            first, second = items_of(answer)
            assert (first["token"], first["logprob"]) == ("a", -0.25)
            assert [top["logprob"] for top in first["top_logprobs"]] == [-0.25, NEVER]
            assert (second["token"], second["logprob"]) == ("c", NEVER)
            assert [top["token"] for top in second["top_logprobs"]] == ["d", "c"]


@pytest.mark.report("F03")
async def test_the_bytes_of_half_a_character_are_its_own(raw: Replay) -> None:
    ids = byte_tokenizer().encode(CAT).ids
    played = [*(says_ids(one, logprobs=[-0.5]) for one in ids), Final()]
    answers = await raw.everywhere(played, logprobs=True)
    assert answers[0].text == CAT
    for answer in answers[:2]:
        assert [item["bytes"] for item in items_of(answer)] == [[240, 159], [152, 184]]
    told = [one.raw_bytes for event in answers[2].events for one in event.delta.logprobs]
    assert b"".join(told) == CAT.encode()
