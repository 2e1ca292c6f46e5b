"""llama.cpp itself: load, run, ask, unload. Every call blocks; threads are the caller's.

The only importer of `xllamacpp`. Knows nothing of asyncio and of the service's
requests. The library's server also opens an HTTP port on 127.0.0.1, which has
what the Python binding lacks (tokenizer, model facts, a probe of the engine's own
loop); a random key keeps everyone else out.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.backends.llamacpp.options import LlamaCppOptions
from service.core.errors import Reason, ServiceError

__all__ = ["Engine", "ModelFacts", "usable_cpus"]

_CPU_BATCH_TOKENS: Final = 32
_GPU_BATCH_TOKENS: Final = 512
_LOAD_TIMEOUT_S: Final = 30.0
_CGROUP_CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")
# No use for the words in errors: requests are checked before they come here.
_MODEL_ALIAS: Final = "m"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the model file says. `context_tokens` is the window of one slot."""

    context_tokens: int
    vocab_size: int
    chat_template: str | None
    bos_text: str
    eos_text: str
    library_version: str


class Engine:
    """A loaded model. Construct with `Engine.load`; `close` once nothing runs."""

    def __init__(self, server: Any, key: str, library_version: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        host, _, port = str(server.listening_address).removeprefix("http://").rpartition(":")
        self._address = (host, int(port))
        self._library_version = library_version

    @classmethod
    def load(cls, options: LlamaCppOptions, model_path: Path) -> Engine:
        """Load the model. Raises BACKEND_UNAVAILABLE with what to do about it.

        The library keeps Python's global lock while it loads: the whole process
        stands still for that long, whatever thread calls this.
        """
        library = _library()
        if not model_path.is_file():
            raise ServiceError(Reason.BACKEND_UNAVAILABLE, f"Model file {model_path} does not exist.")
        key = secrets.token_urlsafe(32)
        try:
            server = library.Server(_params(library, options, model_path, key))
        except (RuntimeError, ValueError) as error:
            raise ServiceError(
                Reason.BACKEND_UNAVAILABLE,
                f"llama.cpp cannot load {model_path}: a damaged or unsupported GGUF file, or too little memory for "
                f"{options.slots} slots of {options.context_tokens} tokens. log_verbosity=2 shows its own log.",
                detail=str(error),
            ) from error
        return cls(server, key, library.__version__)

    def run(self, body: dict[str, Any], on_chunk: Callable[[bytes], bool]) -> None:
        """Run one streamed completion; returns when it has ended.

        `on_chunk` gets the JSON of each event in this thread, and stops the run by
        returning True. It must not raise: the library would swallow that.
        """
        self._server.handle_completions(json.dumps(body).encode(), on_chunk)

    def tokenize(self, text: str, *, add_special_tokens: bool, timeout_s: float) -> list[int]:
        """Return the token ids of `text`, in which the texts of special tokens stand for these tokens.

        Raises OSError or ValueError.
        """
        body = {"content": text, "add_special": add_special_tokens, "parse_special": True}
        ids: list[int] = self._ask("POST", "/tokenize", body, timeout_s=timeout_s)["tokens"]
        return ids

    def tokenize_with_pieces(self, text: str, *, add_special_tokens: bool, timeout_s: float) -> list[tuple[int, bytes]]:
        """Return what `tokenize` does, with the exact bytes of each token; a special token's are its text."""
        body = {"content": text, "add_special": add_special_tokens, "parse_special": True, "with_pieces": True}
        tokens = self._ask("POST", "/tokenize", body, timeout_s=timeout_s)["tokens"]
        # A piece that is no UTF-8 by itself comes as a list of bytes.
        return [
            (token["id"], piece.encode() if isinstance(piece := token["piece"], str) else bytes(piece))
            for token in tokens
        ]

    def detokenize(self, token_ids: list[int], *, timeout_s: float) -> str:
        """Return the text of ids within the vocabulary, special tokens as their texts. Raises OSError or ValueError."""
        text: str = self._ask("POST", "/detokenize", {"tokens": token_ids}, timeout_s=timeout_s)["content"]
        return text

    def is_answering(self, timeout_s: float) -> bool:
        """Return whether the engine's loop, between two steps, answers in time."""
        try:
            # Unlike /health, this goes through the queue of the engine's loop.
            self._ask("GET", "/slots", None, timeout_s=timeout_s)
        except (OSError, ValueError):
            return False
        return True

    def facts(self) -> ModelFacts:
        """Return what the loaded model is. Raises OSError or ValueError."""
        props = self._ask("GET", "/props", None, timeout_s=_LOAD_TIMEOUT_S)
        models = self._ask("GET", "/v1/models", None, timeout_s=_LOAD_TIMEOUT_S)
        return ModelFacts(
            context_tokens=props["default_generation_settings"]["n_ctx"],
            vocab_size=models["data"][0]["meta"]["n_vocab"],
            chat_template=props.get("chat_template") or None,
            bos_text=props.get("bos_token", ""),
            eos_text=props.get("eos_token", ""),
            library_version=self._library_version,
        )

    def close(self) -> None:
        """Unload. Nothing may run: a run that still needs Python's lock would wait for this one forever."""
        self._server = None

    def _ask(self, method: str, path: str, body: dict[str, Any] | None, *, timeout_s: float) -> Any:
        connection = http.client.HTTPConnection(*self._address, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            answer = response.read()
        except http.client.HTTPException as error:
            raise ValueError(f"llama.cpp cut its answer to {path} short") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ValueError(f"llama.cpp answered {response.status} to {path}")
        return json.loads(answer)


def usable_cpus() -> int:
    """Return how many CPUs this process may keep busy: its affinity, cut by a cgroup v2 quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_CPU_MAX.read_text().split()
        return max(1, min(affinity, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        return affinity


def _library() -> Any:
    # libgomp reads this when the library is loaded. By default llama.cpp's threads spin
    # long at every barrier, which other work on the same cores turns into lost time
    # slices: 13 tokens/s instead of 22 with one busy neighbour, 2 instead of 14 with
    # two. On idle cores a short spin is as fast, and none at all is 10 % slower.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        import xllamacpp
    except ImportError as error:
        raise ServiceError(
            Reason.BACKEND_UNAVAILABLE,
            "The llamacpp backend needs xllamacpp: pip install 'headrace-server[embedded]'.",
            detail=str(error),
        ) from error
    return xllamacpp


def _params(library: Any, options: LlamaCppOptions, model_path: Path, key: str) -> Any:
    params = library.CommonParams()
    params.model.path = str(model_path)
    params.model_alias = {_MODEL_ALIAS}
    params.n_ctx = options.context_tokens * options.slots
    params.n_parallel = options.slots
    # A window of its own for each slot: in a shared one a long neighbour could end a run in its middle.
    params.kv_unified = False
    params.n_gpu_layers = options.gpu_layers
    batch = options.batch_tokens or (_GPU_BATCH_TOKENS if options.gpu_layers else _CPU_BATCH_TOKENS)
    params.n_batch = max(batch, options.slots)
    params.n_ubatch = params.n_batch
    params.cpuparams.n_threads = options.threads or usable_cpus()
    params.cache_ram_mib = options.prompt_cache_mib
    params.verbosity = options.log_verbosity
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    # One for each slot that may be tokenizing its prompt, the rest for the backend's other threads.
    params.n_threads_http = options.slots + 6
    params.ui = False
    params.endpoint_slots = True
    return params
