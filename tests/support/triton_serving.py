"""A service process in front of a Triton that serves every tensor contract, one model per contract."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from tests.support.processes import ROOT, Process, clean_environment, service

__all__ = ["CONTRACTS", "Answer", "ask", "comes_back", "models_file", "serving", "tokenizer_file"]

# Id of the served model -> name of Triton's model.
CONTRACTS: Final = {
    "ensemble": "ensemble",
    "bls": "tensorrt_llm_bls",
    "bls-accumulate": "tensorrt_llm_bls_accumulate",
    "bls-forward": "tensorrt_llm_bls_forward",
    "raw": "tensorrt_llm",
    "llmapi": "llmapi",
    "vllm": "vllm_model",
}
# Those whose answers carry no counts are counted with the model's tokenizer; raw cannot do without it.
_WITH_TOKENIZER: Final = ("raw", "llmapi")


def tokenizer_file(*arguments: str) -> Path:
    """Return the tokenizer.json of the sample model, or with --scripted that of the scripted engine."""
    path = ROOT / ".run" / f"tokenizer{''.join(arguments).replace('--', '-')}.json"
    path.parent.mkdir(exist_ok=True)
    command = [sys.executable, str(ROOT / "scripts" / "triton" / "tokenizer"), str(path), *arguments]
    subprocess.run(command, env=clean_environment(), check=True, timeout=120)
    return path


def models_file(folder: Path, url: str, tokenizer: Path, only: Sequence[str] = (), **options: Any) -> Path:
    """Write a models file with one model per contract, or those of `only`; `options` go to every backend."""
    lines: list[str] = []
    for name, model in CONTRACTS.items():
        if only and name not in only:
            continue
        lines += [
            "[[models]]",
            f'id = "{name}"',
            'backend = "triton"',
            "max_running = 64",
            "max_output_tokens = 8000000",
            *([f'tokenizer = "{tokenizer}"'] if name in _WITH_TOKENIZER else []),
            "[models.options]",
            f'url = "{url}"',
            f'model = "{model}"',
            *(f"{key} = {json.dumps(value)}" for key, value in options.items()),
        ]
    path = folder / "models.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@contextmanager
def serving(
    folder: Path,
    url: str,
    tokenizer: Path,
    options: dict[str, Any] | None = None,
    only: Sequence[str] = (),
    **settings: object,
) -> Iterator[Process]:
    """Run the service for the length of the block; `options` go to every backend, `settings` to the service."""
    models = models_file(folder, url, tokenizer, only, **(options or {}))
    with service(folder, models_file=models, **{"health_interval_s": 1, **settings}) as running:
        yield running


@dataclass(slots=True)
class Answer:
    """One generation as a client saw it. `code` is OK only if it was completed."""

    deltas: list[Any] = field(default_factory=list)
    started: Any = None
    finished: Any = None
    completed: Any = None
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


async def ask(target: str, model: str, prompt: str, limit: int, *, timeout_s: float = 40, **fields: Any) -> Answer:
    """Run one generation to its end, whatever that is. `fields` are members of GenerateRequest."""
    answer = Answer()
    sampling = {"max_output_tokens": limit, **fields.pop("sampling", {})}
    source = {} if "tokens" in fields else {"prompt": prompt}
    request = gen.GenerateRequest(model=model, sampling=sampling, **source, **fields)
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(target, options) as channel:
        try:
            async for event in generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=timeout_s):
                match event.WhichOneof("event"):
                    case "started":
                        answer.started = event.started
                    case "delta":
                        answer.deltas.append(event.delta)
                    case "choice_finished":
                        answer.finished = event.choice_finished
                    case "completed":
                        answer.completed = event.completed
        except grpc.aio.AioRpcError as error:
            answer.code, answer.details = error.code(), error.details() or ""
    return answer


async def comes_back(target: str, model: str, timeout_s: float = 15) -> float:
    """Wait until a generation of the model succeeds; return the seconds that it took."""
    begun_s = time.monotonic()
    last = await ask(target, model, "token_ms=0", 5)
    while last.code is not grpc.StatusCode.OK:
        assert time.monotonic() < begun_s + timeout_s, f"{model} is not back after {timeout_s} s: {last.details}"
        await asyncio.sleep(0.05)
        last = await ask(target, model, "token_ms=0", 5)
    return time.monotonic() - begun_s
