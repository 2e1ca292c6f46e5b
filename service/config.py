"""The service's settings: one field is one HEADRACE_* variable and one flag."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from runtime.logs import LogFormat
from runtime.settings import Settings
from service.backends.triton.options import ContractName
from service.catalog.file import ReasoningParserName, ToolParserName

__all__ = ["ServiceSettings"]

BackendName = Literal["llamacpp", "triton", "simulator"]


class ServiceSettings(Settings):
    """Settings of `python -m service`. Durations end in `_s` and are seconds, sizes in `_bytes`."""

    host: str = Field("127.0.0.1", description="Address to listen on. Loopback unless told otherwise.")
    grpc_port: int = Field(50051, ge=0, le=65535, description="gRPC port; 0 takes any free one.")

    models_file: Path | None = Field(
        None, description="TOML file that declares the models. Without one, a single model is served by --backend."
    )
    backend: BackendName = Field("llamacpp", description="Engine of the single model, where there is no models file.")
    model_path: Path | None = Field(
        None, description="GGUF file for llamacpp. Without one, the Gemma 3 270M sample model is used."
    )
    template: str = Field(
        "auto",
        description="Chat template of the single model: auto (the model file's own, else qa), model, chatml, llama3, "
        "gemma, qa, none, or the path of a file. Triton does not tell the format of the model behind it.",
    )
    tool_parser: ToolParserName = Field(
        "auto",
        description="How the single model writes tool calls: auto (as its chat template shows), none, hermes, "
        "llama3_json, mistral or json.",
    )
    reasoning_parser: ReasoningParserName = Field(
        "auto",
        description="How the single model marks its reasoning: auto (as its chat template shows), none or think.",
    )
    context_tokens: int = Field(8192, ge=64, description="llamacpp: context window of one request, in tokens.")
    slots: int = Field(4, ge=1, le=256, description="llamacpp: requests that decode at once.")
    threads: int | None = Field(None, ge=1, description="llamacpp: CPU threads; unset takes one per core.")
    gpu_layers: int = Field(0, ge=0, description="llamacpp: layers to put on a GPU, where the build has one.")
    grammars: bool = Field(
        default=False,
        description="llamacpp: take GBNF grammars. A few characters of one can hold up the engine for everybody: offer "
        "it to callers you know.",
    )
    tokenizer: Path | None = Field(
        None,
        description="Hugging Face tokenizer.json of the single model: needed by Triton's token-level contract (raw), "
        "and where an engine reports no counts.",
    )
    triton_url: str = Field(
        "127.0.0.1:8001",
        description="triton: host:port of its gRPC endpoint; several with commas between, or dns:///name:port.",
    )
    triton_contract: ContractName = Field(
        "auto", description="triton: tensor contract of the model; auto recognises it by its tensors."
    )
    triton_model: str = Field("ensemble", description="triton: name of the model to call.")
    triton_engine_model: str = Field(
        "",
        description="triton: name of the model inside the ensemble that generates and takes the stop request; "
        "unset: found in the ensemble's configuration.",
    )
    triton_max_context_tokens: int | None = Field(
        None, ge=16, description="triton: prompt plus output that the engine was built for; unset: only it can tell."
    )
    triton_max_running: int = Field(16, ge=1, description="triton: requests that run at once.")
    simulator_queue_ms: float = Field(0, ge=0, description="simulator: wait in the engine's queue, in milliseconds.")
    simulator_prefill_ms: float = Field(
        0, ge=0, description="simulator: from there to the first token, in milliseconds."
    )
    simulator_token_ms: float = Field(20, ge=0, description="simulator: gap between tokens, in milliseconds.")
    simulator_max_running: int = Field(4096, ge=1, description="simulator: requests that run at once.")
    max_waiting: int = Field(256, ge=0, description="Requests that may wait for a slot of the single model.")

    tls_cert_file: Path | None = Field(
        None, description="PEM certificate chain; turns TLS on together with --tls-key-file."
    )
    tls_key_file: Path | None = Field(None, description="PEM private key of --tls-cert-file.")
    tls_client_ca_file: Path | None = Field(
        None, description="PEM authorities for client certificates; turns mutual TLS on."
    )
    max_message_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        le=2**31 - 1,
        description="Largest request and response message. gRPC's own default is 4 MiB.",
    )

    default_deadline_s: float = Field(600, gt=0, description="Deadline of a call that sets none.")
    max_deadline_s: float = Field(3600, gt=0, description="Longest deadline of any call.")
    deadline_floor_s: float = Field(
        0.01, ge=0, description="A call with less time left is refused before it takes a slot."
    )
    first_token_timeout_s: float = Field(120, gt=0, description="Longest silence of the engine before the first token.")
    token_gap_timeout_s: float = Field(60, gt=0, description="Longest silence of the engine between tokens.")
    reader_timeout_s: float = Field(30, gt=0, description="Longest wait for a reader to take one event.")
    health_interval_s: float = Field(5, gt=0, description="How often the engines are asked whether they work.")
    shutdown_grace_s: float = Field(30, ge=0, description="After SIGTERM, time that running generations get.")

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: LogFormat = Field("auto", description="json, text, or auto: text on a terminal.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problems = []
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            problems.append("--tls-cert-file and --tls-key-file go together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            problems.append("--tls-client-ca-file needs --tls-cert-file and --tls-key-file")
        problems += [
            f"--{name.replace('_', '-')}: no such file: {path}"
            for name in (
                "models_file",
                "model_path",
                "tokenizer",
                "tls_cert_file",
                "tls_key_file",
                "tls_client_ca_file",
            )
            if (path := getattr(self, name)) is not None and not path.is_file()
        ]
        if self.deadline_floor_s > self.max_deadline_s:
            problems.append("--deadline-floor-s must not exceed --max-deadline-s")
        if problems:
            raise ValueError("; ".join(problems))
        return self
