"""Plays one plan over HTTP, on a socket of its own that it can treat as badly as the plan says."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from tests.support.chaos_act import Act, Pauses
from tests.support.chaos_events import ChunkCheck, DocumentCheck
from tests.support.chaos_grpc import PATIENCE_S, GrpcPeers, cancel_generation
from tests.support.chaos_plan import CancelByName, How, Leave, Plan, Way
from tests.support.chaos_relay import reset
from tests.support.chaos_verdict import End, Seen
from tests.support.chaos_wire import http_body, http_headers, http_path
from tests.support.whatwg_sse import EventStreamDecoder

__all__ = ["play_http"]

_TINY_BYTES: Final = 2048
# Of a reader that is in no hurry: more than a head, less than a stream.
_SLOW_LIMIT_BYTES: Final = 8192


async def play_http(plan: Plan, port: int, peers: GrpcPeers) -> Seen:
    """Play the plan and return what came of it. Never raises for what a server does."""
    seen = Seen(began_s=time.monotonic())
    try:
        reader, writer = await _connect(plan, port)
    except OSError as error:
        seen.end, seen.message, seen.ended_s = End.NO_CONNECTION, repr(error), time.monotonic()
        return seen
    exchange = _Exchange(plan, seen, reader, writer, peers)
    try:
        await exchange.play()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return seen


async def _connect(plan: Plan, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    pace = plan.pace
    sock = socket.socket()
    try:
        sock.setblocking(False)
        if pace is not None and pace.is_tiny:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TINY_BYTES)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=sock, limit=2**20 if pace is None else _SLOW_LIMIT_BYTES)
    except BaseException:
        sock.close()
        raise


class _Exchange:
    def __init__(
        self, plan: Plan, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peers: GrpcPeers
    ) -> None:
        self._plan = plan
        self._seen = seen
        self._reader = reader
        self._writer = writer
        self._peers = peers
        self._chunks = ChunkCheck(plan)
        self._pauses = Pauses(plan)
        self._reading: asyncio.Future[None] | None = None
        behaviour = plan.behaviour
        when = behaviour.when if isinstance(behaviour, Leave | CancelByName) else None
        self._doing = Act(when, seen, self._act)

    async def play(self) -> None:
        plan, seen = self._plan, self._seen
        reading = self._reading = asyncio.ensure_future(self._exchange())
        async with self._doing:
            await asyncio.wait([reading], timeout=plan.deadline_s + PATIENCE_S + self._pauses.total_s)
        is_hung = not reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        seen.ended_s = time.monotonic()
        error = None if reading.cancelled() else reading.exception()
        if is_hung:
            seen.end = End.HUNG
        elif isinstance(error, OSError | asyncio.IncompleteReadError):
            if seen.end is not End.LEFT:
                seen.end, seen.message = End.CUT, repr(error)
        elif error is not None:
            seen.end, seen.message = End.BROKEN, repr(error)
        seen.problems += self._chunks.problems
        if plan.way is Way.STREAM:
            _take(seen, self._chunks)

    def _act(self) -> Awaitable[None] | None:
        behaviour, seen = self._plan.behaviour, self._seen
        if isinstance(behaviour, CancelByName):
            if not self._chunks.generation_id:
                seen.left_s = None  # nobody knows its name
                return None
            return cancel_generation(self._peers, self._plan, seen, self._chunks.generation_id)
        assert isinstance(behaviour, Leave)
        if behaviour.how is How.HALF_CLOSE:
            # Whoever still reads has to get an end, whatever the server makes of it.
            with suppress(OSError, RuntimeError):
                self._writer.write_eof()
            return None
        seen.end = End.LEFT
        if behaviour.how is How.RESET:
            reset(self._writer)
        else:
            self._writer.close()
        assert self._reading is not None
        self._reading.cancel()
        return None

    async def _exchange(self) -> None:
        plan, seen = self._plan, self._seen
        body = json.dumps(http_body(plan)).encode()
        fields = {"host": "chaos", "content-type": "application/json", "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in (fields | http_headers(plan)).items())
        self._writer.write(f"POST {http_path(plan)} HTTP/1.1\r\n{head}\r\n".encode() + body)
        await self._writer.drain()
        raw = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split()[1])
        if headers.get("x-request-id") != plan.request_id:
            seen.problems.append(f"request id {headers.get('x-request-id')} in the answer")
        if headers["content-type"].startswith("text/event-stream"):
            if status != 200 or plan.way is not Way.STREAM:
                seen.problems.append(f"an event stream with status {status}")
            await self._read_stream()
            return
        document = json.loads(await self._reader.readexactly(int(headers["content-length"])))
        if status == 200:
            if plan.way is not Way.WHOLE:
                seen.problems.append("a document in place of a stream")
            check = DocumentCheck(plan)
            check.feed(document)
            seen.problems += check.problems
            _take(seen, check)
            seen.end, seen.status = End.OK, "200"
            return
        seen.end, seen.status = End.REFUSED, str(status)
        seen.code, seen.message = document["error"]["code"], document["error"]["message"]
        if "retry-after" in headers:
            seen.retry_after_s = float(headers["retry-after"])
        if headers.get("x-should-retry") not in ("true", "false"):
            seen.problems.append(f"x-should-retry is {headers.get('x-should-retry')}")

    async def _read_stream(self) -> None:
        decoder, check, seen = EventStreamDecoder(), self._chunks, self._seen
        while piece := await self._piece():
            for event in decoder.feed(piece):
                was_started = check.is_started
                finished = len([1 for finish in check.finishes if finish])
                check.feed(event.data, event.last_event_id)
                kind = "started" if check.is_started and not was_started else "delta"
                if len([1 for finish in check.finishes if finish]) > finished:
                    kind = "choice_finished"
                self._doing.on_event(check.events, "completed" if check.output_tokens is not None else kind)
                await self._pauses.after(check.events)
        decoder.close()
        seen.problems += decoder.oddities[:2]
        if check.error is not None:
            seen.end, seen.status = End.ERROR_EVENT, "200"
            seen.code, seen.message = check.error["code"], check.error["message"]
        elif check.is_complete:
            seen.end = End.OK
        else:
            seen.end, seen.message = End.BROKEN, "the body ended without [DONE] and without an error"

    async def _piece(self) -> bytes:
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]


def _take(seen: Seen, check: ChunkCheck | DocumentCheck) -> None:
    seen.events, seen.is_started, seen.is_complete = check.events, check.is_started, check.is_complete
    seen.finishes, seen.output_tokens = check.finishes, check.output_tokens
    seen.generation_id = check.generation_id
