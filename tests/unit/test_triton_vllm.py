"""The vLLM backend's contract: tensors, the JSON of the sampling parameters, and how its responses are read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.backends.base import EngineFinish, EngineOutput, EngineRequest, Feature
from service.backends.triton.contracts.contract import ContractSettings
from service.backends.triton.contracts.vllm import VllmContract
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import TensorSpec
from service.core.errors import Reason, ServiceError
from service.core.events import TokenLogprob, TopLogprob
from service.core.request import Constraint, ConstraintKind
from tests.support.triton_contracts import VLLM, engine_request, output, response, sent, shapes, without

SCHEMA = Constraint(kind=ConstraintKind.JSON_SCHEMA, source='{"type": "object"}')
# A backend of before 24.12, which only knew text.
OLD = without(
    VLLM,
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "embedding_request",
    "finish_reason",
    "cumulative_logprob",
    "logprobs",
    "num_input_tokens",
    "num_output_tokens",
)


def contract(**settings: Any) -> VllmContract:
    return VllmContract(ContractSettings(**settings))


def parameters(request: EngineRequest, **settings: Any) -> dict[str, Any]:
    (text,) = sent(contract(**settings).request(request, VLLM))["sampling_parameters"]
    values = json.loads(text)
    assert isinstance(values, dict)
    return values


def sampled(**sampling: Any) -> dict[str, Any]:
    return parameters(engine_request(sampling))


def test_the_smallest_request_has_text_json_and_the_switches() -> None:
    message = contract().request(engine_request(request_id="id"), VLLM)
    assert (message.model_name, message.id) == ("model", "id")
    assert sent(message) == {
        "text_input": ["Hi"],
        "stream": [True],
        "sampling_parameters": ['{"max_tokens":5,"seed":1}'],
        "exclude_input_in_output": [True],
        "return_finish_reason": [True],
        "return_num_input_tokens": [True],
        "return_num_output_tokens": [True],
    }
    assert all(shape == [1] for shape in shapes(message).values())
    assert [one.name for one in message.outputs] == [
        "text_output",
        "finish_reason",
        "num_input_tokens",
        "num_output_tokens",
    ]


def test_an_old_backend_is_asked_for_text_alone() -> None:
    message = contract().request(engine_request(), OLD)
    assert set(sent(message)) == {"text_input", "stream", "sampling_parameters", "exclude_input_in_output"}
    assert [one.name for one in message.outputs] == ["text_output"]


@pytest.mark.parametrize("missing", ["num_output_tokens", "return_num_output_tokens"])
def test_an_output_and_its_switch_go_together(missing: str) -> None:
    message = contract().request(engine_request(), without(VLLM, missing))
    assert "return_num_output_tokens" not in sent(message)
    assert "num_output_tokens" not in [one.name for one in message.outputs]


def test_every_sampling_field_is_in_the_json_under_vllms_name() -> None:
    assert sampled(
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        frequency_penalty=0.75,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        seed=7,
        max_output_tokens=9,
        min_output_tokens=2,
        ignore_eos=True,
        bad_words=("x", "y"),
    ) == {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "min_p": 0.125,
        "frequency_penalty": 0.75,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.5,
        "seed": 7,
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "bad_words": ["x", "y"],
    }


def test_temperature_zero_is_sent_as_it_is() -> None:
    assert sampled(temperature=0.0)["temperature"] == 0


def test_all_tokens_is_said_by_leaving_top_k_out() -> None:
    assert "top_k" not in sampled(top_k=0)


@pytest.mark.parametrize("seed", [0, 1, -1, -7, 2**63 - 1, -(2**63)])
def test_a_seed_is_never_the_negative_one_that_vllm_reads_as_none(seed: int) -> None:
    assert sampled(seed=seed) == sampled(seed=seed)
    assert 0 <= sampled(seed=seed)["seed"] < 2**63
    assert sampled(seed=seed)["seed"] == seed or seed < 0


def test_a_minimum_above_the_maximum_is_the_maximum() -> None:
    assert sampled(min_output_tokens=9, max_output_tokens=5)["min_tokens"] == 5


def test_stop_strings_stay_in_the_text_for_the_service_to_find() -> None:
    values = parameters(engine_request(stop_sequences=("a", "ß"), stop_token_ids=(7,)))
    assert values["stop"] == ["a", "ß"]
    assert values["include_stop_str_in_output"] is True
    assert values["stop_token_ids"] == [7]
    assert "include_stop_str_in_output" not in parameters(engine_request())


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Constraint(kind=ConstraintKind.JSON_OBJECT), {"json_object": True}),
        (SCHEMA, {"json": {"type": "object"}}),
        (Constraint(kind=ConstraintKind.JSON_SCHEMA, source="true"), {"json": {}}),
        (Constraint(kind=ConstraintKind.REGEX, source=r"a\d+"), {"regex": r"a\d+"}),
        (Constraint(kind=ConstraintKind.CHOICE, source='["yes", "n\\u00e9"]'), {"choice": ["yes", "né"]}),
        (Constraint(kind=ConstraintKind.GRAMMAR, source='root ::= "é"'), {"grammar": 'root ::= "é"'}),
    ],
)
def test_a_constraint_is_json_text_inside_the_json(constraint: Constraint, expected: dict[str, Any]) -> None:
    text = parameters(engine_request(constraint=constraint))["structured_outputs"]
    assert isinstance(text, str)
    assert json.loads(text) == expected


def test_a_schema_that_nothing_satisfies_is_refused_by_name() -> None:
    never = Constraint(kind=ConstraintKind.JSON_SCHEMA, source="false")
    with pytest.raises(ServiceError) as caught:
        contract().request(engine_request(constraint=never), VLLM)
    assert caught.value.reason is Reason.INVALID_FIELD
    assert [violation.field for violation in caught.value.violations] == ["constraint.json_schema"]


@pytest.mark.parametrize(("fields", "wanted"), [({"logprobs": 3}, 3), ({"logprobs": 0}, 0), ({"token_ids": True}, 0)])
def test_log_probs_are_asked_for_only_if_they_or_the_token_ids_are_wanted(fields: dict[str, Any], wanted: int) -> None:
    request = engine_request(**fields)
    message = contract().request(request, VLLM)
    assert parameters(request)["logprobs"] == wanted
    assert sent(message)["return_logprobs"] == [True]
    assert "logprobs" in [one.name for one in message.outputs]
    assert "logprobs" not in parameters(engine_request())


@pytest.mark.parametrize(
    ("request_", "facts", "feature"),
    [
        (engine_request(prompt=(1, 2)), VLLM, Feature.TOKEN_INPUT),
        # JSON has no numbers as keys, and vLLM does not turn texts into token ids.
        (engine_request({"logit_bias": {1: 2.0}}), VLLM, Feature.LOGIT_BIAS),
        (engine_request(logprobs=0), without(VLLM, "return_logprobs"), Feature.LOGPROBS),
        (engine_request(logprobs=0), without(VLLM, "logprobs"), Feature.LOGPROBS),
        (engine_request(token_ids=True), without(VLLM, "return_logprobs"), Feature.TOKEN_IDS),
        (engine_request(constraint=SCHEMA), without(VLLM, "embedding_request"), Feature.JSON_SCHEMA),
        (
            engine_request(constraint=Constraint(kind=ConstraintKind.CHOICE, source='["a"]')),
            without(VLLM, "embedding_request"),
            Feature.CHOICE,
        ),
    ],
)
def test_what_the_model_cannot_honour_is_refused_and_not_claimed(
    request_: EngineRequest, facts: ModelFacts, feature: Feature
) -> None:
    assert feature not in contract().features(facts)
    with pytest.raises(ServiceError) as caught:
        contract().request(request_, facts)
    assert caught.value.reason is Reason.CAPABILITY_UNSUPPORTED
    assert caught.value.metadata == {"capability": feature.value}


def test_everything_but_token_input_and_logit_bias_is_claimed() -> None:
    assert set(Feature) - contract().features(VLLM) == {Feature.TOKEN_INPUT, Feature.LOGIT_BIAS}


def test_a_beginning_of_sequence_that_the_template_wrote_is_not_sent_twice() -> None:
    chat = engine_request(prompt="<s>Hi", add_special_tokens=False)
    assert sent(contract(bos_text="<s>").request(chat, VLLM))["text_input"] == ["Hi"]


def test_a_configured_adapter_is_named_in_the_json() -> None:
    assert parameters(engine_request(), lora_name="law")["lora_name"] == "law"
    assert "lora_name" not in parameters(engine_request())


def test_an_adapter_that_is_told_in_another_way_is_a_problem() -> None:
    assert contract(lora_task_id=0, lora_path="/a").problems(VLLM) == [
        "lora_task_id is configured, and this model takes an adapter by lora_name alone",
        "lora_path is configured, and this model takes an adapter by lora_name alone",
    ]
    assert contract(lora_name="law").problems(VLLM) == []


def test_a_model_of_another_kind_says_why() -> None:
    assert contract().problems(VLLM) == []
    assert contract().problems(OLD) == []
    assert contract().problems(without(VLLM, "text_input", "stream", "sampling_parameters", "text_output")) == [
        "input text_input is missing",
        "input stream is missing",
        "input sampling_parameters is missing",
        "output text_output is missing",
    ]


def test_an_unknown_required_input_is_a_problem() -> None:
    image = TensorSpec(name="image", datatype="BYTES", dims=(-1,))
    facts = replace(VLLM, inputs={**VLLM.inputs, "image": image})
    assert contract().problems(facts) == ["input image is required and unknown"]


def says(text: str, tokens: int = 1, reason: str = "None", **outputs: tuple[str, bytes]) -> Any:
    return response(
        text_output=output(text),
        finish_reason=output(reason),
        num_input_tokens=output(7, "UINT32"),
        num_output_tokens=output(tokens, "UINT32"),
        **outputs,
    )


def with_logprobs(text: str, tokens: int, entries: Any) -> Any:
    return says(text, tokens, logprobs=output(json.dumps(entries)))


def entry(logprob: float, rank: int, token: str | None) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": token}


def read(request: EngineRequest, *responses: Any, **settings: Any) -> list[EngineOutput | None]:
    reader = contract(**settings).reader(request, VLLM)
    return [reader.read(one) for one in responses]


def test_a_response_carries_new_text_and_its_own_count() -> None:
    reader = contract().reader(engine_request(), VLLM)
    assert reader.read(says("ha", 1)) == EngineOutput(b"ha", 1)
    assert reader.started().prompt_tokens == 7
    assert reader.read(says("ha", 2, "stop")) == EngineOutput(b"ha", 2)
    finished = reader.finished()
    assert (finished.prompt_tokens, finished.output_tokens, finished.reason) == (7, 3, EngineFinish.STOP)


@pytest.mark.parametrize(
    ("tokens", "said", "reason"),
    [
        (5, "length", EngineFinish.LENGTH),
        # Nothing but the context window ends a generation by length before its own limit.
        (4, "length", EngineFinish.CONTEXT_LENGTH),
        # An end of sequence as the last token that was allowed.
        (5, "stop", EngineFinish.STOP),
    ],
)
def test_the_reason_is_the_engines_own(tokens: int, said: str, reason: EngineFinish) -> None:
    reader = contract().reader(engine_request(), VLLM)
    reader.read(says("a", tokens, said))
    assert reader.finished().reason is reason


@pytest.mark.parametrize("said", ["None", "abort", "error"])
def test_an_output_that_was_cut_is_a_failure(said: str) -> None:
    reader = contract().reader(engine_request(), VLLM)
    reader.read(says("a", 1, said))
    with pytest.raises(ServiceError, match="before it was complete") as caught:
        reader.finished()
    assert caught.value.reason is Reason.BACKEND_ERROR


def test_an_old_backend_has_text_and_an_unknown_end() -> None:
    reader = contract().reader(engine_request(), OLD)
    assert reader.read(response(text_output=output("a"))) == EngineOutput(b"a", None)
    assert reader.finished().reason is EngineFinish.UNKNOWN


def test_the_generated_token_is_the_first_and_alternatives_are_the_best() -> None:
    entries = [
        # Not among the two likeliest.
        {"9": entry(-4.0, 17, "c"), "3": entry(-0.5, 1, "a"), "5": entry(-1.5, 2, "b")},
        # The second likeliest.
        {"5": entry(-1.5, 2, "b"), "3": entry(-0.5, 1, "a")},
    ]
    best = (TopLogprob(3, -0.5, b"a"), TopLogprob(5, -1.5, b"b"))
    assert read(engine_request(logprobs=2), with_logprobs("cb", 2, entries)) == [
        EngineOutput(b"cb", 2, (), (TokenLogprob(9, -4.0, b"c", best), TokenLogprob(5, -1.5, b"b", best)))
    ]


def test_without_alternatives_only_the_generated_token_is_given() -> None:
    item = read(engine_request(logprobs=0), with_logprobs("é", 1, [{"9": entry(-4.0, 17, "é")}]))
    assert item == [EngineOutput("é".encode(), 1, (), (TokenLogprob(9, -4.0, "é".encode()),))]


def test_token_ids_come_from_the_log_probs() -> None:
    entries = [{"9": entry(-4.0, 17, "c")}, {"5": entry(-1.5, 2, "b")}]
    assert read(engine_request(token_ids=True), with_logprobs("cb", 2, entries)) == [EngineOutput(b"cb", 2, (9, 5))]
    (item,) = read(engine_request(token_ids=True, logprobs=0), with_logprobs("cb", 2, entries))
    assert item is not None
    assert item.token_ids == tuple(one.token_id for one in item.logprobs) == (9, 5)


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, -1e9, None])
def test_what_is_no_number_counts_as_never(value: float | None) -> None:
    entries = [{"9": entry(value, 1, "c"), "5": entry(-1.5, 2, "b")}]  # type: ignore[arg-type]
    (item,) = read(engine_request(logprobs=2), with_logprobs("c", 1, entries))
    assert item is not None
    assert item.logprobs[0].logprob == -9999
    assert [one.logprob for one in item.logprobs[0].top] == [-1.5, -9999]


@pytest.mark.parametrize(
    ("value", "read_as"),
    [
        (1e39, float(np.finfo(np.float32).max)),
        (10**400, float(np.finfo(np.float32).max)),
        (-(10**400), -9999),
        (-1, -1),
    ],
)
def test_a_log_prob_fits_32_bits(value: float, read_as: float) -> None:
    (item,) = read(engine_request(logprobs=1), with_logprobs("c", 1, [{"9": entry(value, 1, "c")}]))
    assert item is not None
    assert item.logprobs[0].logprob == item.logprobs[0].top[0].logprob == read_as


@pytest.mark.parametrize("token_id", ["-3", "2147483648", "x"])
def test_an_alternative_or_an_id_that_is_no_token_is_an_error(token_id: str) -> None:
    for request in (engine_request(token_ids=True), engine_request(logprobs=1)):
        with pytest.raises(ServiceError, match="unexpected form"):
            read(request, with_logprobs("c", 1, [{token_id: entry(-1, 1, "c")}]))


def test_a_token_that_was_not_decoded_has_no_bytes() -> None:
    (item,) = read(engine_request(logprobs=0), with_logprobs("", 1, [{"9": entry(-1.0, 1, None)}]))
    assert item is not None
    assert item.logprobs[0].raw == b""


class Pieces:
    """The model's tokenizer, for two tokens."""

    vocab_size = 10
    eos_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        raise NotImplementedError

    def piece(self, token_id: int) -> bytes:
        return {3: b" a", 9: b"\xe2\x9c"}[token_id]


