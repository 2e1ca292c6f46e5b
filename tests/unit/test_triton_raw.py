"""The raw contract: which tensors go out for which request, and what the ids that come back mean."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from service.backends.base import EngineFinish, EngineOutput, EngineRequest, Feature
from service.backends.triton.contracts.contract import ContractSettings
from service.backends.triton.contracts.raw import RawContract, word_rows
from service.backends.triton.contracts.raw_reader import RawReader
from service.backends.triton.encoding import encoded
from service.backends.triton.facts import ModelFacts
from service.backends.triton.tensors import TensorSpec
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.events import TokenLogprob
from service.core.request import Constraint, ConstraintKind, Sampling
from service.tokens import TokenCodec
from tests.support.small_tokenizers import byte_level, sentencepiece
from tests.support.triton_parts import LIB

assert LIB
from headrace_triton.words import unpack_words  # noqa: E402

DTYPES = {
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "BYTES": np.uint8,
}
INPUTS = {
    "input_ids": ("INT32", -1),
    "input_lengths": ("INT32", 1),
    "request_output_len": ("INT32", 1),
    "streaming": ("BOOL", 1),
    "end_id": ("INT32", 1),
    "pad_id": ("INT32", 1),
    "beam_width": ("INT32", 1),
    "temperature": ("FP32", 1),
    "runtime_top_k": ("INT32", 1),
    "runtime_top_p": ("FP32", 1),
    "repetition_penalty": ("FP32", 1),
    "presence_penalty": ("FP32", 1),
    "frequency_penalty": ("FP32", 1),
    "min_tokens": ("INT32", 1),
    "seed": ("UINT64", 1),
    "stop_words_list": ("INT32", 2, -1),
    "bad_words_list": ("INT32", 2, -1),
    "embedding_bias": ("FP32", -1),
    "return_log_probs": ("BOOL", 1),
    "return_num_input_tokens": ("BOOL", 1),
    "return_num_output_tokens": ("BOOL", 1),
    "return_perf_metrics": ("BOOL", 1),
    "exclude_input_in_output": ("BOOL", 1),
    "stop": ("BOOL", 1),
    "lora_task_id": ("UINT64", 1),
    "guided_decoding_guide_type": ("BYTES", 1),
    "guided_decoding_guide": ("BYTES", 1),
}
OUTPUTS = {
    "output_ids": ("INT32", -1, -1),
    "sequence_length": ("INT32", -1),
    "output_log_probs": ("FP32", -1, -1),
    "num_input_tokens": ("INT32", 1),
    "num_output_tokens": ("INT32", 1),
    "first_scheduled_time_ns": ("INT64", 1),
    "first_token_time_ns": ("INT64", 1),
}
REQUIRED = {"input_lengths", "request_output_len"}


def facts_without(*names: str, required: set[str] = REQUIRED) -> ModelFacts:
    def specs(table: dict[str, Any]) -> dict[str, TensorSpec]:
        return {
            name: TensorSpec(name=name, datatype=datatype, dims=tuple(dims), is_optional=name not in required)
            for name, (datatype, *dims) in table.items()
            if name not in names
        }

    return ModelFacts(name="tensorrt_llm", inputs=specs(INPUTS), outputs=specs(OUTPUTS))


FACTS = facts_without()


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TokenCodec:
    path = tmp_path_factory.mktemp("raw") / "tokenizer.json"
    byte_level().save(str(path))
    return TokenCodec(path)


@pytest.fixture(scope="module")
def framing(tmp_path_factory: pytest.TempPathFactory) -> TokenCodec:
    path = tmp_path_factory.mktemp("raw") / "tokenizer.json"
    sentencepiece().save(str(path))
    return TokenCodec(path)


def asked(**fields: Any) -> EngineRequest:
    sampling = Sampling(**{"max_output_tokens": 5, "seed": 1, **fields.pop("sampling", {})})
    given = {"prompt": "the dog", **fields}
    return EngineRequest(request_id="r", deadline=Deadline.after(1), sampling=sampling, **given)


def message_of(codec: TokenCodec, wanted: EngineRequest, facts: ModelFacts = FACTS, **settings: Any) -> Any:
    return RawContract(ContractSettings(tokenizer=codec, **settings)).request(
        asyncio.run(encoded(wanted, codec)), facts
    )


def sent(codec: TokenCodec, wanted: EngineRequest, facts: ModelFacts = FACTS, **settings: Any) -> dict[str, Any]:
    """Return the tensors as an independent reader sees them: name -> array in the wire's shape."""
    message = message_of(codec, wanted, facts, **settings)
    assert len(message.inputs) == len(message.raw_input_contents)
    arrays = {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        array = np.frombuffer(raw, DTYPES[tensor.datatype])
        arrays[tensor.name] = array if tensor.datatype == "BYTES" else array.reshape(tensor.shape)
    return arrays


def words(arrays: dict[str, Any], name: str = "stop_words_list") -> list[list[int]]:
    assert arrays[name].shape[:2] == (1, 2)
    return unpack_words(arrays[name][0].tolist())


def ids_of(codec: TokenCodec, text: str) -> list[int]:
    return list(codec.encode(text, add_special_tokens=False))


def test_a_text_goes_out_as_ids_with_their_length(codec: TokenCodec) -> None:
    tensors = sent(codec, asked())
    ids = ids_of(codec, "the dog")
    assert tensors["input_ids"].tolist() == [ids]
    assert tensors["input_lengths"].tolist() == [[len(ids)]]
    assert tensors["request_output_len"].tolist() == [[5]]
    assert tensors["streaming"].tolist() == [[True]]
    assert tensors["exclude_input_in_output"].tolist() == [[True]]
    assert tensors["beam_width"].tolist() == [[1]]


def test_the_request_carries_the_models_name_and_the_id(codec: TokenCodec) -> None:
    message = message_of(codec, asked(), replace(FACTS, name="engine"))
    assert (message.model_name, message.id) == ("engine", "r")


@pytest.mark.parametrize("framed", [True, False])
def test_the_frame_is_put_around_a_text_only_if_asked_for(framing: TokenCodec, framed: bool) -> None:
    ids = sent(framing, asked(add_special_tokens=framed))["input_ids"].tolist()[0]
    assert ids == [2] * framed + ids_of(framing, "the dog")


def test_a_start_that_the_template_wrote_is_one_token(framing: TokenCodec) -> None:
    ids = sent(framing, asked(prompt="<bos>the", add_special_tokens=False))["input_ids"].tolist()[0]
    assert ids == [2, *ids_of(framing, "the")]


def test_token_ids_go_out_as_they_are(codec: TokenCodec) -> None:
    tensors = sent(codec, asked(prompt=(5, 900, 7), add_special_tokens=False))
    assert tensors["input_ids"].tolist() == [[5, 900, 7]]
    assert tensors["input_lengths"].tolist() == [[3]]


def test_a_prompt_without_tokens_is_refused(codec: TokenCodec) -> None:
    with pytest.raises(ServiceError) as caught:
        message_of(codec, asked(prompt=""))
    assert caught.value.reason is Reason.INVALID_FIELD
    assert [violation.field for violation in caught.value.violations] == ["prompt"]


def test_another_frame_of_the_same_text_is_encoded_anew(framing: TokenCodec) -> None:
    contract = RawContract(ContractSettings(tokenizer=framing))
    lengths = []
    for framed in (True, False, True):
        wanted = asyncio.run(encoded(asked(add_special_tokens=framed), framing))
        lengths.append(len(contract.request(wanted, FACTS).raw_input_contents[0]) // 4)
        assert contract.reader(wanted, FACTS).started().prompt_tokens == lengths[-1]
    assert lengths[0] == lengths[1] + 1 == lengths[2]


def test_the_engine_is_told_the_end_and_stops_at_the_other_ends(codec: TokenCodec) -> None:
    end, turn = ids_of(codec, "<|endoftext|><|im_end|>")
    tensors = sent(codec, asked())
    assert tensors["end_id"].tolist() == [[end]]
    assert words(tensors) == [[turn]]


def test_configured_ends_replace_those_of_the_tokenizer(codec: TokenCodec) -> None:
    tensors = sent(codec, asked(), end_ids=(9, 3))
    assert tensors["end_id"].tolist() == [[9]]
    assert words(tensors) == [[3]]


def test_ignoring_the_end_switches_every_end_off(codec: TokenCodec) -> None:
    tensors = sent(codec, asked(sampling={"ignore_eos": True}))
    assert tensors["end_id"].tolist() == [[-1]]
    assert "stop_words_list" not in tensors


def test_a_padding_token_is_sent_only_where_the_model_insists(codec: TokenCodec) -> None:
    assert "pad_id" not in sent(codec, asked())
    strict = facts_without(required=REQUIRED | {"end_id", "pad_id"})
    (end, *_) = ids_of(codec, "<|endoftext|>")
    assert sent(codec, asked(), strict)["pad_id"].tolist() == [[end]]


def test_stop_tokens_and_strings_are_sent_as_ids(codec: TokenCodec) -> None:
    wanted = asked(stop_sequences=("the dog", "\n\n", "🪐"), stop_token_ids=(70, 71))
    (turn,) = ids_of(codec, "<|im_end|>")
    assert words(sent(codec, wanted)) == [
        [turn],
        [70],
        [71],
        *(ids_of(codec, text) for text in ("the dog", "\n\n", "🪐")),
    ]


def test_a_control_text_as_stop_string_is_its_token(codec: TokenCodec) -> None:
    wanted = asked(stop_sequences=("<|im_start|>",), sampling={"ignore_eos": True})
    assert words(sent(codec, wanted)) == [ids_of(codec, "<|im_start|>")]


def test_a_stop_string_that_its_ids_do_not_spell_is_left_to_the_service(framing: TokenCodec) -> None:
    # U+2581 is read as a space: the engine would stop at every double space.
    plain = sent(framing, asked(stop_sequences=("a  b",)))
    other = sent(framing, asked(stop_sequences=("a▁▁b",)))
    assert len(words(plain)) == len(words(other)) + 1


def test_a_model_without_stop_words_is_not_sent_any(codec: TokenCodec) -> None:
    tensors = sent(codec, asked(stop_sequences=("x",)), facts_without("stop_words_list"))
    assert "stop_words_list" not in tensors


def test_bad_words_are_sent_as_the_tokenizer_spells_them(codec: TokenCodec) -> None:
    wanted = asked(sampling={"bad_words": ("the dog", "🪐")})
    assert words(sent(codec, wanted), "bad_words_list") == [ids_of(codec, text) for text in ("the dog", "🪐")]
    assert "bad_words_list" not in sent(codec, asked())


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6), min_size=1, max_size=8))
def test_word_rows_are_read_back_as_the_words(lists: list[list[int]]) -> None:
    rows = word_rows(lists)
    half = len(rows) // 2
    assert unpack_words([rows[:half], rows[half:]]) == lists


