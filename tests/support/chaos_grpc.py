"""Plays one plan over gRPC: with the client over either of its transports, or with grpc.aio alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from google.rpc import error_details_pb2, status_pb2

from headrace import AsyncClient, HeadraceError
from headrace.errors import ProtocolError
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import generation_pb2_grpc
from tests.support.chaos_act import Act, Pauses
from tests.support.chaos_events import EventCheck
from tests.support.chaos_plan import CancelByName, How, Leave, Plan, Way
from tests.support.chaos_relay import BreakingRelay, breaking_relay
from tests.support.chaos_verdict import End, Seen
from tests.support.chaos_wire import grpc_metadata, grpc_request

__all__ = ["GrpcPeers", "cancel_generation", "grpc_peers", "play_grpc"]

# A call that has no end so long after its deadline hangs.
PATIENCE_S: Final = 6.0
# How long a client that froze its connection stays on it.
_FROZEN_S: Final = 2.0
_OWN_WORDS: Final = "Stream removed ("
# grpc.aio alone: no retry hides what happened, and a connection of its own.
_PLAIN: Final = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
# Back soon, as a test wants it; the least of them is also how long a connection may take to be made.
_RECONNECT: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_OWN: Final = {"grpc.use_local_subchannel_pool": 1, **dict(_RECONNECT)}

OnEvent = Callable[[gen.GenerateResponse], Awaitable[None]]


class Caller(Protocol):
    """Whoever reads one call to its end."""

    async def __call__(self, plan: Plan, on_event: OnEvent) -> None:
        """Make the call and read it; raises what it ends with. Cancelling it cancels the call."""


@dataclass(slots=True, kw_only=True)
class GrpcPeers:
    """The shared connections by way and by whether they are relayed, and one for CancelGeneration."""

    target: str
    callers: dict[tuple[Way, bool], Caller]
    other: Any  # stub on a connection of its own


class _ClientCaller:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def __call__(self, plan: Plan, on_event: OnEvent) -> None:
        async with self._client.generate(
            grpc_request(plan), timeout_s=plan.deadline_s, metadata=grpc_metadata(plan)
        ) as stream:
            async for event in stream:
                await on_event(event)


class _RawCaller:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)

    async def __call__(self, plan: Plan, on_event: OnEvent) -> None:
        call = self._stub.Generate(grpc_request(plan), timeout=plan.deadline_s, metadata=grpc_metadata(plan))
        try:
            while (event := await call.read()) is not grpc.aio.EOF:
                await on_event(event)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # grpc.aio raises this also where the status is CANCELLED.
            raise grpc.aio.AioRpcError(
                await call.code(), grpc.aio.Metadata(), await call.trailing_metadata(), await call.details()
            ) from None
        finally:
            call.cancel()


@asynccontextmanager
async def _caller(way: Way, target: str) -> AsyncIterator[Caller]:
    if way is Way.RAW:
        async with grpc.aio.insecure_channel(target, options=[*_PLAIN, *_RECONNECT]) as channel:
            yield _RawCaller(channel)
    else:
        transport = "grpcio" if way is Way.GRPCIO else "asyncio"
        async with AsyncClient(target, transport=transport, channel_options=_OWN) as client:  # type: ignore[arg-type]
            yield _ClientCaller(client)


@asynccontextmanager
async def grpc_peers(direct: str, relayed: str) -> AsyncIterator[GrpcPeers]:
    """Open the shared connections to the service, and to the relay in front of it."""
    callers: dict[tuple[Way, bool], Caller] = {}
    async with (
        _caller(Way.GRPCIO, direct) as callers[Way.GRPCIO, False],
        _caller(Way.ASYNCIO, direct) as callers[Way.ASYNCIO, False],
        _caller(Way.RAW, direct) as callers[Way.RAW, False],
        _caller(Way.GRPCIO, relayed) as callers[Way.GRPCIO, True],
        _caller(Way.ASYNCIO, relayed) as callers[Way.ASYNCIO, True],
        _caller(Way.RAW, relayed) as callers[Way.RAW, True],
        grpc.aio.insecure_channel(direct, options=[*_PLAIN, *_RECONNECT]) as channel,
    ):
        other = generation_pb2_grpc.GenerationServiceStub(channel)
        yield GrpcPeers(target=direct, callers=callers, other=other)


async def cancel_generation(peers: GrpcPeers, plan: Plan, seen: Seen, generation_id: str) -> None:
    """Ask to stop the generation from another connection; a stranger asks with another tenant's credentials."""
    assert isinstance(plan.behaviour, CancelByName)
    who = "stranger" if plan.behaviour.is_stranger else plan.tenant
    request = gen.CancelGenerationRequest(generation_id=generation_id)
    try:
        answer = await peers.other.CancelGeneration(request, timeout=5, metadata=(("authorization", f"Bearer {who}"),))
        seen.cancel_state = gen.GenerationState.Name(answer.state).removeprefix("GENERATION_STATE_")
    except grpc.aio.AioRpcError as error:
        _fill(seen, error, is_cancel=True)


