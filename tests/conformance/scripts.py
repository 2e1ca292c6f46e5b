"""Servers that play a script, down to the bytes: what a real server seldom does, and a client has to survive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from grpc_status import rpc_status

from headrace.v1 import generation_pb2 as gen
from tests.support.fake_script import Fail, completed, delta, finished, queued, started

__all__ = ["SCRIPTS", "ScriptedServer", "scripted"]

METHOD: Final = "/headrace.v1.GenerationService/Generate"
PUSHBACK_MS: Final = 60
# A field that no version has, with a text in it: number 777, wire type 2.
UNKNOWN_EVENT: Final = b"\xca\x30\x04more"

Step = Message | bytes | Fail
Script = Sequence[Step]


def _numbered(*events: gen.GenerateResponse | bytes) -> list[Step]:
    """Return events with their sequence numbers; an unknown one counts too."""
    steps: list[Step] = []
    for number, event in enumerate(events, start=1):
        if isinstance(event, bytes):
            steps.append(gen.GenerateResponse(sequence=number).SerializeToString() + event)
        else:
            event.sequence = number
            steps.append(event)
    return steps


_GONE: Final = Fail(code=grpc.StatusCode.UNAVAILABLE, reason="BACKEND_UNAVAILABLE", retry_after_s=PUSHBACK_MS / 1000)

# By name, the scripts of the calls in turn; the last one serves all that follow.
SCRIPTS: Final[dict[str, Sequence[Script]]] = {
    "pushback": [[_GONE], _numbered(started(), delta("second"), finished(), completed())],
    "broken": [
        [*_numbered(started(), delta("half")), _GONE],
        _numbered(started(), delta("twice"), finished(), completed()),
    ],
    "unknown": [
        _numbered(started(), delta("before"), UNKNOWN_EVENT, delta(", behind"), UNKNOWN_EVENT, finished(), completed())
    ],
    "gap": [[*_numbered(started(), delta("a")), gen.GenerateResponse(sequence=4, delta=gen.ChoiceDelta(text="c"))]],
    "short": [_numbered(started(), delta("half"))],
    "queued": [_numbered(queued(2), queued(1), started(), delta("now"), finished(), completed())],
}


class ScriptedServer(grpc.GenericRpcHandler):
    """Plays one script after the other. `calls` counts them."""

    def __init__(self, name: str) -> None:
        self._scripts = SCRIPTS[name]
        self.calls = 0
        self.address = ""

    def service(self, handler_call_details: Any) -> Any:
        """Take every call of Generate."""
        return grpc.unary_stream_rpc_method_handler(self._play) if handler_call_details.method == METHOD else None

    async def _play(self, _request: bytes, context: Any) -> None:
        script = self._scripts[min(self.calls, len(self._scripts) - 1)]
        self.calls += 1
        has_output = False
        for step in script:
            if isinstance(step, Fail):
                status = rpc_status.to_status(step.status())
                pushback = "-1" if has_output else str(PUSHBACK_MS)
                trailers = (*status.trailing_metadata, ("grpc-retry-pushback-ms", pushback))
                await context.abort_with_status(status._replace(trailing_metadata=trailers))
            if not has_output:
                await context.send_initial_metadata((("x-request-id", "req-1"), ("x-generation-id", "gen-1")))
            has_output = True
            await context.write(step if isinstance(step, bytes) else step.SerializeToString())
            await asyncio.sleep(0.01)


@asynccontextmanager
async def scripted(name: str) -> AsyncIterator[ScriptedServer]:
    """Serve a script on 127.0.0.1 and a free port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = ScriptedServer(name)
    server.add_generic_rpc_handlers((handler,))
    handler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield handler
    finally:
        await server.stop(0)