def test_sampling_goes_out_under_the_engines_own_names(codec: TokenCodec) -> None:
    sampling = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": -1, "min_output_tokens": 2}
    tensors = sent(codec, asked(sampling=sampling))
    assert tensors["temperature"].tolist() == [[0.5]]
    assert tensors["runtime_top_k"].tolist() == [[3]]
    assert tensors["runtime_top_p"].tolist() == [[0.5]]
    assert tensors["seed"].tolist() == [[2**64 - 1]]
    assert tensors["min_tokens"].tolist() == [[2]]


def test_a_bias_is_one_number_for_each_token_of_the_vocabulary(codec: TokenCodec) -> None:
    last = codec.vocab_size - 1
    (row,) = sent(codec, asked(sampling={"logit_bias": {3: 1.5, last: -100.0}}))["embedding_bias"]
    assert row.shape == (codec.vocab_size,)
    assert (row[3], row[last], np.count_nonzero(row)) == (1.5, -100.0, 2)
    assert "embedding_bias" not in sent(codec, asked())


def test_a_bias_has_the_size_that_the_model_declares(codec: TokenCodec) -> None:
    spec = replace(FACTS.inputs["embedding_bias"], dims=(512,))
    padded = replace(FACTS, inputs={**FACTS.inputs, "embedding_bias": spec})
    (row,) = sent(codec, asked(sampling={"logit_bias": {511: 1.0}}), padded)["embedding_bias"]
    assert (row.shape, row[511]) == ((512,), 1.0)


