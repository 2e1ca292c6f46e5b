"""The service's settings: one field is one HEADRACE_* variable and one flag."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from runtime.logs import LogFormat
from runtime.settings import Settings
from service.admission.limits import DEFAULT_BATCH_TURN, DEFAULT_WAITING, reserved_problem
from service.backends.triton.options import ContractName
from service.catalog.file import ReasoningParserName, ToolParserName

__all__ = ["ServiceSettings"]

_EVERY_ADDRESS = frozenset({"0.0.0.0", "[::]", "::"})  # noqa: S104 - recognised here, not bound
BackendName = Literal["llamacpp", "triton", "simulator"]


class ServiceSettings(Settings):
    """Settings of `python -m service`. Durations end in `_s` and are seconds, sizes in `_bytes`."""

    host: str = Field("127.0.0.1", description="Address to listen on. Loopback unless told otherwise.")
    grpc_port: int = Field(50051, ge=0, le=65535, description="gRPC port; 0 takes any free one.")
    admin_host: str = Field(
        "127.0.0.1",
        description="Address of the port for operators. Whoever reaches it can take the server out of service.",
    )
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of AdminService (status, drain, resume), with the TLS of the gRPC port; 0 takes any free "
        "one; unset: none.",
    )

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
    simulator_queue_ms: float = Field(0, ge=0, description="simulator: wait in the engine's queue, in milliseconds.")
    simulator_prefill_ms: float = Field(
        0, ge=0, description="simulator: from there to the first token, in milliseconds."
    )
    simulator_token_ms: float = Field(20, ge=0, description="simulator: gap between tokens, in milliseconds.")
    simulator_max_running: int = Field(4096, ge=1, description="simulator: requests that run at once.")
    max_running: int | None = Field(
        None,
        ge=1,
        description="Slots of the single model: choices that run at once. Unset takes the engine's own number: for "
        "llamacpp --slots; for triton what the model's configuration says when the service starts, and 16 where it "
        "says nothing or cannot be read then; for the simulator --simulator-max-running.",
    )
    max_waiting: int = Field(
        DEFAULT_WAITING, ge=0, description="Interactive requests that may wait for a slot of the single model."
    )
    max_waiting_batch: int = Field(
        DEFAULT_WAITING, ge=0, description="Batch requests that may wait for a slot of the single model."
    )
    reserved_slots: int | None = Field(
        None,
        ge=0,
        description="Slots of the single model that batch leaves free for interactive requests. Unset takes an eighth "
        "of the slots, at least 1 of 4 or more, and none of fewer.",
    )
    batch_turn: int = Field(
        DEFAULT_BATCH_TURN,
        ge=2,
        description="Of so many slots that are granted while batch requests wait, one goes to them even if interactive "
        "requests wait too.",
    )
    refuse_hopeless_deadlines: bool = Field(
        default=True,
        description="Refuse a request at once whose deadline passes before there can be a token, as the present load "
        "tells.",
    )

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
    deadline_margin_s: float = Field(
        0.05,
        ge=0,
        le=60,
        description="How long before the caller's deadline work ends, so that the caller is told why; at most a "
        "twentieth of the deadline.",
    )
    queue_timeout_s: float = Field(
        60, gt=0, description="Longest wait of an interactive request for a slot; then it is refused."
    )
    batch_queue_timeout_s: float = Field(3600, gt=0, description="The same for a batch request.")
    first_token_timeout_s: float = Field(120, gt=0, description="Longest silence of the engine before the first token.")
    token_gap_timeout_s: float = Field(60, gt=0, description="Longest silence of the engine between tokens.")
    reader_timeout_s: float = Field(30, gt=0, description="Longest wait for a reader to take one event.")
    full_reader_timeout_s: float = Field(
        5, gt=0, description="The same while as many events wait for the reader as may: the engine is held up then."
    )
    unsent_events: int = Field(
        64, ge=1, description="Events of one generation that may wait for its reader; deltas that wait are joined."
    )
    unsent_bytes: int = Field(8 * 1024, ge=1024, description="Bytes of one generation that may wait for its reader.")
    health_interval_s: float = Field(5, gt=0, description="How often the engines are asked whether they work.")
    drain_delay_s: float = Field(
        0,
        ge=0,
        le=3600,
        description="After SIGTERM, time to go on serving while health already says no, so that balancers look away "
        "first; after it every connection is told to go elsewhere. Set it to two probe intervals behind a balancer. "
        "With 0 there is taken to be no elsewhere, and new work is told DRAINING.",
    )
    shutdown_grace_s: float = Field(
        30, ge=0, description="After SIGTERM and --drain-delay-s, time that running generations get."
    )

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
        own = {"llamacpp": self.slots, "simulator": self.simulator_max_running}.get(self.backend)
        running = self.max_running or own
        if self.models_file is None and self.reserved_slots is not None and running is not None:
            problem = reserved_problem(self.reserved_slots, running)
            problems += [f"--reserved-slots {problem}"] if problem else []
        if self._is_one_port_twice():
            problems.append("--admin-port must not be --grpc-port: callers must not reach it")
        if self.deadline_floor_s > self.max_deadline_s:
            problems.append("--deadline-floor-s must not exceed --max-deadline-s")
        if "default_deadline_s" in self.model_fields_set and self.default_deadline_s > self.max_deadline_s:
            problems.append("--default-deadline-s must not exceed --max-deadline-s")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _is_one_port_twice(self) -> bool:
        if not self.admin_port or self.admin_port != self.grpc_port:
            return False
        hosts = {self.host, self.admin_host}
        return len(hosts) == 1 or bool(hosts & _EVERY_ADDRESS)
