"""Replays of public bug reports: a scripted Triton behind the service behind the gateway, all on real sockets.

`report_script` has the notation of what Triton does.

    async with replays() as replay:
        answers = await replay.everywhere('"Hi",FIN(eos)', max_tokens=5)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from headrace.v1 import chat_pb2, sampling_pb2
from headrace.v1 import generation_pb2 as gen
from service.backends.triton.backend import TritonBackend
from service.backends.triton.options import TritonOptions
from service.generation.limits import Limits
from service.rpc.server import ServerOptions
from tests.support.gateway_harness import RawResponse, RunningGateway, read_events, running_gateway
from tests.support.relay import Relay, relay
from tests.support.report_script import Played, Script, says_ids, script
from tests.support.service import Failure, RunningService, running_service, simulated_model, text_of
from tests.support.triton_fake import FakeTriton, Says
from tests.support.triton_fake import Final as FinalStep

__all__ = ["R0", "Answer", "Played", "Replay", "Script", "replays", "says_ids", "script", "strict_json", "twin"]

R0: Final = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
DONE: Final = "[DONE]"


def strict_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; ValueError for what only Python takes for JSON (NaN, Infinity)."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@dataclass(slots=True)
class Answer:
    """One answer over one wire, failed or not. `code` is None where it did not fail."""

    text: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    output_tokens: int | None = None
    code: str | None = None  # of the error: the member `code` over HTTP, the reason over gRPC
    # What came, as that wire has it.
    response: RawResponse | None = None
    chunks: list[dict[str, Any]] = field(default_factory=list)
    events: list[gen.GenerateResponse] = field(default_factory=list)
    failure: Failure | None = None

    @property
    def status(self) -> int:
        """The HTTP status."""
        assert self.response is not None
        return self.response.status

    @property
    def error(self) -> dict[str, Any]:
        """The error object, from the body or from the last event of a stream."""
        document = self.chunks[-1] if self.chunks else self.response.json() if self.response else {}
        error = document["error"]
        assert isinstance(error, dict)
        return error

    @property
    def deltas(self) -> list[str]:
        """The pieces of text of a stream as they came."""
        return [text for chunk in self.chunks if (text := _text_of_chunk(chunk))]


def _text_of_chunk(chunk: dict[str, Any]) -> str:
    choices = chunk.get("choices") or [{"delta": {}}]
    return choices[0]["delta"].get("content") or ""


def _streamed(response: RawResponse) -> Answer:
    assert response.is_whole
    if response.status != 200:
        return Answer(code=response.json()["error"]["code"], response=response)
    *events, last = read_events(response.body)
    chunks = [strict_json(event) for event in (events if last == DONE else [*events, last])]
    answer = Answer(response=response, chunks=chunks)
    answer.text = "".join(map(_text_of_chunk, chunks))
    choices = [choice for chunk in chunks for choice in chunk.get("choices", [])]
    answer.finish_reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    if last != DONE:
        answer.code = chunks[-1]["error"]["code"]
    elif chunks[-1].get("usage"):
        answer.output_tokens = chunks[-1]["usage"]["completion_tokens"]
    return answer


def _whole(response: RawResponse) -> Answer:
    document = strict_json(response.body)
    if response.status != 200:
        return Answer(code=document["error"]["code"], response=response)
    choices = document["choices"]
    answer = Answer(choices[0]["message"]["content"], [c["finish_reason"] for c in choices], response=response)
    answer.output_tokens = document["usage"] and document["usage"]["completion_tokens"]
    return answer


def _called(events: list[gen.GenerateResponse]) -> Answer:
    answer = Answer(text_of(events), events=events)
    for event in events:
        if event.HasField("choice_finished"):
            name = gen.FinishReason.Name(event.choice_finished.reason)
            answer.finish_reasons.append(name.removeprefix("FINISH_REASON_").lower())
        if event.HasField("completed") and event.completed.usage.HasField("output_token_count"):
            answer.output_tokens = event.completed.usage.output_token_count
    return answer


def twin(body: dict[str, Any]) -> gen.GenerateRequest:
    """Return the contract's request for a body, written anew for the members that replays use."""
    given = dict(body)
    request = gen.GenerateRequest(model=given.pop("model"))
    for message in given.pop("messages"):
        content = message["content"]
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        role = chat_pb2.Role.Value(f"ROLE_{message['role'].upper()}")
        request.chat.messages.add(role=role, content=[chat_pb2.ContentPart(text=text) for text in texts])
    if (stop := given.pop("stop", None)) is not None:
        request.stop.sequences.extend([stop] if isinstance(stop, str) else stop)
    request.output.CopyFrom(
        gen.OutputOptions(logprobs=given.pop("logprobs", False), top_logprobs=given.pop("top_logprobs", None))
    )
    request.choice_count = given.pop("n", 1)
    limit = given.pop("max_tokens", None)
    request.sampling.CopyFrom(sampling_pb2.SamplingParams(max_output_tokens=limit, **given))
    return request