def test_the_models_tokenizer_knows_the_exact_bytes() -> None:
    entries = [{"9": entry(-4.0, 17, "\N{REPLACEMENT CHARACTER}"), "3": entry(-0.5, 1, "a")}]
    (item,) = read(engine_request(logprobs=1), with_logprobs("", 1, entries), tokenizer=Pieces())
    assert item is not None
    assert item.logprobs == (TokenLogprob(9, -4.0, b"\xe2\x9c", (TopLogprob(3, -0.5, b" a"),)),)


@pytest.mark.parametrize("text", ["null", "[]", ""])
def test_a_response_without_tokens_has_no_log_probs(text: str) -> None:
    assert read(engine_request(logprobs=1), says("", 0, "stop", logprobs=output(text))) == [EngineOutput(b"", 0)]


def test_a_count_that_is_missing_is_that_of_the_log_probs() -> None:
    message = response(text_output=output("a"), logprobs=output(json.dumps([{"9": entry(-1.0, 1, "a")}])))
    (item,) = read(engine_request(token_ids=True), message)
    assert item == EngineOutput(b"a", 1, (9,))


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"logprobs": output("null")},
        {"logprobs": output("[]")},
        {"logprobs": output("{}")},
        {"logprobs": output("[1]")},
        {"logprobs": output("[{}]")},
        {"logprobs": output('[{"9": 1}]')},
        {"logprobs": output('[{"9": {}}]')},
        {"logprobs": output('[{"nine": {"logprob": -1, "decoded_token": "a"}}]')},
        {"logprobs": output('["9"]')},
        {"logprobs": output('[{"-3": {"logprob": -1, "decoded_token": "a"}}]')},
        {"logprobs": output('[{"1099511627776": {"logprob": -1, "decoded_token": "a"}}]')},
        {"logprobs": output('[{"9": {"logprob": "x", "decoded_token": "a"}}]')},
        {"logprobs": output('[{"9": {"logprob": -1, "decoded_token": 7}}]')},
        {"logprobs": output('[{"9": {"logprob": ' + "9" * 5000 + ', "decoded_token": "a"}}]')},
        {"logprobs": output("[" * 200_000)},
        {"logprobs": ("BYTES", output("[]")[1] + output("[]")[1])},
        {"logprobs": output("[")},
        {"logprobs": output(b"\xff")},
        {"logprobs": ("BYTES", b"\x05\x00\x00\x00[")},
    ],
)
def test_log_probs_that_were_asked_for_and_are_not_there_are_an_error(outputs: dict[str, tuple[str, bytes]]) -> None:
    with pytest.raises(ServiceError, match="unexpected form") as caught:
        read(engine_request(logprobs=1, token_ids=True), says("a", 1, **outputs))
    assert caught.value.reason is Reason.BACKEND_ERROR


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_log_probs_of_other_tokens_than_were_counted_are_an_error(tokens: int) -> None:
    entries = [{"9": entry(-1.0, 1, "a")}, {"9": entry(-1.0, 1, "a")}]
    with pytest.raises(ServiceError, match="unexpected form") as caught:
        read(engine_request(token_ids=True), with_logprobs("aa", tokens, entries))
    assert caught.value.detail == f"vllm: 2 log-probs for {tokens} tokens"


def test_text_without_log_probs_is_an_error_also_where_nothing_was_counted() -> None:
    with pytest.raises(ServiceError, match="unexpected form"):
        read(engine_request(token_ids=True), response(text_output=output("a")))


def test_log_probs_that_were_not_asked_for_are_left_alone() -> None:
    assert read(engine_request(), says("a", 1, logprobs=output("["))) == [EngineOutput(b"a", 1)]
