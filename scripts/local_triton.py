"""The CPU Triton of deploy/triton beside service and gateway: what `make run CONTRACT=...` adds.

Knows where it listens, how it is started, and the settings with which the
service finds it; scripts/serve.py owns its process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["CONTRACTS", "LOG", "addresses", "command", "grace_s", "make_ready", "service_settings"]

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / ".run"
LOG = RUN / "triton.log"
SERVE = ROOT / "scripts" / "triton" / "serve"
# Contract -> the model that the service calls.
CONTRACTS = {
    "ensemble": "ensemble",
    "bls": "tensorrt_llm_bls",
    "raw": "tensorrt_llm",
    "llmapi": "tensorrt_llm",
    "vllm": "vllm_model",
}
# raw works with token ids, llmapi reports no counts: for these the service needs the model's tokenizer.
TOKENIZED = ("raw", "llmapi")
# What scripts/triton/serve needs after its exit timeout.
EXIT_SLACK_S = 5.0


def addresses() -> list[tuple[str, str]]:
    """Return host and port of everything that Triton listens on."""
    ports = (("GRPC_PORT", "8001"), ("HTTP_PORT", "8000"), ("METRICS_PORT", "8002"))
    return [("127.0.0.1", _variable(name, default)) for name, default in ports]


def command(contract: str) -> list[str]:
    """Return the command that serves a contract."""
    return [sys.executable, str(SERVE), "--contract", contract]


def grace_s() -> float:
    """Return how long Triton may take to end, in seconds."""
    try:
        return float(_variable("EXIT_TIMEOUT_S", "5")) + EXIT_SLACK_S
    except ValueError:  # scripts/triton/serve says what is wrong with it
        return EXIT_SLACK_S


def make_ready(contract: str) -> int:
    """Set Triton up and make the tokenizer that the service needs; return 0, or the exit code of what failed.

    Takes about a minute the first time, and says so; what fails says why.
    """
    steps = [[sys.executable, str(SERVE), "--setup-only"]]
    if _needs_tokenizer(contract):
        steps.append([sys.executable, str(SERVE.parent / "tokenizer"), str(_tokenizer()), *_model()])
    for step in steps:
        code = subprocess.run(step, check=False, cwd=ROOT).returncode
        if code:
            return code
    return 0


def service_settings(contract: str) -> dict[str, str]:
    """Return the variables with which the service finds this Triton."""
    settings = {
        "HEADRACE_BACKEND": "triton",
        "HEADRACE_TRITON_URL": ":".join(addresses()[0]),
        "HEADRACE_TRITON_MODEL": CONTRACTS[contract],
    }
    if _needs_tokenizer(contract):
        settings["HEADRACE_TOKENIZER"] = str(_tokenizer())
    return settings


def _needs_tokenizer(contract: str) -> bool:
    return contract in TOKENIZED and not os.environ.get("HEADRACE_TOKENIZER")


def _is_scripted() -> bool:
    return _variable("ENGINE", "llamacpp") == "scripted"


def _tokenizer() -> Path:
    gguf = _variable("GGUF", "")
    name = "scripted" if _is_scripted() else Path(gguf).stem if gguf else "sample"
    return RUN / f"tokenizer-{name}.json"


def _model() -> list[str]:
    gguf = _variable("GGUF", "")
    if _is_scripted():
        return ["--scripted"]
    return ["--gguf", gguf] if gguf else []


def _variable(name: str, default: str) -> str:
    return os.environ.get(f"HEADRACE_TRITON_{name}") or default