@dataclass(slots=True)
class Replay:
    """The three processes in one loop, and what the fake Triton saw (`fake`)."""

    fake: FakeTriton
    relay: Relay
    service: RunningService
    gateway: RunningGateway

    @property
    def backend(self) -> TritonBackend:
        """The backend of the model "m"."""
        backend = self.service.models["m"].backend
        assert isinstance(backend, TritonBackend)
        return backend

    def will(self, notation: Played, members: dict[str, Any] | None = None) -> dict[str, Any]:
        """Set what Triton does from now on, forget what it saw, and return the body to ask with."""
        wanted = script(notation, self.relay.cut)
        self.fake.script = wanted.steps
        self.fake.requests.clear()
        self.fake.stops.clear()
        for event in (self.fake.received, self.fake.cancelled, self.fake.stopped):
            event.clear()
        limit = {"max_tokens": wanted.tokens} if wanted.is_length else {}
        return {**R0, **limit, **(members or {})}

    async def stream(self, notation: Played, **members: Any) -> Answer:
        """Ask over HTTP for a stream; the usage comes with it."""
        body = self.will(notation, members)
        return _streamed(await self.post({"stream": True, "stream_options": {"include_usage": True}, **body}))

    async def whole(self, notation: Played, **members: Any) -> Answer:
        """Ask over HTTP for a whole answer."""
        return _whole(await self.post(self.will(notation, members)))

    async def call(self, notation: Played, timeout_s: float = 10, **members: Any) -> Answer:
        """Ask over gRPC."""
        request = twin(self.will(notation, members))
        events: list[gen.GenerateResponse] = []
        try:
            async for event in self.service.generation.Generate(request, timeout=timeout_s):
                events.append(event)  # noqa: PERF401 - what came before a failure is kept
        except grpc.aio.AioRpcError as error:
            answer = _called(events)
            answer.failure = Failure(error, len(events))
            answer.code = answer.failure.info.reason
            return answer
        return _called(events)

    async def everywhere(self, notation: Played, **members: Any) -> list[Answer]:
        """Ask over all three wires: the answers have one text, one reason and one count, and none failed."""
        answers = [
            await self.stream(notation, **members),
            await self.whole(notation, **members),
            await self.call(notation, **members),
        ]
        first = answers[0]
        for answer in answers:
            assert answer.code is None, answer
            told = (answer.text, answer.finish_reasons, answer.output_tokens)
            assert told == (first.text, first.finish_reasons, first.output_tokens)
        return answers

    async def post(self, body: Any, **headers: str) -> RawResponse:
        """Send one chat request on a connection of its own."""
        async with self.gateway.connect() as client:
            return await client.post(body, headers={name.replace("_", "-"): value for name, value in headers.items()})

    async def within(self, event: asyncio.Event, timeout_s: float = 1.0) -> None:
        """Return when `event` is set; TimeoutError after `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            await event.wait()


@asynccontextmanager
async def replays(
    *,
    options: dict[str, Any] | None = None,
    tokenizer: Any = None,
    limits: Limits | None = None,
    health_interval_s: float = 30.0,
    settings: dict[str, Any] | None = None,
    prepare: Callable[[FakeTriton], object] = lambda _: None,
    **model: Any,
) -> AsyncIterator[Replay]:
    """Serve the model "m" for the length of the block.

    `options` go to the Triton backend, `settings` to the gateway, `model` to the model; `prepare` gets the fake before
    anyone asks it. Health is looked at after failures; what it finds is well, as canaries have a script of their own.
    """
    async with AsyncExitStack() as stack:
        is_token_level = (options or {}).get("model") == "tensorrt_llm"
        well = (says_ids(1) if is_token_level else Says(b"Hello"), FinalStep())
        fake = await stack.enter_async_context(FakeTriton(canary_script=well))
        prepare(fake)
        between = await stack.enter_async_context(relay(fake.url))
        backend = TritonBackend(TritonOptions(url=between.address, **(options or {})), tokenizer=tokenizer)
        await backend.start()
        stack.push_async_callback(backend.close)
        service = await stack.enter_async_context(
            running_service(
                simulated_model("m", backend=backend, **model),
                limits=limits,
                options=ServerOptions(port=0, health_interval_s=health_interval_s),
            )
        )
        gateway = await stack.enter_async_context(running_gateway(f"127.0.0.1:{service.port}", **(settings or {})))
        yield Replay(fake, between, service, gateway)
