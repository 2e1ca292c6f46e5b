"""The processes of the Triton section: the peer, a real Triton where there can be one, and one service for both."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from bench.processes import clean_environment, end, free_ports, service_of, wait_until_answered

__all__ = ["CONTRACTS", "FAKE", "GRPCIO", "REAL", "Servers", "running_servers"]

ROOT: Final = Path(__file__).resolve().parents[2]
SERVE: Final = ROOT / "scripts" / "triton" / "serve"
TOKENIZER: Final = ROOT / "scripts" / "triton" / "tokenizer"
# Contract -> the model that has it in `serve --contract all`.
CONTRACTS: Final = {
    "ensemble": "ensemble",
    "bls": "tensorrt_llm_bls",
    "bls, id passed on": "tensorrt_llm_bls_forward",
    "raw": "tensorrt_llm",
    "llmapi": "llmapi",
    "vllm": "vllm_model",
}
# Models of the service that are the same one, read over the one and the other transport.
FAKE: Final = "fake"
REAL: Final = "ensemble"
GRPCIO: Final = "-grpcio"
MOST_STREAMS: Final = 64
CONTEXT_TOKENS: Final = 16_384
SETUP_S: Final = 900.0
READY_S: Final = 60.0
EXIT_UNSUPPORTED: Final = 69


@dataclass(frozen=True, slots=True)
class Servers:
    """A service whose models are the fake ones and, with a real Triton, one per contract.

    `event_log` is that of the real engine; `reason` says why there is none.
    """

    service: psutil.Process
    target: str
    event_log: Path
    reason: str | None

    def cpu_s(self) -> float:
        """Return user + system seconds of the service so far."""
        times = self.service.cpu_times()
        return float(times.user + times.system)


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Start everything on free ports, and end it with the block."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        event_log = folder / "events.jsonl"
        peer = subprocess.Popen([sys.executable, "-m", "bench.triton.peer"], stdout=subprocess.PIPE, text=True)
        stack.callback(end, peer)
        assert peer.stdout is not None
        peer_url = f"127.0.0.1:{int(peer.stdout.readline())}"
        reason = _why_no_triton(folder / "tokenizer.json")
        triton_url = None if reason else stack.enter_context(_running_triton(folder, event_log))
        models = folder / "models.toml"
        models.write_text(_models(peer_url, triton_url, folder / "tokenizer.json"))
        # The canaries of all these models are not what is measured.
        service, port = service_of(models, HEADRACE_HEALTH_INTERVAL_S="600")
        stack.callback(end, service)
        yield Servers(psutil.Process(service.pid), f"127.0.0.1:{port}", event_log, reason)


def _why_no_triton(tokenizer: Path) -> str | None:
    """Make what a real Triton needs; return why that is not possible."""
    for command in ([SERVE, "--setup-only", "--engine", "scripted"], [TOKENIZER, "--scripted", tokenizer]):
        made = subprocess.run(
            [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=SETUP_S, check=False
        )
        if made.returncode:
            lines = made.stderr.strip().splitlines() or [f"exit code {made.returncode}"]
            return lines[0] if made.returncode == EXIT_UNSUPPORTED else f"the set-up failed: {lines[-1]}"
    return None


@contextmanager
def _running_triton(folder: Path, event_log: Path) -> Iterator[str]:
    grpc_port, http_port, metrics_port = free_ports(3)
    environment = clean_environment() | {
        "HEADRACE_TRITON_SLOTS": str(MOST_STREAMS),
        "HEADRACE_TRITON_CONTEXT_TOKENS": str(CONTEXT_TOKENS),
    }
    ports = [f"--grpc-port={grpc_port}", f"--http-port={http_port}", f"--metrics-port={metrics_port}"]
    command = [sys.executable, str(SERVE), "--contract=all", "--engine=scripted", *ports]
    with (folder / "triton.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--event-log={event_log}", "--exit-timeout-s=1"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_answered(f"http://127.0.0.1:{http_port}/v2/health/ready", [process], READY_S)
            yield f"127.0.0.1:{grpc_port}"
        finally:
            end(process)


def _models(peer_url: str, triton_url: str | None, tokenizer: Path) -> str:
    fake = {"url": peer_url, "model": "ensemble"}
    found = [_model(FAKE, fake), _model(FAKE + GRPCIO, fake | {"transport": "grpcio"})]
    if triton_url is not None:
        real = {"url": triton_url, "model": CONTRACTS[REAL]}
        found.append(_model(REAL + GRPCIO, real | {"transport": "grpcio"}))
        for contract, name in CONTRACTS.items():
            # The token-level contract has no text of its own.
            more = f'tokenizer = "{tokenizer}"\n' if contract == "raw" else ""
            found.append(_model(contract, {"url": triton_url, "model": name}, more))
    return "\n".join(found)


def _model(name: str, options: dict[str, str], more: str = "") -> str:
    lines = "\n".join(f'{key} = "{value}"' for key, value in options.items())
    limits = f"max_running = {MOST_STREAMS}\nmax_context_tokens = {CONTEXT_TOKENS}\n"
    limits += f"max_output_tokens = {CONTEXT_TOKENS}"
    return f'[[models]]\nid = "{name}"\nbackend = "triton"\n{limits}\n{more}[models.options]\n{lines}\n'
