"""The same conversations over every tensor contract of a real Triton: exact text, counts, reasons, stops, seeds.

What is measured against: the scripted engine's own text, one byte per token, so
that every character is cut at every byte; and with a real model the token-level
contract, whose text is the bytes of the tokens themselves.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import generation_pb2 as gen
from tests.support.landing import IS_LANDING
from tests.support.processes import Process
from tests.support.triton_parts import LIB
from tests.support.triton_server import RealTriton, running_triton
from tests.support.triton_serving import CONTRACTS, Answer, ask, comes_back, serving, tokenizer_file

pytestmark = [pytest.mark.e2e, pytest.mark.triton, pytest.mark.timeout(180)]

assert LIB
from headrace_triton.scripted import SCRIPT  # noqa: E402

every_contract = pytest.mark.parametrize("contract", CONTRACTS)
# With a real model, which takes its time; the one that passes its id on is the plain one here.
# The scripted engine goes through all of them; a landing takes one of each kind with a model too.
MODELLED = ["ensemble", "raw", "llmapi"] if IS_LANDING else [name for name in CONTRACTS if name != "bls-forward"]
with_a_model = pytest.mark.parametrize("contract", MODELLED)
QUESTION = "Q: What is the capital of France?\nA:"
# Both ask for text whose characters span tokens.
PROMPTS = (QUESTION, "English: cat, Japanese: 猫\nEnglish: dog, Japanese: 犬\nEnglish: fish, Japanese:")
GREEDY = {"temperature": 0.0}
BY_IDS: dict[str, Answer] = {}
LENGTH, STOP = gen.FINISH_REASON_LENGTH, gen.FINISH_REASON_STOP


@pytest.fixture(scope="module")
def scripted(all_scripted: RealTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("scripted"), all_scripted.url, tokenizer_file("--scripted")) as running:
        yield target(running)


@pytest.fixture(scope="module")
def gemma(llama_triton: RealTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Six canaries on a real model take seconds of a slow machine, and what they find is told to who asks then.
    with serving(tmp_path_factory.mktemp("gemma"), llama_triton.url, tokenizer_file(), health_interval_s=20) as running:
        for contract in MODELLED:
            asyncio.run(comes_back(target(running), contract, timeout_s=60))
        yield target(running)


def target(running: Process) -> str:
    return f"127.0.0.1:{running.port}"


async def by_ids(service: str, prompt: str, limit: int, **fields: Any) -> Answer:
    """Return what the token-level contract answers; asked once for all the contracts that are held against it."""
    key = f"{service} {prompt} {limit} {fields}"
    if key not in BY_IDS:
        BY_IDS[key] = await ask(service, "raw", prompt, limit, sampling=GREEDY, **fields)
    return BY_IDS[key]


def assert_whole(answer: Answer, reason: int) -> None:
    assert answer.code is grpc.StatusCode.OK, answer.details
    assert answer.completed is not None
    assert answer.finished.reason == reason


@every_contract
@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
async def test_the_text_is_the_engine_s_own_however_it_is_cut(scripted: str, contract: str, chunk: int) -> None:
    answer = await ask(scripted, contract, f"token_ms=0 chunk={chunk}", 2 * len(SCRIPT))
    assert_whole(answer, LENGTH)
    assert answer.text == SCRIPT.decode() * 2
    assert not any("\ufffd" in delta.text for delta in answer.deltas)


@every_contract
async def test_usage_is_what_the_engine_counted(scripted: str, contract: str) -> None:
    prompt = "token_ms=0"
    answer = await ask(scripted, contract, prompt, 40)
    assert_whole(answer, LENGTH)
    assert answer.completed.usage.prompt_token_count == len(prompt)
    assert answer.completed.usage.output_token_count == 40
    assert answer.finished.output_token_count == 40


@every_contract
async def test_an_end_of_the_engine_s_own_is_a_stop_and_not_the_limit(scripted: str, contract: str) -> None:
    answer = await ask(scripted, contract, "token_ms=0 end_after=20", 50)
    assert_whole(answer, STOP)
    assert answer.text == SCRIPT[:20].decode()
    assert answer.completed.usage.output_token_count in (20, 21)  # with the end of sequence where the engine counts it


@every_contract
async def test_a_stop_string_ends_the_answer_before_it(scripted: str, contract: str) -> None:
    answer = await ask(scripted, contract, "token_ms=0", 200, stop={"sequences": ["jumps", "nope"]})
    assert_whole(answer, STOP)
    assert answer.text == "The quick brown fox "
    assert answer.finished.stop_sequence == "jumps"


@every_contract
@pytest.mark.parametrize("chunk", [1, 5])
async def test_a_stop_string_that_ends_inside_a_character_s_neighbour_is_found(
    scripted: str, contract: str, chunk: int
) -> None:
    answer = await ask(scripted, contract, f"token_ms=0 chunk={chunk}", 200, stop={"sequences": ["東京"]})
    assert_whole(answer, STOP)
    assert answer.text == SCRIPT.decode().partition("東京")[0]


@every_contract
async def test_the_engine_s_own_times_tell_queue_from_prefill(scripted: str, contract: str) -> None:
    answer = await ask(scripted, contract, "prefill_ms=200 token_ms=50", 10)
    assert_whole(answer, LENGTH)
    timing = answer.completed.timing
    assert timing.time_to_first_token.ToTimedelta().total_seconds() >= 0.2
    assert timing.prefill_duration.ToTimedelta().total_seconds() > 0.1
    assert timing.decode_duration.ToTimedelta().total_seconds() > 0


@every_contract
async def test_many_at_once_do_not_mix(scripted: str, contract: str) -> None:
    texts = [f"{number:02d}" for number in range(4)]
    answers = await asyncio.gather(*(ask(scripted, contract, f"token_ms=2 text={text}", 40) for text in texts))
    assert [answer.text for answer in answers] == [text * 20 for text in texts]


@every_contract
async def test_several_choices_are_runs_of_their_own(scripted: str, contract: str) -> None:
    answer = await ask(scripted, contract, "token_ms=0", 10, choice_count=2)
    assert answer.code is grpc.StatusCode.OK, answer.details
    for index in (0, 1):
        assert "".join(delta.text for delta in answer.deltas if delta.index == index) == SCRIPT[:10].decode()
    assert answer.completed.usage.output_token_count == 20


@with_a_model
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_a_real_model_says_the_same_over_every_contract(gemma: str, contract: str, prompt: str) -> None:
    wanted = await by_ids(gemma, prompt, 16)
    answer = await ask(gemma, contract, prompt, 16, sampling=GREEDY)
    assert_whole(answer, wanted.finished.reason)
    assert answer.text == wanted.text
    assert "\ufffd" not in answer.text
    assert answer.completed.usage == wanted.completed.usage


async def test_the_token_level_text_is_what_the_model_is_known_to_say(gemma: str) -> None:
    answer = await ask(gemma, "raw", QUESTION, 4, sampling=GREEDY)
    assert answer.text.startswith(" Paris")


@with_a_model
async def test_the_seed_decides_what_is_sampled(gemma: str, contract: str) -> None:
    async def texts() -> list[str]:
        answers = []
        for seed in (1, -1, 2**40):
            answers.append(
                await ask(gemma, contract, "Once upon a time", 6, sampling={"temperature": 1.0, "seed": seed})
            )
            assert_whole(answers[-1], LENGTH)
        return [answer.text for answer in answers]

    # A prompt from the engine's cache, or another request in the same batch, changes the last bits of the logits,
    # and now and then the token that is sampled from them. A seed that is lost would do it every time.
    for _ in range(3):
        first = await texts()
        if is_same := await texts() == first:
            break
    assert is_same
    assert len(set(first)) == 3


@with_a_model
async def test_a_real_model_stops_at_a_text_that_spans_tokens(gemma: str, contract: str) -> None:
    answer = await ask(gemma, contract, "Count: one, two, three,", 40, sampling=GREEDY, stop={"sequences": ["ive, s"]})
    assert_whole(answer, STOP)
    assert answer.text == " four, f"


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}


@with_a_model
async def test_a_schema_is_obeyed_or_refused_by_name(gemma: str, contract: str) -> None:
    answer = await ask(
        gemma,
        contract,
        "A city as JSON: ",
        40,
        sampling=GREEDY,
        constraint={"json_schema": json.dumps(SCHEMA)},
    )
    if contract == "llmapi":
        assert answer.code is grpc.StatusCode.FAILED_PRECONDITION
        assert "constraint.json_schema" in answer.details
    else:
        assert_whole(answer, STOP)
        assert json.loads(answer.text).keys() == {"city"}


@with_a_model
async def test_log_probs_are_those_of_the_tokens_or_refused_by_name(gemma: str, contract: str) -> None:
    answer = await ask(gemma, contract, QUESTION, 6, sampling=GREEDY, output={"logprobs": True})
    if contract == "llmapi":
        assert answer.code is grpc.StatusCode.FAILED_PRECONDITION
        assert "output.logprobs" in answer.details
        return
    assert_whole(answer, LENGTH)
    entries = [entry for delta in answer.deltas for entry in delta.logprobs]
    assert len(entries) == 6
    assert b"".join(entry.raw_bytes for entry in entries).decode() == answer.text
    assert all(entry.logprob <= 0 and math.isfinite(entry.logprob) for entry in entries)
    wanted = await by_ids(gemma, QUESTION, 6, output={"logprobs": True})
    exact = [entry.logprob for delta in wanted.deltas for entry in delta.logprobs]
    assert [entry.logprob for entry in entries] == pytest.approx(exact, abs=1e-4)


async def test_the_token_level_contract_has_ids_and_takes_ids(gemma: str) -> None:
    output = {"logprobs": True, "token_ids": True}
    first = await ask(gemma, "raw", QUESTION, 6, sampling=GREEDY, output=output)
    ids = [token_id for delta in first.deltas for token_id in delta.token_ids]
    assert len(ids) == 6
    assert [entry.token_id for delta in first.deltas for entry in delta.logprobs] == ids
    again = await ask(gemma, "raw", "", 6, tokens={"ids": [2, *ids]}, sampling=GREEDY)
    assert again.code is grpc.StatusCode.OK, again.details


@pytest.mark.parametrize("contract", [name for name in CONTRACTS if name != "raw"])
async def test_text_contracts_refuse_ids_by_name(scripted: str, contract: str) -> None:
    answer = await ask(scripted, contract, "", 6, tokens={"ids": [65]})
    assert answer.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "tokens" in answer.details


async def test_what_upstream_s_postprocessing_loses_the_token_level_contract_has(tmp_path: Path) -> None:
    """The original decodes each response by itself: split characters are lost there, and no client gets them back."""
    with (
        running_triton(tmp_path, "scripted", postprocessing="text") as triton,
        serving(tmp_path, triton.url, tokenizer_file("--scripted"), only=("ensemble", "raw")) as running,
    ):
        lossy = await ask(target(running), "ensemble", "token_ms=0", len(SCRIPT))
        exact = await ask(target(running), "raw", "token_ms=0", len(SCRIPT))
    assert "\ufffd" in lossy.text
    assert "東京" not in lossy.text
    assert exact.text == SCRIPT.decode()
