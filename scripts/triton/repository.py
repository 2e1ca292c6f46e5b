"""The folder that Triton serves for a contract: one of deploy/triton, or one made for the occasion."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import environment

__all__ = ["BLS_INSTANCES", "CONTRACTS", "model_repository"]

# What stands in the configuration of tensorrt_llm_bls.
BLS_INSTANCES = 4

_MODELS = environment.ROOT / "deploy" / "triton" / "models"
_FOLDERS = {
    "ensemble": "inflight_batcher_llm",
    "bls": "inflight_batcher_llm",
    "raw": "inflight_batcher_llm",
    "llmapi": "llmapi",
    "vllm": "vllm",
}
CONTRACTS = (*_FOLDERS, "all")
_BLS = "tensorrt_llm_bls"
# What is served beside it by `all`, and the parameter that is true there.
_VARIANTS = {"accumulate": "accumulate_tokens", "forward": "forward_request_id"}
_PREFIX = "triton-models-"


@contextmanager
def model_repository(contract: str, bls_instances: int = BLS_INSTANCES) -> Iterator[Path]:
    """Yield the model repository of a contract; one that had to be made exists for the length of the block.

    Raises OSError.
    """
    if contract != "all" and bls_instances == BLS_INSTANCES:
        yield _MODELS / _FOLDERS[contract]
        return
    _remove_leftovers()
    folder = environment.RUN / f"{_PREFIX}{os.getpid()}"
    try:
        folder.mkdir(parents=True)
        for name, source in _sources(contract).items():
            (folder / name).symlink_to(source)
        _change_bls(folder, bls_instances, with_variants=contract == "all")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sources(contract: str) -> dict[str, Path]:
    """Return name -> folder of the models. Two are called tensorrt_llm: one has another name beside the other."""
    if contract != "all":
        return {folder.name: folder for folder in (_MODELS / _FOLDERS[contract]).iterdir()}
    return {
        **_sources("ensemble"),
        "llmapi": _MODELS / "llmapi" / "tensorrt_llm",
        **_sources("vllm"),
    }


def _change_bls(folder: Path, instances: int, *, with_variants: bool) -> None:
    """Give tensorrt_llm_bls its instances, and others beside it that accumulate tokens or pass the request id on."""
    source = folder / _BLS
    if not source.exists():
        return
    version, config = source.resolve() / "1", (source / "config.pbtxt").read_text()
    config = _replaced(config, f"count: {BLS_INSTANCES} ", f"count: {instances} ")
    source.unlink()
    _write_model(source, version, config)
    if with_variants:
        for suffix, parameter in _VARIANTS.items():
            value = f'key: "{parameter}"  value {{{{ string_value: "{{}}" }}}}'
            changed = _replaced(config, value.format("false"), value.format("true"))
            _write_model(folder / f"{_BLS}_{suffix}", version, changed)


def _write_model(folder: Path, version: Path, config: str) -> None:
    folder.mkdir()
    (folder / "1").symlink_to(version)
    (folder / "config.pbtxt").write_text(config)


def _replaced(config: str, old: str, new: str) -> str:
    if old not in config:
        raise OSError(f"the configuration of {_BLS} does not have {old!r}")
    return config.replace(old, new)


def _remove_leftovers() -> None:
    """Remove the repositories of processes that were killed."""
    for folder in environment.RUN.glob(f"{_PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(folder, ignore_errors=True)
