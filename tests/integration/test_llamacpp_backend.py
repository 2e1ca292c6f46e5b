"""The embedded engine with the real sample model."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from contextlib import aclosing
from typing import Any

import pytest

from service.backends.base import EngineFinish, EngineRequest, EngineStarted, EngineStop, Feature, Health
from service.backends.llamacpp.backend import LlamaCppBackend
from service.backends.llamacpp.options import LlamaCppOptions
from service.core.errors import Reason, ServiceError
from service.core.request import Chat, ChatMessage, Constraint, ConstraintKind, Role
from service.templates import load_template
from tests.support.embedded_engine import (
    CONTEXT_TOKENS,
    FRANCE,
    SLOTS,
    end,
    outputs,
    read_to_the_end,
    refusal,
    request,
    run,
    text,
    until_free,
)

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(120)]

# What the model says without any sampling, asked once.
GREEDY: list[str] = []
START_OF_TURN = 105  # a control token of Gemma 3


@pytest.fixture(autouse=True)
async def every_slot_is_free_afterwards(backend: LlamaCppBackend) -> Any:
    yield
    await until_free(backend)


async def test_a_run_starts_speaks_and_ends_with_counts_that_agree(backend: LlamaCppBackend) -> None:
    items = await run(backend, request())
    assert isinstance(items[0], EngineStarted)
    assert text(items).startswith(" Paris")
    finished = end(items)
    assert finished.reason is EngineFinish.LENGTH
    assert finished.prompt_tokens == items[0].prompt_tokens == 13
    assert finished.output_tokens == 8 == sum(item.tokens or 0 for item in outputs(items))
    assert finished.engine_prefill_s is not None
    assert 0 < finished.engine_prefill_s < 60
    assert finished.engine_decode_s is not None


async def test_the_stream_says_what_the_engine_says_in_one_piece(backend: LlamaCppBackend) -> None:
    assert backend._engine is not None
    whole = backend._engine._server.handle_completions({"prompt": FRANCE, "n_predict": 24, "temperature": 0})
    assert text(await run(backend, request(tokens=24))) == whole["choices"][0]["text"]


async def test_the_same_seed_gives_the_same_text_and_another_gives_another(backend: LlamaCppBackend) -> None:
    def told(seed: int) -> EngineRequest:
        return request("Once upon a time", 12, sampling={"temperature": 1.5, "seed": seed})

    first, again, other = [text(await run(backend, told(seed))) for seed in (5, 5, 6)]
    assert first == again
    assert first != other


async def test_a_second_run_takes_its_prompt_from_the_cache(backend: LlamaCppBackend) -> None:
    prompt = "The rain in Spain stays mainly in the plain. " * 8
    await run(backend, request(prompt, 1))
    assert (end(await run(backend, request(prompt, 1))).cached_prompt_tokens or 0) > 10


async def test_logprobs_spell_the_text_and_the_chosen_token_is_the_best_when_greedy(backend: LlamaCppBackend) -> None:
    items = await run(backend, request(logprobs=3, token_ids=True))
    details = [logprob for item in outputs(items) for logprob in item.logprobs]
    assert b"".join(logprob.raw for logprob in details).decode() == text(items)
    assert [i for item in outputs(items) for i in item.token_ids] == [logprob.token_id for logprob in details]
    for logprob in details:
        assert len(logprob.top) == 3
        assert logprob.top[0][:2] == (logprob.token_id, logprob.logprob)
        assert 0 >= logprob.top[0].logprob >= logprob.top[1].logprob >= logprob.top[2].logprob


@pytest.mark.parametrize(("logprobs", "alternatives"), [(0, 0), (20, 20)])
async def test_as_many_alternatives_come_as_were_asked_for(
    backend: LlamaCppBackend, logprobs: int, alternatives: int
) -> None:
    first = outputs(await run(backend, request(tokens=1, logprobs=logprobs)))[0]
    assert len(first.logprobs) == 1
    assert len(first.logprobs[0].top) == alternatives
    assert first.token_ids == ()


async def test_details_do_not_change_the_text(backend: LlamaCppBackend) -> None:
    plain, detailed = await run(backend, request()), await run(backend, request(logprobs=5))
    assert text(plain) == text(detailed)


async def test_characters_of_several_tokens_arrive_whole_and_are_counted(backend: LlamaCppBackend) -> None:
    # Hieroglyphs are in no vocabulary: each is four byte tokens.
    line = "\U00013000\U00013001\U00013002\U0001f600"
    items = await run(backend, request(f"{line}\n{line}\n{line}\n", 14))
    assert text(items).startswith(line[:3])
    assert sum(item.tokens or 0 for item in outputs(items)) == 14
    assert max(item.tokens or 0 for item in outputs(items)) == 4


async def test_token_ids_are_taken_as_they_are(backend: LlamaCppBackend) -> None:
    assert backend._engine is not None
    ids = tuple(backend._engine.tokenize(FRANCE, add_special_tokens=True, timeout_s=10))
    assert text(await run(backend, request(ids))) == text(await run(backend, request(FRANCE)))


async def test_a_prompt_with_its_own_start_token_gets_no_second_one(backend: LlamaCppBackend) -> None:
    bare = end(await run(backend, request(FRANCE, 1)))
    own = end(await run(backend, request(f"<bos>{FRANCE}", 1, add_special_tokens=False)))
    none = end(await run(backend, request(FRANCE, 1, add_special_tokens=False)))
    assert bare.prompt_tokens == own.prompt_tokens == 13
    assert none.prompt_tokens == 12


async def test_tokens_are_counted_without_running_them(backend: LlamaCppBackend) -> None:
    assert await backend.count_tokens(FRANCE, add_special_tokens=True) == 13
    assert await backend.count_tokens(FRANCE, add_special_tokens=False) == 12


@pytest.mark.parametrize(
    ("sampling", "differs"),
    [
        ({"logit_bias": {9079: -100.0}}, True),  # " Paris"
        ({"repetition_penalty": 1.9}, True),
        ({"frequency_penalty": 2.0, "presence_penalty": 2.0}, True),
        ({"temperature": 1.9, "top_k": 1}, False),
        ({"temperature": 1.9, "top_p": 0.0001}, False),
        ({"temperature": 1.9, "min_p": 1.0}, False),
    ],
)
async def test_every_sampling_field_does_something(
    backend: LlamaCppBackend, sampling: dict[str, Any], differs: bool
) -> None:
    if not GREEDY:
        GREEDY.append(text(await run(backend, request(tokens=16))))
    assert (text(await run(backend, request(tokens=16, sampling=sampling))) != GREEDY[0]) is differs


async def test_end_of_sequence_stops_unless_it_is_ignored(backend: LlamaCppBackend) -> None:
    ends = {"logit_bias": {1: 100.0}}  # <eos>
    finished = end(await run(backend, request(sampling=ends)))
    assert (finished.reason, finished.output_tokens) == (EngineFinish.STOP, 1)
    finished = end(await run(backend, request(sampling=ends | {"ignore_eos": True})))
    assert (finished.reason, finished.output_tokens) == (EngineFinish.LENGTH, 8)


@pytest.mark.parametrize("marks", [(), ("<start_of_turn>",)])
async def test_a_control_token_is_shown_if_somebody_looks_for_it(
    backend: LlamaCppBackend, marks: tuple[str, ...]
) -> None:
    sampling = {"logit_bias": {START_OF_TURN: 100.0}}
    items = await run(backend, request(tokens=3, sampling=sampling, marks=marks))
    assert text(items) == "".join(marks) * 3


async def test_the_output_follows_a_json_schema(backend: LlamaCppBackend) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(schema))
    items = await run(backend, request("The capital of France as JSON: ", 60, constraint=constraint))
    answer = json.loads(text(items))
    assert answer["city"] in ("Paris", "Rome")
    assert isinstance(answer["big"], bool)
    assert end(items).reason is EngineFinish.STOP


async def test_a_model_that_loves_white_space_still_ends_its_json(backend: LlamaCppBackend) -> None:
    assert backend.tokenizer is not None
    newline = (await backend.tokenizer.encode("\n", add_special_tokens=False)).token_ids[-1]
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(schema))
    sampling = {"logit_bias": {newline: 100.0}}
    said = text(await run(backend, request(tokens=60, sampling=sampling, constraint=constraint)))
    assert said == '{"a": 1}'


async def test_the_output_is_a_json_object(backend: LlamaCppBackend) -> None:
    items = await run(backend, request("{}\n", 60, constraint=Constraint(kind=ConstraintKind.JSON_OBJECT)))
    assert text(items).lstrip().startswith("{")


async def test_the_output_follows_a_grammar(backend: LlamaCppBackend) -> None:
    constraint = Constraint(kind=ConstraintKind.GRAMMAR, source='root ::= "yes" | "no"')
    items = await run(backend, request(constraint=constraint))
    assert text(items) in ("yes", "no")
    assert end(items).reason is EngineFinish.STOP


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (ConstraintKind.GRAMMAR, "root ::= nope"),
        (ConstraintKind.GRAMMAR, "no grammar at all"),
        (ConstraintKind.JSON_SCHEMA, '{"type": "nope"}'),
        (ConstraintKind.JSON_SCHEMA, '{"type": "string", "pattern": "("}'),
        (ConstraintKind.JSON_SCHEMA, '{"type": "integer", "minimum": 5, "maximum": 2}'),
        (ConstraintKind.JSON_SCHEMA, '{"$ref": "#/missing"}'),
    ],
)
async def test_a_constraint_that_the_engine_would_ignore_is_refused(
    backend: LlamaCppBackend, kind: ConstraintKind, source: str
) -> None:
    error = await refusal(backend, request(constraint=Constraint(kind=kind, source=source)))
    assert error.reason is Reason.INVALID_FIELD
    assert [violation.field for violation in error.violations] == [f"constraint.{kind.value}"]


async def test_a_prompt_beyond_the_window_is_refused_with_its_length(backend: LlamaCppBackend) -> None:
    error = await refusal(backend, request("word " * 2000))
    assert error.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert int(error.metadata["promptTokens"]) > CONTEXT_TOKENS == int(error.metadata["maxContextTokens"])


async def test_a_token_outside_the_vocabulary_is_refused(backend: LlamaCppBackend) -> None:
    error = await refusal(backend, request((2, 9_259_999)))
    assert [violation.field for violation in error.violations] == ["tokens.ids"]


async def test_a_full_window_is_told_apart_from_the_callers_limit(backend: LlamaCppBackend) -> None:
    prompt = tuple([2] + [1902] * (CONTEXT_TOKENS - 8))
    items = await run(backend, request(prompt, 100, sampling={"ignore_eos": True}))
    assert end(items).reason is EngineFinish.CONTEXT_LENGTH
    assert (end(items).output_tokens or 0) <= 8


async def test_twice_as_many_requests_as_slots_all_end(backend: LlamaCppBackend) -> None:
    requests = [request(f"Q: What is {n} plus {n}?\nA:", 6) for n in range(2 * SLOTS)]
    together = await asyncio.gather(*(run(backend, wanted) for wanted in requests))
    assert [end(items).output_tokens for items in together] == [6] * len(requests)
    assert all(text(items) for items in together)


async def test_health_is_ready_idle_and_busy(backend: LlamaCppBackend) -> None:
    assert await backend.health(5) is Health.READY
    async with aclosing(backend.generate(request(tokens=100, sampling={"ignore_eos": True}))) as items:
        await anext(items)
        assert await backend.health(5) is Health.READY


async def test_a_run_that_fell_silent_makes_the_engine_unavailable(backend: LlamaCppBackend) -> None:
    async with aclosing(backend.generate(request(tokens=300, sampling={"ignore_eos": True}))) as items:
        await anext(items)
        options = backend.options
        backend.options = dataclasses.replace(options, stall_timeout_s=1e-9)
        try:
            assert await backend.health(5) is Health.UNAVAILABLE
        finally:
            backend.options = options


async def test_the_facts_are_those_of_the_model_file(backend: LlamaCppBackend) -> None:
    info = backend.info
    assert (info.max_context_tokens, info.vocab_size) == (CONTEXT_TOKENS, 262_144)
    assert (info.bos_text, info.eos_text) == ("<bos>", "<eos>")
    assert info.chat_template is None  # a base model
    assert {"<start_of_turn>", "<end_of_turn>"} <= set(info.control_texts)
    assert Feature.MIN_OUTPUT_TOKENS not in info.features
    assert Feature.BAD_WORDS not in info.features


async def test_a_control_token_in_a_message_reaches_the_model_as_text(backend: LlamaCppBackend) -> None:
    template = load_template("gemma", backend.info)
    assert backend._engine is not None
    chat = Chat(messages=(ChatMessage(role=Role.USER, content="a<end_of_turn><eos>b"),))
    ids = backend._engine.tokenize(template.render(chat), add_special_tokens=False, timeout_s=10)
    assert ids.count(1) == 0  # <eos>
    assert ids.count(106) == 1  # <end_of_turn>, the template's own
    assert ids.count(2) == 1  # <bos>


async def test_the_engines_port_is_closed_to_those_without_the_key(backend: LlamaCppBackend) -> None:
    engine = backend._engine
    assert engine is not None
    key = engine._headers.pop("Authorization")
    try:
        with pytest.raises(ValueError, match="401"):
            engine.tokenize("x", add_special_tokens=False, timeout_s=10)
    finally:
        engine._headers["Authorization"] = key


async def test_closing_stops_what_runs_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    stops: list[EngineStop] = []
    backend = LlamaCppBackend(LlamaCppOptions(context_tokens=256, slots=1), on_stop=stops.append)
    assert await backend.health(1) is Health.LOADING
    await backend.start()
    tokenizer = backend.tokenizer
    assert tokenizer is not None
    assert Feature.GRAMMAR not in backend.info.features, "grammars are for those who ask for them"
    assert backend.info.max_running == 1
    items = backend.generate(request(tokens=200, sampling={"ignore_eos": True}))
    await anext(items)
    waiting = asyncio.ensure_future(anext(backend.generate(request())))
    await asyncio.sleep(0)
    started_s = time.monotonic()
    await backend.close()
    assert time.monotonic() - started_s < 5
    for read in (waiting, read_to_the_end(items)):
        with pytest.raises(ServiceError) as caught:
            await read
        assert caught.value.reason is Reason.BACKEND_UNAVAILABLE
    await backend.close()
    assert await backend.health(1) is Health.UNAVAILABLE
    assert (await refusal(backend, request())).reason is Reason.BACKEND_UNAVAILABLE
    with pytest.raises(ServiceError) as unread:
        await tokenizer.encode("x", add_special_tokens=True)
    assert unread.value.reason is Reason.BACKEND_UNAVAILABLE
    assert [stop.contract for stop in stops] == ["llamacpp"] * 2
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
        assert not thread.is_alive(), thread


async def test_a_model_that_cannot_be_loaded_is_told_with_its_path(tmp_path: Any) -> None:
    for content in (b"", b"not a model", b"GGUF" + b"\3\0\0\0" + b"\0" * 16):
        path = tmp_path / "bad.gguf"
        path.write_bytes(content)
        backend = LlamaCppBackend(LlamaCppOptions(model_path=path))
        with pytest.raises(ServiceError, match=r"bad\.gguf"):
            await backend.start()
        await backend.close()
    backend = LlamaCppBackend(LlamaCppOptions(model_path=tmp_path / "missing.gguf"))
    with pytest.raises(ServiceError, match=r"missing\.gguf"):
        await backend.start()
    await backend.close()


async def test_a_prompt_of_fourteen_megabytes_is_refused_at_once_and_the_engine_stays_well(
    backend: LlamaCppBackend,
) -> None:
    # Long words and lines of spaces have few tokens for their size.
    for piece in ("x", " ", "The quick brown fox. ", "日本"):
        with pytest.raises(ServiceError) as caught:
            await backend.count_tokens(piece * (14 * 1024 * 1024 // len(piece.encode())), add_special_tokens=True)
        assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert await backend.health(5) is Health.READY
    assert backend.info.longest_token_bytes == 48


async def test_a_closed_backend_refuses_to_count() -> None:
    with pytest.raises(ServiceError) as caught:
        await LlamaCppBackend(LlamaCppOptions()).count_tokens("x", add_special_tokens=True)
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE
