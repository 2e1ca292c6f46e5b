"""How the embedded engine is set up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["LlamaCppOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions:
    """Settings of one embedded llama.cpp.

    model_path: GGUF file; None takes the sample model, which is put together in
        the cache folder on first use.
    context_tokens: window of one request, prompt plus output. The engine sets
        aside `context_tokens * slots` in all, and caps a window at what the model
        was trained for.
    slots: requests that decode at once; more wait in the service.
    threads: CPU threads; None takes what this process may use (affinity and
        cgroup quota). More than there are cores makes decoding slower.
    gpu_layers: layers on the GPU, where the build of xllamacpp has one; 0 is
        CPU only, a large number (999) is all.
    batch_tokens: prompt tokens per engine step, and so how long the other streams
        and a cancellation wait behind a prefill. None takes 32 on a CPU and 512
        with a GPU. On a CPU 16 to 512 prefill equally fast.
    prompt_cache_mib: memory for prompts of idle slots, beyond the slots' own; 0
        switches it off.
    stall_timeout_s: silence of a running request after which the engine counts
        as hung.
    grammars: take GBNF grammars from callers. A few characters of one can keep the
        engine busy for minutes or fill the memory: offer it to callers you know.
    log_verbosity: llama.cpp's own log to stderr: 0 nothing, 1 errors, 2 warnings,
        3 information.
    """

    model_path: Path | None = None
    context_tokens: int = 8192
    slots: int = 4
    threads: int | None = None
    gpu_layers: int = 0
    batch_tokens: int | None = None
    prompt_cache_mib: int = 256
    stall_timeout_s: float = 60.0
    grammars: bool = False
    log_verbosity: int = 0

    def __post_init__(self) -> None:
        problems = []
        for name, least in (("context_tokens", 64), ("slots", 1), ("gpu_layers", 0), ("prompt_cache_mib", 0)):
            if getattr(self, name) < least:
                problems.append(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.threads is not None and self.threads < 1:
            problems.append(f"threads must be at least 1, got {self.threads}")
        if self.batch_tokens is not None and self.batch_tokens < 8:
            problems.append(f"batch_tokens must be at least 8, got {self.batch_tokens}")
        if self.stall_timeout_s <= 0:
            problems.append(f"stall_timeout_s must be above 0, got {self.stall_timeout_s}")
        if not 0 <= self.log_verbosity <= 5:
            problems.append(f"log_verbosity must be 0 to 5, got {self.log_verbosity}")
        if problems:
            raise ValueError("; ".join(problems))
