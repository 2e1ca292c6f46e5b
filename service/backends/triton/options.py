"""How one Triton model is reached, asked and watched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from service.backends.triton.targets import parse_targets

__all__ = ["ContractName", "TritonOptions"]

# Beyond them a number is a mistake, and does not fit where it is used: gRPC takes milliseconds in 31 bits.
_MOST_S: Final = 2_000_000
_MOST: Final = 2**31 - 1

ContractName = Literal["auto", "ensemble", "bls", "raw", "llmapi", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonOptions:
    """Settings of one model on one Triton, or on several that serve the same.

    url: host:port of Triton's gRPC endpoint, several of them with commas between,
        or dns:///name:port for all addresses of a name, which is asked again.
    model: name of the model to call.
    contract: what tensors it has; auto reads that from its configuration.
    text: whether a response carries new text or everything so far; auto is the
        contract's own rule (for bls the model's `accumulate_tokens`; for llmapi
        everything so far, unless its responses show otherwise).
    engine_model: name of the model inside it that generates and takes the `stop`
        request. Empty: found in the model's configuration.
    tokenizer_model: name of the model inside it that turns text into token ids; it
        is asked for the length of a prompt that may be too long. Empty: found.
    lora_task_id (ensemble, bls, raw; llmapi), lora_name (vllm; llmapi), lora_path
        (llmapi): the adapter that this model is served with; llmapi takes all three.
    end_ids: token ids that end a generation, the one of a text first (raw). Empty:
        the ends that the tokenizer is known to have.
    max_context_tokens: window of prompt and output; None where it is not known.
    bos_text: text of the begin-of-sequence token. The `preprocessing` model adds
        that token to every prompt, so a prompt whose template wrote it already is
        sent without it.
    transport: asyncio reads streams on the event loop's own sockets; grpcio
        through gRPC's threads, for what the other one does not understand.
    root_certificates: PEM file of the authorities to trust; set, the connection
        is TLS. client_key and client_certificate: PEM files for mutual TLS.
        server_name: name in the server's certificate, where it is not the host's.
    metadata_timeout_s: time for reading the server's and the model's description,
        and for counting a prompt's tokens.
    metadata_max_age_s: a description older than this is read again, so that a
        reloaded model is noticed.
    stop_timeout_s: time for one stop request, which runs after the caller has gone.
    first_token_timeout_s, token_gap_timeout_s: silence before the first and
        between two responses after which Triton counts as hung; None is off.
    canary_interval_s: a token this young proves the engine alive; without one a
        health check runs a generation of one token.
    keepalive_time_s, keepalive_timeout_s: a ping on a connection with running
        calls, and the wait for its answer. Triton ends connections that ping more
        often than every 300 s while it is silent.
    max_send_bytes, max_receive_bytes: limits of one message.
    """

    url: str = "127.0.0.1:8001"
    model: str = "ensemble"
    contract: ContractName = "auto"
    text: Literal["auto", "delta", "cumulative"] = "auto"
    engine_model: str = ""
    tokenizer_model: str = ""
    lora_task_id: int | None = None
    lora_name: str = ""
    lora_path: str = ""
    end_ids: tuple[int, ...] = ()
    max_context_tokens: int | None = None
    bos_text: str = ""
    transport: Literal["asyncio", "grpcio"] = "asyncio"
    root_certificates: Path | None = None
    client_key: Path | None = None
    client_certificate: Path | None = None
    server_name: str = ""
    metadata_timeout_s: float = 5.0
    metadata_max_age_s: float = 30.0
    stop_timeout_s: float = 2.0
    first_token_timeout_s: float | None = None
    token_gap_timeout_s: float | None = None
    canary_interval_s: float = 10.0
    keepalive_time_s: float = 310.0
    keepalive_timeout_s: float = 20.0
    max_send_bytes: int = 64 * 1024 * 1024
    max_receive_bytes: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        problems = [f"{name} must not be empty" for name in ("url", "model") if not getattr(self, name)]
        for name in (
            "max_context_tokens",
            "metadata_timeout_s",
            "metadata_max_age_s",
            "stop_timeout_s",
            "first_token_timeout_s",
            "token_gap_timeout_s",
            "keepalive_time_s",
            "keepalive_timeout_s",
            "max_send_bytes",
            "max_receive_bytes",
        ):
            value = getattr(self, name)
            most = _MOST_S if name.endswith("_s") else _MOST
            if value is not None and not 0 < value <= most:
                problems.append(f"{name} must be above 0 and at most {most}, got {value}")
        if not 0 <= self.canary_interval_s <= _MOST_S:
            problems.append(f"canary_interval_s must be from 0 to {_MOST_S}, got {self.canary_interval_s}")
        if self.lora_task_id is not None and not 0 <= self.lora_task_id < 2**64:
            problems.append(f"lora_task_id must be an unsigned 64-bit number, got {self.lora_task_id}")
        problems += [f"end_ids must be at least 0, got {one}" for one in self.end_ids if not 0 <= one < 2**31]
        if (self.client_key is None) != (self.client_certificate is None):
            problems.append("client_key and client_certificate go together")
        if self.client_key is not None and self.root_certificates is None:
            problems.append("client_key needs root_certificates")
        try:
            if self.url:
                parse_targets(self.url)
        except ValueError as error:
            problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
