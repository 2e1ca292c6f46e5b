"""The model configurations under deploy/triton: they fit together, and nothing is dropped between them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.triton_fake import MODELS, model_config
from tests.support.triton_parts import LIB

assert LIB
from headrace_triton.bls import tables  # noqa: E402

FAMILIES = {
    "inflight_batcher_llm": ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"),
    "llmapi": ("tensorrt_llm",),
    "vllm": ("vllm_model",),
}
EVERY_MODEL = [(family, name) for family, names in FAMILIES.items() for name in names]


@pytest.mark.parametrize(("family", "name"), EVERY_MODEL)
def test_a_model_is_named_by_its_folder_and_has_what_it_takes(family: str, name: str) -> None:
    config, folder = model_config(name, family), MODELS / family / name / "1"
    assert config.name == ""
    assert (config.max_batch_size > 0) is (family == "inflight_batcher_llm")
    kept = ".gitkeep" if name == "ensemble" else "model.py"
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {kept}
    assert config.model_transaction_policy.decoupled is (name.startswith("tensorrt_llm") or name == "vllm_model")


def test_the_repositories_have_no_other_models() -> None:
    assert {family.name: {model.name for model in family.iterdir()} for family in MODELS.iterdir()} == {
        family: set(names) for family, names in FAMILIES.items()
    }


def test_the_steps_of_the_ensemble_fit_together() -> None:
    ensemble = model_config("ensemble")
    known = {tensor.name for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        model = model_config(step.model_name)
        optional = {tensor.name for tensor in model.input if tensor.optional}
        assert set(step.input_map) <= {tensor.name for tensor in model.input}
        assert {tensor.name for tensor in model.input} - set(step.input_map) <= optional
        assert set(step.output_map) <= {tensor.name for tensor in model.output}
        assert set(step.input_map.values()) <= known
        known |= set(step.output_map.values())
    assert {tensor.name for tensor in ensemble.output} <= known
    used = {name for step in ensemble.ensemble_scheduling.step for name in step.input_map.values()}
    assert {tensor.name for tensor in ensemble.input} <= used, "no input is dropped"


def test_the_script_of_bls_passes_on_every_tensor_but_the_one_that_the_original_drops() -> None:
    bls, engine, preprocessing = (model_config(n) for n in ("tensorrt_llm_bls", "tensorrt_llm", "preprocessing"))
    passed_on = {*tables.PREPROCESSING_INPUTS, *tables.ENGINE_INPUTS, *tables.REFUSED}
    assert {tensor.name for tensor in bls.input} - passed_on == {"num_return_sequences"}
    assert set(tables.PREPROCESSING_INPUTS.values()) <= {tensor.name for tensor in preprocessing.input}
    assert set(tables.PREPARED) <= {tensor.name for tensor in preprocessing.output}
    inputs = {tensor.name for tensor in engine.input}
    assert {*tables.ENGINE_INPUTS.values(), *tables.PREPARED.values()} <= inputs
    assert set(tables.ENGINE_OUTPUTS) <= {tensor.name for tensor in engine.output}
    assert {tensor.name for tensor in bls.output} == {"text_output", *tables.PASSED_ON}


def test_the_ensemble_and_bls_have_the_same_tensors_but_for_images_and_drafts() -> None:
    ensemble, bls = model_config("ensemble"), model_config("tensorrt_llm_bls")

    def tensors(items: Any) -> set[tuple[str, int, tuple[int, ...], bool]]:
        return {(i.name, i.data_type, tuple(i.dims), getattr(i, "optional", False)) for i in items}

    more = {name for name, *_ in tensors(bls.input) - tensors(ensemble.input)}
    assert more == {
        *("image_input", "image_bytes_input", "image_url_input", "video_bytes_input"),
        *("num_draft_tokens", "use_draft_logits"),
    }
    assert tensors(ensemble.input) <= tensors(bls.input)
    assert tensors(bls.output) == tensors(ensemble.output)


def test_order_and_stops_need_one_instance() -> None:
    for name, family in (
        ("tensorrt_llm", "inflight_batcher_llm"),
        ("postprocessing", "inflight_batcher_llm"),
        ("tensorrt_llm", "llmapi"),
        ("vllm_model", "vllm"),
    ):
        assert [group.count for group in model_config(name, family).instance_group] == [1]
