"""The settings of telemetry that service and gateway share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from runtime.settings import Settings
from runtime.slo import Objectives

__all__ = ["InboundTrace", "TelemetrySettings"]

InboundTrace = Literal["never", "link", "parent"]


class TelemetrySettings(Settings):
    """Where metrics are read, what a slow request is, and whose trace is continued."""

    metrics_host: str = Field(
        default="127.0.0.1", description="Address of the metrics port. It shows no texts, keys or tenants."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port on which Prometheus reads the metrics, at /metrics; 0 takes a free one and logs it; unset: "
        "none.",
    )
    slo_ttft_s: float = Field(
        default=0.5, ge=0, description="Objective: time to first token of interactive requests, seconds; 0: none."
    )
    slo_tpot_s: float = Field(
        default=0.1, ge=0, description="Objective: time per output token after the first, seconds; 0: none."
    )
    slo_e2e_s: float = Field(default=0, ge=0, description="Objective: whole answer, seconds; 0: none.")
    stall_s: float = Field(
        default=2.0,
        ge=0,
        description="A silence between two tokens above it makes a trace worth to be kept, seconds; 0: none does.",
    )
    keep_notable_traces: bool = Field(
        default=True,
        description="Export the spans of slow, stalled and failed requests also where OTEL_TRACES_SAMPLER drops them.",
    )
    trust_inbound_trace: InboundTrace = Field(
        default="parent",
        description="What a caller's traceparent is to our span: its parent, a link, or nothing. Use link where "
        "strangers can call: their sampled flag would else decide what is recorded.",
    )

    @property
    def objectives(self) -> Objectives:
        """The objectives as values."""
        return Objectives(
            ttft_s=self.slo_ttft_s or None,
            tpot_s=self.slo_tpot_s or None,
            e2e_s=self.slo_e2e_s or None,
            stall_s=self.stall_s or None,
        )
