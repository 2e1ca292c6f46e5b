"""The conformance program of the Python client: scenarios from standard input, answers to standard output.

`clients/conformance.yaml` says what goes in and out. With `sync` as its argument it goes through `headrace.Client`,
else through `headrace.AsyncClient`, over the transport that is named (asyncio or grpcio).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import grpc
from google.protobuf import json_format

from headrace import AsyncClient, Client, Generation, GenerationStream, HeadraceError
from headrace.errors import ProtocolError
from headrace.v1 import generation_pb2 as pb

__all__ = ["answer_of", "main"]


async def run(scenario: dict[str, Any], transport: str) -> dict[str, Any]:
    """Carry out one scenario."""
    options: list[tuple[str, Any]] = [] if scenario.get("retries", True) else [("grpc.enable_retries", 0)]
    key = scenario.get("api_key")
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    timeout_s = scenario["timeout_ms"] / 1000 if "timeout_ms" in scenario else None
    began_s = time.perf_counter()
    answer: dict[str, Any] = {"name": scenario["name"], "status": "OK"}
    async with AsyncClient(
        scenario["target"],
        metadata=metadata,
        channel_options=options,
        transport=transport,  # type: ignore[arg-type]
    ) as client:
        try:
            match scenario.get("call", "generate"):
                case "models":
                    answer["models"] = [model.id for model in await client.list_models(timeout_s=timeout_s)]
                case "get_generation":
                    found = await client.get_generation(idempotency_key=scenario["request"]["idempotencyKey"])
                    answer["state"] = pb.GenerationState.Name(found.state).removeprefix("GENERATION_STATE_")
                case _:
                    request = json_format.ParseDict(scenario["request"], pb.GenerateRequest())
                    stream = client.generate(request, timeout_s=timeout_s)
                    await generate(client, stream, scenario.get("act", {}), answer)
        except HeadraceError as error:
            answer |= answer_of(error)
    answer["elapsed_ms"] = 1000 * (time.perf_counter() - began_s)
    return answer


def run_sync(scenario: dict[str, Any]) -> dict[str, Any]:
    """Carry out one scenario without an event loop."""
    options: list[tuple[str, Any]] = [] if scenario.get("retries", True) else [("grpc.enable_retries", 0)]
    key = scenario.get("api_key")
    timeout_s = scenario["timeout_ms"] / 1000 if "timeout_ms" in scenario else None
    began_s = time.perf_counter()
    answer: dict[str, Any] = {"name": scenario["name"], "status": "OK"}
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    with Client(scenario["target"], metadata=metadata, channel_options=options) as client:
        try:
            match scenario.get("call", "generate"):
                case "models":
                    answer["models"] = [model.id for model in client.list_models(timeout_s=timeout_s)]
                case "get_generation":
                    found = client.get_generation(idempotency_key=scenario["request"]["idempotencyKey"])
                    answer["state"] = pb.GenerationState.Name(found.state).removeprefix("GENERATION_STATE_")
                case _:
                    request = json_format.ParseDict(scenario["request"], pb.GenerateRequest())
                    act, texts = scenario.get("act", {}), {0: ""}
                    stream = client.generate(request, timeout_s=timeout_s)
                    answer |= {"deltas": 0, "queued": 0}
                    try:
                        with stream:
                            for event in stream:
                                note(event, answer, texts)
                                if answer["deltas"] == act.get("cancel_after_deltas"):
                                    stream.cancel()
                                elif event.HasField("delta") and answer["deltas"] == act.get("stop_after_deltas"):
                                    client.cancel_generation(stream.generation_id)
                    finally:
                        told(stream, answer, texts)
        except HeadraceError as error:
            answer |= answer_of(error)
    answer["elapsed_ms"] = 1000 * (time.perf_counter() - began_s)
    return answer


def note(event: pb.GenerateResponse, answer: dict[str, Any], texts: dict[int, str]) -> None:
    """Count an event, and keep its text."""
    kind = event.WhichOneof("event")
    answer["queued"] += kind == "queued"
    if kind == "delta":
        answer["deltas"] += 1
        texts[event.delta.index] = texts.get(event.delta.index, "") + event.delta.text


async def generate(client: AsyncClient, stream: GenerationStream, act: dict[str, int], answer: dict[str, Any]) -> None:
    """Read one stream to its end, and put what came into `answer`."""
    texts: dict[int, str] = {0: ""}
    answer |= {"deltas": 0, "queued": 0}
    try:
        async with stream:
            async for event in stream:
                note(event, answer, texts)
                if not event.HasField("delta"):
                    continue
                if answer["deltas"] == act.get("cancel_after_deltas"):
                    stream.cancel()
                elif answer["deltas"] == act.get("stop_after_deltas"):
                    await client.cancel_generation(stream.generation_id)
    finally:
        told(stream, answer, texts)


def told(stream: GenerationStream | Generation, answer: dict[str, Any], texts: dict[int, str]) -> None:
    """Put what is known at the end of a stream into `answer`."""
    answer |= {
        "text": texts[0],
        "texts": {str(index): text for index, text in texts.items()},
        "finish_reasons": {str(index): reason for index, reason in stream.finish_reasons.items()},
        "finish_reason": stream.finish_reasons.get(0),
        "generation_id": stream.generation_id,
        "request_id": stream.request_id,
    }
    if stream.usage is not None:
        for name in ("prompt_token_count", "output_token_count"):
            if stream.usage.HasField(name):
                answer[name.replace("_token_count", "_tokens")] = getattr(stream.usage, name)


def answer_of(error: HeadraceError) -> dict[str, Any]:
    """Return what is told of a failure."""
    is_protocol = isinstance(error, ProtocolError)
    found: dict[str, Any] = {
        "status": (grpc.StatusCode.INTERNAL if is_protocol else error.status).name,
        "reason": "PROTOCOL" if is_protocol else error.reason,
        "violations": [violation.field for violation in error.violations],
        "request_id": error.request_id,
    }
    if error.retry_after_s is not None:
        found["retry_after_ms"] = 1000 * error.retry_after_s
    return {name: value for name, value in found.items() if value}


async def main(transport: str) -> None:
    """Answer scenario after scenario until the input ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        scenario = json.loads(line)
        answer = await (asyncio.to_thread(run_sync, scenario) if transport == "sync" else run(scenario, transport))
        print(json.dumps(answer), flush=True)  # noqa: T201 - what it is for


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "asyncio"))
