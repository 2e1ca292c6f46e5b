"""What a service remembers of generations that have ended, against what their clients saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc

from headrace.v1 import error_reason_pb2, generation_pb2_grpc
from headrace.v1 import generation_pb2 as gen
from tests.support.chaos_plan import Plan
from tests.support.chaos_verdict import End, Seen

__all__ = ["fate_problem", "fate_problems"]

# It remembers a thousand; the last of them are enough.
_MOST: Final = 300
_ENDED: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


async def fate_problems(target: str, asked: Mapping[str, tuple[Plan, Seen]], since_s: float) -> dict[str, list[str]]:
    """Ask for the last generations that began after `since_s`; return what is wrong, by request id."""
    found: dict[str, list[str]] = {}
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        known = [(plan, seen) for plan, seen in asked.values() if seen.generation_id and seen.began_s > since_s]
        for plan, seen in sorted(known, key=lambda one: one[1].ended_s)[-_MOST:]:
            request = gen.GetGenerationRequest(generation_id=seen.generation_id)
            try:
                answer = await stub.GetGeneration(
                    request, timeout=5, metadata=(("authorization", f"Bearer {plan.tenant}"),)
                )
            except grpc.aio.AioRpcError as error:
                found[plan.request_id] = [f"GetGeneration: {error.code().name} {error.details()}"]
                continue
            if (problem := fate_problem(plan, seen, answer)) is not None:
                found[plan.request_id] = [f"GetGeneration: {problem}"]
    return found


def fate_problem(plan: Plan, seen: Seen, answer: gen.GetGenerationResponse) -> str | None:
    """Return what does not go together; None if all does."""
    state = gen.GenerationState.Name(answer.state).removeprefix("GENERATION_STATE_")
    if state not in _ENDED:
        return f"it is {state}, and has ended"
    if answer.model != plan.model or answer.priority != (
        gen.PRIORITY_BATCH if plan.is_batch else gen.PRIORITY_INTERACTIVE
    ):
        return f"model {answer.model}, priority {gen.Priority.Name(answer.priority)}"
    if seen.end is End.OK:
        expected = "CANCELLED" if "CANCELLED" in seen.finishes else "COMPLETED"
        tokens = answer.usage.output_token_count if answer.usage.HasField("output_token_count") else None
        if (state, tokens) != (expected, seen.output_tokens):
            return f"{state} with {tokens} tokens in place of {expected} with {seen.output_tokens}"
        if not plan.way.is_http and answer.last_sequence != seen.events:
            return f"last sequence {answer.last_sequence} in place of {seen.events}"
    elif seen.reason is not None:
        told = error_reason_pb2.ErrorReason.Name(answer.failure_reason).removeprefix("ERROR_REASON_")
        if (state, told) != ("FAILED", seen.reason):
            return f"{state} because of {told} in place of FAILED because of {seen.reason}"
    return None
