"""What a scripted service can be told to do: events, failures, and models. Its own words for `fake_service`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from headrace.v1 import generation_pb2 as gen
from headrace.v1 import model_pb2, usage_pb2

__all__ = ["HANG", "Fail", "Step", "completed", "delta", "finished", "model", "queued", "started"]

HANG: Final = object()  # wait for a cancel


@dataclass(frozen=True, kw_only=True)
class Fail:
    """End the call with `code`, and the details of a Headrace error if `reason` is given."""

    code: grpc.StatusCode
    message: str = "refused by the script"
    reason: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Sequence[tuple[str, str]] = ()
    retry_after_s: float | None = None
    request_id: str | None = None
    raw_details: bytes | None = None  # sent as they are, to test broken trailers

    def status(self) -> status_pb2.Status:
        """Return the google.rpc.Status that goes into the trailers."""
        details: list[Any] = []
        if self.reason:
            info = {"reason": self.reason, "domain": "headrace.v1", "metadata": self.metadata}
            details.append(error_details_pb2.ErrorInfo(**info))
        if self.violations:
            fields = [{"field": f, "description": d} for f, d in self.violations]
            details.append(error_details_pb2.BadRequest(field_violations=fields))
        if self.retry_after_s is not None:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(round(self.retry_after_s * 1e9))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        if self.request_id:
            details.append(error_details_pb2.RequestInfo(request_id=self.request_id))
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in details:
            status.details.add().Pack(detail)
        return status


Step = gen.GenerateResponse | Fail | asyncio.Event | object


def queued(ahead: int = 0, estimated_wait_s: float | None = None, **fields: Any) -> gen.GenerateResponse:
    """Return a place in the line; keywords override its fields."""
    event = gen.GenerationQueued(**({"generation_id": "gen-1", "ahead_count": ahead} | fields))
    if estimated_wait_s is not None:
        event.estimated_wait.FromNanoseconds(round(estimated_wait_s * 1e9))
    return gen.GenerateResponse(queued=event)


def started(**fields: Any) -> gen.GenerateResponse:
    """Return the first event; keywords override its fields."""
    values = {"generation_id": "gen-1", "model": "fake", "fingerprint": "fp", "prompt_token_count": 3, "seed": 7}
    return gen.GenerateResponse(started=gen.GenerationStarted(**(values | fields)))


def delta(text: str, index: int = 0, **fields: Any) -> gen.GenerateResponse:
    """Return a piece of text of choice `index`."""
    return gen.GenerateResponse(delta=gen.ChoiceDelta(index=index, text=text, **fields))


def finished(reason: str = "STOP", index: int = 0, **fields: Any) -> gen.GenerateResponse:
    """Return the end of choice `index`; `reason` is a FinishReason without its prefix."""
    value = gen.FinishReason.Value(f"FINISH_REASON_{reason}")
    return gen.GenerateResponse(choice_finished=gen.ChoiceFinished(index=index, reason=value, **fields))


def completed(prompt_tokens: int | None = 3, output_tokens: int | None = 2) -> gen.GenerateResponse:
    """Return the last event: usage, and timing of 10 ms queue, 40 ms prefill, 50 ms decode."""
    usage = usage_pb2.Usage(prompt_token_count=prompt_tokens, output_token_count=output_tokens)
    timing = usage_pb2.Timing(output_tokens_per_second=20.0)
    timing.queue_duration.FromMilliseconds(10)
    timing.prefill_duration.FromMilliseconds(40)
    timing.time_to_first_token.FromMilliseconds(50)
    timing.decode_duration.FromMilliseconds(50)
    timing.total_duration.FromMilliseconds(100)
    return gen.GenerateResponse(completed=gen.GenerationCompleted(usage=usage, timing=timing))


def model(model_id: str = "fake", **fields: Any) -> model_pb2.Model:
    """Return a ready model; keywords override its fields."""
    values: dict[str, Any] = {
        "owned_by": "tests",
        "state": model_pb2.MODEL_STATE_READY,
        "max_context_tokens": 4096,
        "max_output_tokens": 1024,
        "capabilities": [model_pb2.MODEL_CAPABILITY_PROMPT, model_pb2.MODEL_CAPABILITY_CHAT],
    }
    return model_pb2.Model(id=model_id, **(values | fields))