def test_a_bias_for_a_token_outside_the_vocabulary_is_named(codec: TokenCodec) -> None:
    with pytest.raises(ServiceError) as caught:
        message_of(codec, asked(sampling={"logit_bias": {codec.vocab_size: 1.0}}))
    assert [violation.field for violation in caught.value.violations] == [f"sampling.logit_bias[{codec.vocab_size}]"]


@pytest.mark.parametrize(
    ("missing", "fields", "capability"),
    [
        ("embedding_bias", {"sampling": {"logit_bias": {1: 1.0}}}, "sampling.logit_bias"),
        ("end_id", {"sampling": {"ignore_eos": True}}, "sampling.ignore_eos"),
        ("bad_words_list", {"sampling": {"bad_words": ("x",)}}, "sampling.bad_words"),
        ("runtime_top_k", {"sampling": {"top_k": 4}}, "sampling.top_k"),
        ("return_log_probs", {"logprobs": 0}, "output.logprobs"),
        (
            "guided_decoding_guide_type",
            {"constraint": Constraint(kind=ConstraintKind.JSON_OBJECT)},
            "constraint.json_object",
        ),
    ],
)
def test_what_the_model_has_no_tensor_for_is_refused_by_name(
    codec: TokenCodec, missing: str, fields: dict[str, Any], capability: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        message_of(codec, asked(**fields), facts_without(missing))
    assert caught.value.reason is Reason.CAPABILITY_UNSUPPORTED
    assert caught.value.metadata["capability"] == capability
    assert Feature(capability) not in RawContract(ContractSettings(tokenizer=codec)).features(facts_without(missing))
    assert Feature(capability) in RawContract(ContractSettings(tokenizer=codec)).features(FACTS)


def test_alternatives_are_refused(codec: TokenCodec) -> None:
    with pytest.raises(ServiceError) as caught:
        message_of(codec, asked(logprobs=2))
    assert caught.value.metadata["capability"] == "output.top_logprobs"


def test_the_features_are_those_behind_the_tensors(codec: TokenCodec) -> None:
    features = RawContract(ContractSettings(tokenizer=codec)).features(FACTS)
    assert features >= {Feature.TOKEN_INPUT, Feature.TOKEN_IDS, Feature.TEMPERATURE, Feature.JSON_SCHEMA}
    assert not features & {Feature.TOP_LOGPROBS, Feature.MIN_P}


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (facts_without("input_ids"), "input input_ids is missing"),
        (facts_without("streaming"), "input streaming is missing"),
        (facts_without("sequence_length"), "output sequence_length is missing"),
        (facts_without(required=REQUIRED | {"lora_task_id"}), "input lora_task_id is required and unknown"),
        (replace(FACTS, is_decoupled=False), "decoupled"),
    ],
)
def test_a_model_that_does_not_fit_is_told_why(codec: TokenCodec, facts: ModelFacts, told: str) -> None:
    problems = RawContract(ContractSettings(tokenizer=codec)).problems(facts)
    assert len(problems) == 1
    assert told in problems[0]
    assert RawContract(ContractSettings(tokenizer=codec)).problems(FACTS) == []


