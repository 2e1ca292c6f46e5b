"""The service's settings: one field is one HEADRACE_* variable and one flag."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_serializer, model_validator

from runtime.addresses import is_loopback
from runtime.logs import LogFormat
from runtime.telemetry_settings import TelemetrySettings
from service.admission.limits import DEFAULT_BATCH_TURN, DEFAULT_WAITING, reserved_problem
from service.backends.triton.options import ContractName
from service.catalog.file import ReasoningParserName, ToolParserName
from service.ledger.address import parse_address, shown_address
from service.tenancy.fetching import url_problem

__all__ = ["ServiceSettings"]

_EVERY_ADDRESS = frozenset({"0.0.0.0", "[::]", "::"})  # noqa: S104 - recognised here, not bound
_JWT_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
BackendName = Literal["llamacpp", "triton", "simulator"]


class ServiceSettings(TelemetrySettings):
    """Settings of `python -m service`. Durations end in `_s` and are seconds, sizes in `_bytes`."""

    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. One that others can reach needs --keys-file, --jwt-issuer or "
        "--tls-client-ca-file, or --allow-insecure.",
    )
    grpc_port: int = Field(50051, ge=0, le=65535, description="gRPC port; 0 takes any free one.")
    admin_host: str = Field(
        "127.0.0.1",
        description="Address of the port for operators. Whoever reaches it can take the server out of service: one "
        "that others can reach needs --tls-client-ca-file, or --allow-insecure.",
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
    keys_file: Path | None = Field(
        None,
        description="TOML file of API keys and of the subjects of client certificates, written by `headrace keys` and "
        "read again when it changes. With it, or with --jwt-issuer, every call has to show whose it is.",
    )
    jwt_issuer: str | None = Field(
        None, description="Issuer of JSON Web Tokens, as their claim iss has it; tokens are taken then."
    )
    jwt_audience: str | None = Field(
        None, description="What tokens must have in their claim aud. Needed with --jwt-issuer: others are not for here."
    )
    jwt_jwks: str | None = Field(
        None,
        description="URL (https, or http on this machine) or path of the issuer's key set; unset: as the issuer's "
        "OpenID discovery document says.",
    )
    jwt_algorithms: str = Field(
        "RS256,ES256",
        description="Signature algorithms that are taken, with commas between: RS256, RS384, RS512, PS256, PS384, "
        "PS512, ES256, ES384, ES512, EdDSA.",
    )
    jwt_tenant_claim: str = Field("tenant", min_length=1, description="Claim that names the tenant.")
    jwt_models_claim: str | None = Field(
        None,
        description="Claim that lists the models that a token may use; a token without it is refused. Unset: all.",
    )
    jwt_leeway_s: float = Field(30, ge=0, le=300, description="How far the issuer's clock may be from this one's.")
    jwt_refresh_s: float = Field(300, ge=1, le=86_400, description="How often the issuer's key set is read again.")
    limits_file: Path | None = Field(
        None,
        description="TOML file of what tenants may use (requests, tokens, streams, quotas), read again when it "
        "changes. Without one nothing is limited.",
    )
    store: SecretStr = Field(
        SecretStr(""),
        description="Redis or Valkey that replicas share: redis://, rediss:// or unix://. Any of them then knows, "
        "shows and stops every generation, and an idempotency key runs once among all. Unset: each process is alone.",
    )
    store_prefix: str = Field(
        "headrace", min_length=1, description="What every key in --store begins with: one for each installation."
    )
    limits_store: SecretStr = Field(
        SecretStr(""),
        description="Redis in which replicas count together, if it is not that of --store: redis://, rediss:// or "
        "unix://. With neither, each process counts for itself.",
    )
    allow_insecure: bool = Field(
        default=False,
        description="Listen on an address that others can reach although nobody checks who calls.",
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
    retention_s: float = Field(
        300,
        ge=0,
        le=86_400,
        description="How long the events of a retained generation (one with an idempotency key, or that asks for it) "
        "are kept behind its end, unless it asks for less; 0 keeps them until its end.",
    )
    reattach_s: float = Field(
        15,
        gt=0,
        description="How long a retained generation runs on without a reader, unless it asked to run to its end.",
    )
    retained_events: int = Field(
        65_536, ge=16, description="Events of one retained generation that are kept; above it the oldest ones go."
    )
    retained_bytes: int = Field(4 * 1024 * 1024, ge=4096, description="Bytes of one retained generation, likewise.")
    retained_total_bytes: int = Field(
        256 * 1024 * 1024,
        ge=4096,
        description="Bytes of all retained generations that have ended; above it the oldest generations go.",
    )
    ledger: str | None = Field(
        None,
        description="Usage ledger: a file of JSON Lines (usage.jsonl, file:PATH; one for each process), SQLite "
        "(usage.db, sqlite:///PATH) or PostgreSQL (postgresql://USER@HOST/NAME); unset: none is kept. A password in it "
        "is masked wherever it is shown.",
    )
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
                "keys_file",
                "limits_file",
            )
            if (path := getattr(self, name)) is not None and not path.is_file()
        ]
        problems += [*self._jwt_problems(), *self._exposed(), *self._ledger_problems(), *self._limits_problems()]
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

    @property
    def checks_callers(self) -> bool:
        """Whether every call has to show whose it is."""
        return self.keys_file is not None or self.jwt_issuer is not None

    @property
    def jwt_algorithm_names(self) -> frozenset[str]:
        """The algorithms by themselves."""
        return frozenset(name.strip() for name in self.jwt_algorithms.split(",") if name.strip())

    def _limits_problems(self) -> list[str]:
        schemes = ("redis://", "rediss://", "unix://")
        problems = [
            f"--{name} must begin with {', '.join(schemes[:-1])} or {schemes[-1]}"
            for name, url in (("store", self.store), ("limits-store", self.limits_store))
            if url.get_secret_value() and not url.get_secret_value().startswith(schemes)
        ]
        if self.limits_store.get_secret_value() and self.limits_file is None:
            problems.append("--limits-store needs --limits-file")
        return problems

    def _jwt_problems(self) -> list[str]:
        names = self.jwt_algorithm_names
        problems = []
        if unknown := sorted(names - _JWT_ALGORITHMS):
            problems.append(f"--jwt-algorithms: not taken here: {', '.join(unknown)}")
        if not names:
            problems.append("--jwt-algorithms must name one at least")
        if self.jwt_issuer is None:
            problems += [
                f"--{name.replace('_', '-')} needs --jwt-issuer"
                for name in ("jwt_audience", "jwt_jwks", "jwt_models_claim")
                if getattr(self, name) is not None
            ]
            return problems
        if self.jwt_audience is None:
            problems.append("--jwt-audience is needed with --jwt-issuer: without one tokens for others would be taken")
        name, place = ("issuer", self.jwt_issuer) if self.jwt_jwks is None else ("jwks", self.jwt_jwks)
        if name == "issuer" or "://" in place:
            if problem := url_problem(place):
                problems.append(f"--jwt-{name} {problem}")
        elif not Path(place).is_file():
            problems.append(f"--jwt-jwks: no such file: {place}")
        return problems

    def _ledger_problems(self) -> list[str]:
        try:
            if self.ledger is not None:
                parse_address(self.ledger)
        except ValueError as error:
            return [f"--ledger: {error}"]
        return []

    @field_serializer("ledger")
    def _without_password(self, value: str | None) -> str | None:
        return None if value is None else shown_address(value)

    def _exposed(self) -> list[str]:
        """Return a problem for each listener that others can reach and nobody watches."""
        if self.allow_insecure or self.tls_client_ca_file is not None:
            return []
        problems = []
        if not is_loopback(self.host) and not self.checks_callers:
            problems.append(
                f"--host {self.host}: others can reach this address, and nobody checks who calls. Set "
                "HEADRACE_KEYS_FILE, HEADRACE_JWT_ISSUER or HEADRACE_TLS_CLIENT_CA_FILE, or listen on 127.0.0.1, or "
                "take the risk with HEADRACE_ALLOW_INSECURE=true"
            )
        if self.admin_port is not None and not is_loopback(self.admin_host):
            problems.append(
                f"--admin-host {self.admin_host}: whoever reaches this address can take the server out of service. "
                "Set HEADRACE_TLS_CLIENT_CA_FILE, or listen on 127.0.0.1, or take the risk with "
                "HEADRACE_ALLOW_INSECURE=true"
            )
        return problems

    def _is_one_port_twice(self) -> bool:
        if not self.admin_port or self.admin_port != self.grpc_port:
            return False
        hosts = {self.host, self.admin_host}
        return len(hosts) == 1 or bool(hosts & _EVERY_ADDRESS)
