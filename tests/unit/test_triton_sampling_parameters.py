"""vLLM's `sampling_parameters` in front of the CPU engines: what becomes of each key, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.triton_parts import LIB

assert LIB
from headrace_triton.engines import Loaded  # noqa: E402
from headrace_triton.jobs import Engine, EngineError, Job  # noqa: E402
from headrace_triton.scripted import ScriptedEngine  # noqa: E402
from headrace_triton.settings import Settings  # noqa: E402
from headrace_triton.tokenizers import ByteTokenizer  # noqa: E402
from headrace_triton.vllm.sampling import job_from_parameters, read_parameters  # noqa: E402
from headrace_triton.vocabulary import byte_vocabulary  # noqa: E402

BYTES = byte_vocabulary()
MODEL = Loaded(BYTES, ByteTokenizer(BYTES), Engine(), 2048)
SCRIPTED = Loaded(BYTES, ByteTokenizer(BYTES), ScriptedEngine(Settings()), 2048)


def job(values: dict[str, Any], loaded: Loaded = MODEL) -> Job:
    return job_from_parameters("Hi", read_parameters(json.dumps(values)), loaded)[0]


def test_nothing_means_vllms_own_defaults() -> None:
    assert job({}) == Job(prompt_ids=[72, 105], max_tokens=16, temperature=1.0, seed=None, stop_words=[])


@pytest.mark.parametrize(
    ("key", "value", "field", "wanted"),
    [
        ("max_tokens", 7, "max_tokens", 7),
        ("max_tokens", "7", "max_tokens", 7),
        ("temperature", "0.5", "temperature", 0.5),
        ("temperature", 0, "temperature", 0.0),
        ("top_k", -1, "top_k", 0),
        ("top_k", 40, "top_k", 40),
        ("top_p", 0.9, "top_p", 0.9),
        ("min_p", 0.1, "min_p", 0.1),
        ("seed", 2**40, "seed", 2**40),
        ("repetition_penalty", 1.2, "repetition_penalty", 1.2),
        ("presence_penalty", -1, "presence_penalty", -1.0),
        ("frequency_penalty", 0.5, "frequency_penalty", 0.5),
        ("min_tokens", 99, "min_tokens", 16),
        ("ignore_eos", True, "ignores_eos", True),
        ("stop", "a", "stop_words", [b"a"]),
        ("stop", ["é", "b"], "stop_words", ["é".encode(), b"b"]),
        ("stop_token_ids", [3, 256], "stop_ids", frozenset({3, 256})),
        ("bad_words", ["x"], "banned_ids", frozenset({120})),
        ("logit_bias", {"5": -1.5}, "logit_bias", {5: -1.5}),
        ("logprobs", 0, "logprobs", 0),
        ("temperature", None, "temperature", 1.0),
    ],
)
def test_a_key_becomes_a_field_of_the_job(key: str, value: Any, field: str, wanted: Any) -> None:
    assert getattr(job({key: value}), field) == wanted


@pytest.mark.parametrize("values", [{"n": 1}, {"skip_special_tokens": True}, {"detokenize": True}])
def test_a_key_that_changes_nothing_is_taken(values: dict[str, Any]) -> None:
    assert job(values) == job({})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 2),
        ("lora_name", "x"),
        ("truncate_prompt_tokens", 3),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", float("nan")),
        ("ignore_eos", "yes"),
        ("stop", [""]),
        ("stop", [3]),
        ("stop_token_ids", [257]),
        ("stop_token_ids", "3"),
        ("bad_words", ["two"]),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"999": 1}),
        ("structured_outputs", "{"),
        ("structured_outputs", "[]"),
        ("structured_outputs", '{"regex": "a", "grammar": "b"}'),
        ("structured_outputs", '{"choice": "a"}'),
        ("structured_outputs", '{"choice": []}'),
        ("structured_outputs", '{"structural_tag": "a"}'),
        ("structured_outputs", '{"json_object": false}'),
        ("structured_outputs", '{"grammar": "  "}'),
        ("structured_outputs", {"regex": "a"}),
    ],
)
def test_what_is_wrong_or_cannot_be_honoured_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(EngineError, match=key):
        job({key: value})


@pytest.mark.parametrize(("key", "value"), [("bad_words", ["x"]), ("logit_bias", {"5": 1})])
def test_the_scripted_engine_refuses_what_it_could_only_ignore(key: str, value: Any) -> None:
    with pytest.raises(EngineError, match=key):
        job({key: value}, SCRIPTED)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_text_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(EngineError, match="sampling_parameters"):
        read_parameters(text)


def test_a_grammar_goes_to_the_engine_as_it_is() -> None:
    assert job({"structured_outputs": json.dumps({"grammar": 'root ::= "a"'})}).grammar == 'root ::= "a"'


def test_a_stop_word_stays_in_the_text_where_that_is_asked_for() -> None:
    for value in (True, False):
        assert job_from_parameters("Hi", {"include_stop_str_in_output": value}, MODEL)[1] is value