def test_without_a_tokenizer_it_cannot_be_served() -> None:
    assert "no tokenizer" in RawContract(ContractSettings()).problems(FACTS)[0]


def test_outputs_are_asked_for_and_log_probs_only_if_wanted(codec: TokenCodec) -> None:
    plain = {output.name for output in message_of(codec, asked()).outputs}
    assert plain >= {"output_ids", "sequence_length", "num_input_tokens"}
    assert "output_log_probs" not in plain
    wanted = asked(logprobs=0)
    assert "output_log_probs" in {output.name for output in message_of(codec, wanted).outputs}
    assert sent(codec, wanted)["return_log_probs"].tolist() == [[True]]


def response(ids: Sequence[int], *, length: int | None = None, **others: tuple[str, Any]) -> Any:
    """Return one response of the model, its ids in the wire's shape."""
    message = service_pb2.ModelInferResponse()
    count = len(ids) if length is None else length
    tensors = {"output_ids": ("INT32", [[ids]]), "sequence_length": ("INT32", [[count]]), **others}
    for name, (datatype, values) in tensors.items():
        array = np.array(values, DTYPES[datatype])
        message.outputs.add(name=name, datatype=datatype, shape=array.shape)
        message.raw_output_contents.append(array.tobytes())
    return message


def reader_of(codec: TokenCodec, wanted: EngineRequest, **settings: Any) -> RawReader:
    return RawContract(ContractSettings(tokenizer=codec, **settings)).reader(asyncio.run(encoded(wanted, codec)), FACTS)


