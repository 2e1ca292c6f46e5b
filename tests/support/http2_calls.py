"""Calls of the client's own HTTP/2 to a scripted peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace import AsyncClient, GenerationStream, errors
from headrace.v1 import generation_pb2 as pb
from tests.support.fake_service import completed, delta, finished, started
from tests.support.http2_peer import PeerConnection, PeerRequest, ScriptedPeer, message, scripted_peer

__all__ = ["WHOLE", "client_of", "failure_of", "generate", "numbered", "one_call", "raw", "whole_call"]


def numbered(*events: pb.GenerateResponse) -> list[bytes]:
    for sequence, event in enumerate(events, 1):
        event.sequence = sequence
    return [message(event) for event in events]


WHOLE = numbered(started(), delta("Hello"), delta(" world"), finished(), completed())


def client_of(peer: ScriptedPeer, **more: Any) -> AsyncClient:
    return AsyncClient(peer.address, transport="asyncio", **more)


def generate(client: AsyncClient, **more: Any) -> GenerationStream:
    return client.generate(model="m", prompt="p", **more)


@asynccontextmanager
async def one_call(
    greeting: dict[int, int] | None = None, **more: Any
) -> AsyncIterator[tuple[PeerConnection, int, GenerationStream]]:
    """A call that has reached the peer: its connection, stream id, and stream."""
    async with scripted_peer(greeting or {}) as peer, client_of(peer) as client, generate(client, **more) as stream:
        connection = await peer.accept()
        yield connection, (await connection.request()).stream_id, stream


async def failure_of(stream: GenerationStream) -> errors.HeadraceError:
    async with asyncio.timeout(10):
        with pytest.raises(errors.HeadraceError) as caught:
            await stream.text()
    return caught.value


async def whole_call(connection: PeerConnection) -> PeerRequest:
    request = await connection.request()
    connection.headers(request.stream_id)
    connection.data(request.stream_id, b"".join(WHOLE))
    connection.trailers(request.stream_id)
    return request


def raw(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream_id.to_bytes(4) + payload
