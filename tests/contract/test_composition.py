"""From settings to served models, and models whose engine does not count tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.v1 import generation_pb2, sampling_pb2
from service.backends.base import EngineFinish, EngineFinished, EngineItem, EngineOutput, EngineRequest
from service.backends.simulator import SimulatorBackend
from service.catalog.file import ModelsFileError
from service.composition import declared_models, open_models
from service.config import ServiceSettings
from service.templates import TemplateError
from service.tokens import JsonTokenizer, TokenizerError
from tests.support.service import GenerateRequest, running_service, simulated_model, text_of


@pytest.mark.parametrize("backend", ["llamacpp", "triton", "simulator"])
def test_the_settings_declare_one_model_that_answers_to_default(backend: str) -> None:
    settings = ServiceSettings.model_validate({"backend": backend})
    (declaration,) = declared_models(settings)
    assert declaration.backend == backend
    assert declaration.aliases == ("default",)
    declaration.backend_options()


def test_a_models_file_takes_the_place_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[[models]]\nid = "a"\nbackend = "simulator"\ntemplate = "chatml"\n')
    assert [d.id for d in declared_models(ServiceSettings(models_file=path))] == ["a"]
    path.write_text("nope")
    with pytest.raises(ModelsFileError, match=r"models\.toml"):
        declared_models(ServiceSettings(models_file=path))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = " + b"[" * 5000], ids=["not text", "too deep"])
def test_a_file_that_cannot_be_read_is_a_clear_problem(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "models.toml"
    path.write_bytes(content)
    with pytest.raises(ModelsFileError, match=r"models\.toml"):
        declared_models(ServiceSettings(models_file=path))


async def test_models_are_opened_with_their_limits() -> None:
    settings = ServiceSettings(backend="simulator", simulator_max_running=3, max_waiting=2)
    registry = await open_models(declared_models(settings))
    model = registry.get("default")
    assert (model.id, model.slots.running_limit, model.max_context_tokens) == ("simulator", 3, 8192)
    assert model.template is not None


async def test_a_template_that_does_not_exist_stops_the_start() -> None:
    settings = ServiceSettings(backend="simulator", template="nope")
    with pytest.raises(TemplateError, match="nope"):
        await open_models(declared_models(settings))


class Uncounted(SimulatorBackend):
    """An engine whose contract has no token counts."""

    async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
        return None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        for text in (b"one two", b" three"):
            yield EngineOutput(text, tokens=None)
        yield EngineFinished(reason=EngineFinish.UNKNOWN)


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    words = {word: number for number, word in enumerate(["one", "two", "three", "say", "it", "?"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


async def test_counts_that_nobody_knows_stay_unset() -> None:
    async with running_service(simulated_model(backend=Uncounted())) as service:
        events = await service.events(GenerateRequest(model="sim", prompt="say it"))
        usage = events[-1].completed.usage
        assert text_of(events) == "one two three"
        assert not usage.HasField("prompt_token_count")
        assert not usage.HasField("output_token_count")
        assert not events[0].started.HasField("prompt_token_count")
        assert events[-1].completed.timing.output_tokens_per_second == 0
        assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_STOP


async def test_a_configured_tokenizer_counts_what_the_engine_does_not(tokenizer_file: Path) -> None:
    model = simulated_model(backend=Uncounted(), tokenizer=JsonTokenizer(tokenizer_file))
    async with running_service(model) as service:
        request = GenerateRequest(
            model="sim", prompt="say it", sampling=sampling_pb2.SamplingParams(max_output_tokens=3)
        )
        events = await service.events(request)
        usage = events[-1].completed.usage
        assert (usage.prompt_token_count, usage.output_token_count) == (2, 3)
        assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_LENGTH, "the limit was reached"


def test_a_tokenizer_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(TokenizerError, match="broken"):
        JsonTokenizer(path)