def read(reader: RawReader, message: Any) -> EngineOutput:
    item = reader.read(message)
    assert item is not None
    return item


def test_ids_become_exact_bytes_also_inside_a_character(codec: TokenCodec) -> None:
    reader = reader_of(codec, asked(token_ids=True))
    ids = ids_of(codec, "🪐 dog")
    items = [read(reader, response([number])) for number in ids]
    assert b"".join(item.data for item in items).decode() == "🪐 dog"
    assert [item.tokens for item in items] == [1] * len(ids)
    assert [item.token_ids for item in items] == [(number,) for number in ids]
    with pytest.raises(UnicodeDecodeError):
        items[0].data.decode()


def test_ids_are_given_only_if_asked_for(codec: TokenCodec) -> None:
    assert read(reader_of(codec, asked()), response([65, 66])) == EngineOutput(codec.piece(65) + codec.piece(66), 2)


def test_only_the_ids_within_the_length_count(codec: TokenCodec) -> None:
    item = read(reader_of(codec, asked(token_ids=True)), response([65, 66, 0, 0], length=2))
    assert (item.tokens, item.token_ids) == (2, (65, 66))


@pytest.mark.parametrize("datatype", ["INT32", "INT64", "UINT32", "UINT64"])
def test_ids_are_read_by_the_datatype_of_the_response(codec: TokenCodec, datatype: str) -> None:
    message = response([], output_ids=(datatype, [[[65, 66]]]), sequence_length=(datatype, [[2]]))
    item = read(reader_of(codec, asked(token_ids=True)), message)
    assert item == EngineOutput(codec.piece(65) + codec.piece(66), 2, (65, 66))


def test_what_stands_behind_the_length_may_be_anything(codec: TokenCodec) -> None:
    assert read(reader_of(codec, asked(token_ids=True)), response([65, -1, -1], length=1)).token_ids == (65,)


def test_a_response_without_new_ids_is_empty(codec: TokenCodec) -> None:
    assert read(reader_of(codec, asked()), response([])) == EngineOutput(b"", 0)
    assert reader_of(codec, asked()).read(service_pb2.ModelInferResponse()) is None


def test_an_end_of_sequence_is_counted_and_has_no_bytes(codec: TokenCodec) -> None:
    reader = reader_of(codec, asked())
    (end,) = ids_of(codec, "<|endoftext|>")
    assert read(reader, response([65, end])) == EngineOutput(codec.piece(65), 2)
    assert reader.finished().reason is EngineFinish.STOP
    assert reader.finished().output_tokens == 2


@pytest.mark.parametrize(
    ("count", "last", "reason"),
    [
        (3, "a", EngineFinish.STOP),
        (5, "a", EngineFinish.LENGTH),
        (5, "<|endoftext|>", EngineFinish.STOP),
        (5, "<|im_end|>", EngineFinish.STOP),
    ],
)
def test_the_reason_is_the_limit_if_it_was_reached_without_an_end(
    codec: TokenCodec, count: int, last: str, reason: EngineFinish
) -> None:
    reader = reader_of(codec, asked())
    for _ in range(count - 1):
        reader.read(response([65]))
    reader.read(response(ids_of(codec, last)))
    assert reader.finished().reason is reason


def test_an_end_that_is_ignored_is_none(codec: TokenCodec) -> None:
    reader = reader_of(codec, asked(sampling={"ignore_eos": True, "max_output_tokens": 1}))
    reader.read(response(ids_of(codec, "<|endoftext|>")))
    assert reader.finished().reason is EngineFinish.LENGTH


