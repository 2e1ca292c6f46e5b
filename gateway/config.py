"""The settings of the gateway process: the only place where their names, defaults and reasons stand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from runtime.logs import LogFormat
from runtime.telemetry_settings import TelemetrySettings

__all__ = ["GatewaySettings"]

Seconds = Annotated[float, Field(gt=0, le=86_400)]
LogLevel = Literal["debug", "info", "warning", "error"]
Transport = Literal["grpcio", "asyncio"]


def _comma_separated(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class GatewaySettings(TelemetrySettings):
    """Settings of the gateway: `port` is the variable HEADRACE_GATEWAY_PORT and the flag --port."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_GATEWAY_")

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. The gateway checks no keys itself: on an address that others can reach it "
        "asks the service without any, and ends if that answers, unless --allow-insecure. Put TLS in front of it.",
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(
        default=8080, description="Port to listen on; 0 takes a free one and logs it."
    )
    allow_insecure: bool = Field(
        default=False,
        description="Listen on an address that others can reach although the service takes calls from everybody.",
    )
    target: str = Field(
        default="127.0.0.1:50051", description="gRPC target of the service, for example dns:///host:port."
    )
    tls: bool = Field(default=False, description="Whether the service is spoken to over TLS; set by any tls_ file too.")
    tls_ca_file: Path | None = Field(default=None, description="PEM roots for the service; the system's if unset.")
    tls_cert_file: Path | None = Field(default=None, description="PEM client certificate; needs tls_key_file.")
    tls_key_file: Path | None = Field(default=None, description="PEM key of the client certificate.")
    tls_server_name: str | None = Field(default=None, description="Name to verify, if it is not the one in target.")
    transport: Transport = Field(
        default="asyncio",
        description="What reads generations from the service: asyncio is the client's own HTTP/2 on the event loop, "
        "for about a third of the CPU per token; grpcio is gRPC's. Targets that only gRPC knows (xds, HTTP proxies) "
        "use grpcio anyway.",
    )

    cors_origins: Annotated[list[str], NoDecode, BeforeValidator(_comma_separated)] = Field(
        default=[],
        description="Origins whose pages may call the gateway, comma separated; * is any. None by default: a browser "
        "then refuses every other page.",
    )
    docs: bool = Field(default=True, description="Serve /docs and /openapi.json.")
    page: bool = Field(default=True, description="Serve the page at /.")

    body_limit_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=16 * 1024 * 1024,
        description="Largest request body, bytes; above it 413. 16 MiB holds any context window in use as text.",
    )
    head_timeout_s: Seconds = Field(
        default=15.0,
        description="Longest time for the head of a request to arrive from its first byte on, seconds; then 408.",
    )
    body_timeout_s: Seconds = Field(
        default=30.0, description="Longest time for a request body to arrive, seconds; then 408."
    )
    default_timeout_s: Seconds = Field(
        default=600.0,
        description="Deadline of a generation when the caller names none, seconds; the official SDKs' own patience.",
    )
    max_timeout_s: Seconds = Field(
        default=3600.0, description="Longest deadline a caller may ask for, seconds; longer ones are cut to it."
    )
    deadline_margin_ms: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=25,
        description="What a call's deadline is shorter than the request's, milliseconds, at most a twentieth: the time "
        "to tell the caller before its own clock is over.",
    )
    unary_timeout_s: Seconds = Field(
        default=10.0, description="Deadline of model list and lookup, and of tokenization, seconds."
    )
    ready_timeout_s: Seconds = Field(
        default=0.8, description="Longest wait for the service's health, seconds; /readyz answers within a second."
    )

    status_hold_s: Seconds = Field(
        default=15.0,
        description="How long a stream's HTTP status waits for the engine's first answer, seconds. Until then a "
        "failure has a status of its own; afterwards 200 and heartbeats keep proxies patient. Below the smallest idle "
        "timeout in front of the gateway (60 s at most proxies).",
    )
    heartbeat_s: Seconds = Field(
        default=15.0, description="Longest silence on an open stream, seconds; then a comment line is sent."
    )
    send_timeout_s: Seconds = Field(
        default=30.0,
        description="How long a client may take nothing from a full connection, seconds; then it is dropped and "
        "its generation stopped.",
    )
    keep_alive_s: Annotated[int, Field(ge=1)] = Field(
        default=75,
        description="How long an idle client connection stays open, seconds; longer than the 60 s after which "
        "proxies drop theirs, so that no request meets a closing connection.",
    )

    drain_delay_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=0.0,
        description="After SIGTERM: seconds to go on accepting while /readyz says no, so that balancers look away "
        "first. Set it to two probe intervals behind a balancer.",
    )
    drain_grace_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=30.0,
        description="After SIGTERM: seconds that running requests get to finish; then they end with an error.",
    )

    log_level: LogLevel = Field(default="info", description="Least level that is logged.")
    log_format: LogFormat = Field(default="auto", description="json, text, or auto: text on a terminal.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            problems.append("--tls-cert-file and --tls-key-file go together")
        if "default_timeout_s" in self.model_fields_set and self.default_timeout_s > self.max_timeout_s:
            problems.append(f"--default-timeout-s must not exceed --max-timeout-s ({self.max_timeout_s:g})")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def uses_tls(self) -> bool:
        """Whether the channel to the service is encrypted."""
        return self.tls or any((self.tls_ca_file, self.tls_cert_file, self.tls_server_name))
