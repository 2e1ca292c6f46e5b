"""A plan as it is sent: the contract's message, or a JSON body and headers. Pure."""

from __future__ import annotations

from typing import Any

from headrace.v1 import generation_pb2 as gen
from tests.support.chaos_plan import Plan, Way

__all__ = ["grpc_metadata", "grpc_request", "http_body", "http_headers", "http_path"]


def grpc_request(plan: Plan) -> gen.GenerateRequest:
    """Return the message of a request over gRPC."""
    request = gen.GenerateRequest(
        model=plan.model,
        prompt=plan.script.prompt(),
        priority=gen.PRIORITY_BATCH if plan.is_batch else gen.PRIORITY_INTERACTIVE,
        output=gen.OutputOptions(
            token_ids=plan.wants_details, logprobs=plan.wants_details, queue_events=plan.queue_events
        ),
    )
    request.sampling.max_output_tokens = plan.script.limit
    if plan.script.stop is not None:
        request.stop.sequences.append(plan.script.stop)
    if plan.choices > 1:
        request.choice_count = plan.choices
    if plan.time_limit_s is not None:
        request.time_limit.FromNanoseconds(round(plan.time_limit_s * 1e9))
    return request


def grpc_metadata(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return what goes with a call."""
    return (("x-request-id", plan.request_id), ("authorization", f"Bearer {plan.tenant}"))


def http_path(plan: Plan) -> str:
    """Return where a request over HTTP goes."""
    return "/v1/chat/completions" if plan.is_chat else "/v1/completions"


def http_body(plan: Plan) -> dict[str, Any]:
    """Return the body of a request over HTTP."""
    prompt = plan.script.prompt()
    body: dict[str, Any] = {"model": plan.model, "max_tokens": plan.script.limit, "n": plan.choices}
    body |= {"messages": [{"role": "user", "content": prompt}]} if plan.is_chat else {"prompt": prompt}
    if plan.is_batch:
        body["service_tier"] = "flex"
    if plan.script.stop is not None:
        body["stop"] = plan.script.stop
    if plan.wants_details:
        body["logprobs"] = True
    if plan.way is Way.STREAM:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def http_headers(plan: Plan) -> dict[str, str]:
    """Return the header fields besides those of the body."""
    fields = {
        "x-request-id": plan.request_id,
        "authorization": f"Bearer {plan.tenant}",
        "request-timeout-ms": _ms(plan.deadline_s),
    }
    return fields if plan.time_limit_s is None else fields | {"time-limit-ms": _ms(plan.time_limit_s)}


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