def test_the_context_window_ends_it_too(codec: TokenCodec) -> None:
    prompt = tuple(range(60, 70))
    reader = reader_of(codec, asked(prompt=prompt, sampling={"max_output_tokens": 50}), max_context_tokens=12)
    reader.read(response([65, 66]))
    assert reader.finished().reason is EngineFinish.CONTEXT_LENGTH


def test_an_end_without_any_output_is_a_failure(codec: TokenCodec) -> None:
    with pytest.raises(ServiceError) as caught:
        reader_of(codec, asked()).finished()
    assert caught.value.reason is Reason.BACKEND_ERROR


def test_counts_do_not_depend_on_what_the_model_tells(codec: TokenCodec) -> None:
    reader = reader_of(codec, asked())
    reader.read(response([65]))
    reader.read(response([66, 67]))
    finished = reader.finished()
    assert (finished.prompt_tokens, finished.output_tokens) == (len(ids_of(codec, "the dog")), 3)


def test_times_are_differences_of_the_engines_own_clock(codec: TokenCodec) -> None:
    reader = reader_of(codec, asked())
    times = {"first_scheduled_time_ns": ("INT64", [[10]]), "first_token_time_ns": ("INT64", [[2_000_000_010]])}
    reader.read(response([65], **times))
    assert reader.finished().engine_prefill_s == 2.0


def test_log_probs_stand_with_the_id_and_the_exact_bytes(codec: TokenCodec) -> None:
    reader = reader_of(codec, asked(logprobs=0))
    ids = ids_of(codec, "🪐")[:2]
    item = read(reader, response(ids, output_log_probs=("FP32", [[[-0.5, -2.0]]])))
    assert item.logprobs == (
        TokenLogprob(ids[0], -0.5, codec.piece(ids[0])),
        TokenLogprob(ids[1], -2.0, codec.piece(ids[1])),
    )


def test_log_probs_that_repeat_earlier_tokens_are_read_from_their_end(codec: TokenCodec) -> None:
    reader = reader_of(codec, asked(logprobs=0))
    item = read(reader, response([66], output_log_probs=("FP32", [[[-3.0, -2.0, -1.0]]])))
    assert [entry.logprob for entry in item.logprobs] == [-1.0]


def test_a_log_prob_of_minus_infinity_is_never(codec: TokenCodec) -> None:
    item = read(reader_of(codec, asked(logprobs=0)), response([65], output_log_probs=("FP32", [[[-math.inf]]])))
    assert [entry.logprob for entry in item.logprobs] == [-9999]


def test_a_log_prob_that_the_engine_does_not_know_has_no_entry(codec: TokenCodec) -> None:
    reader = reader_of(codec, asked(logprobs=0))
    item = read(reader, response([65, 66], output_log_probs=("FP32", [[[math.nan, -1.0]]])))
    assert [entry.token_id for entry in item.logprobs] == [66]
    assert read(reader, response([67])).logprobs == ()


@pytest.mark.parametrize(
    "message",
    [
        response([65, 66], output_log_probs=("FP32", [[[-1.0]]])),
        response([65], output_log_probs=("INT32", [[[-1]]])),
        response([65], output_ids=("BYTES", [1, 2, 3])),
        response([65], output_ids=("FP32", [[[65.0]]])),
        response([65, 66], output_ids=("INT32", [[[65, 66], [67, 68]]])),
        response([65, 66], output_ids=("INT32", [[[65, 66]], [[67, 68]]])),
        response([65, -5]),
        response([], output_ids=("INT64", [[[2**31]]]), sequence_length=("INT32", [[1]])),
        response([65, 66], length=-3),
        response([65], sequence_length=("INT64", [[2**62]])),
    ],
)
def test_tensors_that_break_the_contract_are_the_engines_fault(codec: TokenCodec, message: Any) -> None:
    with pytest.raises(ServiceError) as caught:
        reader_of(codec, asked(logprobs=0)).read(message)
    assert caught.value.reason is Reason.BACKEND_ERROR
    assert (caught.value.detail or "").startswith("raw: ")