async def play_grpc(plan: Plan, peers: GrpcPeers) -> Seen:
    """Play the plan and return what came of it. Never raises for what a server does."""
    seen = Seen(began_s=time.monotonic())
    if plan.has_own_connection:
        async with breaking_relay(peers.target) as relay, _caller(plan.way, relay.address) as caller:
            await _play(plan, caller, peers, seen, relay)
    else:
        await _play(plan, peers.callers[plan.way, plan.is_relayed], peers, seen, None)
    return seen


async def _play(plan: Plan, caller: Caller, peers: GrpcPeers, seen: Seen, relay: BreakingRelay | None) -> None:
    check, pauses = EventCheck(plan), Pauses(plan)
    behaviour = plan.behaviour

    def act() -> Awaitable[None] | None:
        if isinstance(behaviour, CancelByName):
            if not check.generation_id:
                seen.left_s = None  # nobody knows its name
                return None
            return cancel_generation(peers, plan, seen, check.generation_id)
        assert isinstance(behaviour, Leave)
        seen.end = End.LEFT
        if relay is None:
            reading.cancel()
            return None
        return _break(relay, behaviour.how, reading)

    async def on_event(event: gen.GenerateResponse) -> None:
        kind = check.feed(event)
        doing.on_event(check.events, kind)
        await pauses.after(check.events)

    when = behaviour.when if isinstance(behaviour, Leave | CancelByName) else None
    doing = Act(when, seen, act)
    reading: asyncio.Future[None] = asyncio.ensure_future(caller(plan, on_event))
    async with doing:
        await asyncio.wait([reading], timeout=plan.deadline_s + PATIENCE_S + pauses.total_s)
    is_hung = not reading.done()
    reading.cancel()
    await asyncio.wait([reading], timeout=PATIENCE_S)
    if seen.ended_s == 0:
        seen.ended_s = time.monotonic()
    error = None if reading.cancelled() or not reading.done() else reading.exception()
    if is_hung:
        seen.end = End.HUNG
    elif seen.end is not End.LEFT:
        _end(seen, error, is_cancelled=reading.cancelled())
    _take(seen, check)


async def _break(relay: BreakingRelay, how: How, reading: asyncio.Future[None]) -> None:
    relay.refuse()
    match how:
        case How.RESET:
            relay.reset()
        case How.CLOSE:
            relay.close_connections()
        case How.HALF_CLOSE:
            relay.half_close()
            await asyncio.wait([reading], timeout=_FROZEN_S)
        case _:
            relay.freeze()
            await asyncio.wait([reading], timeout=_FROZEN_S)
    reading.cancel()


def _end(seen: Seen, error: BaseException | None, *, is_cancelled: bool) -> None:
    if is_cancelled:
        seen.end, seen.message = End.BROKEN, "the read was cancelled, and by nobody"
    elif error is None:
        seen.end = End.OK
    elif isinstance(error, grpc.aio.AioRpcError):
        _fill(seen, error)
    elif isinstance(error, HeadraceError) and not isinstance(error, ProtocolError):
        cause = error.__cause__
        if isinstance(cause, grpc.aio.AioRpcError):
            _fill(seen, cause)
        else:
            seen.end, seen.status, seen.reason, seen.message = End.FAILED, error.status.name, error.reason, str(error)
    else:
        seen.end, seen.message = End.BROKEN, repr(error)


def _fill(seen: Seen, error: grpc.aio.AioRpcError, *, is_cancel: bool = False) -> None:
    # Not by grpc_status: it refuses details behind a message that gRPC has changed, as it does at a deadline.
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    details = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b"")).details
    infos = _unpacked(details, error_details_pb2.ErrorInfo)
    retries = _unpacked(details, error_details_pb2.RetryInfo)
    if is_cancel:
        seen.cancel_state = infos[0].reason if infos else error.code().name
        return
    seen.end, seen.status, seen.message = End.FAILED, error.code().name, error.details() or ""
    if len(infos) > 1:
        seen.problems.append(f"{len(infos)} ErrorInfo in one status")
    # At a deadline gRPC may put its own status over that of a server whose trailers were on their way.
    if infos and not seen.message.startswith(_OWN_WORDS):
        seen.reason, seen.metadata = infos[0].reason, dict(infos[0].metadata)
    if retries:
        seen.retry_after_s = retries[0].retry_delay.ToMilliseconds() / 1000
    seen.pushback = trailers.get("grpc-retry-pushback-ms")


def _unpacked(boxes: Iterable[Any], kind: Any) -> list[Any]:
    found = []
    for box in boxes:
        message = kind()
        if box.Unpack(message):
            found.append(message)
    return found


def _take(seen: Seen, check: EventCheck) -> None:
    seen.problems += check.problems
    seen.events, seen.queued = check.events, check.queued
    seen.is_started, seen.is_complete = check.is_started, check.is_complete
    seen.finishes, seen.output_tokens = check.finishes, check.output_tokens
    seen.generation_id = check.generation_id
