"""One call of one caller, over gRPC or over HTTP, and what became of it.

Callers here are cheap: what they cost is taken from the servers under test, on
the same cores. They never try again, so that a call is one outcome.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from bench.load import Reader, chat_request
from bench.processes import Path
from bench.sockets import connect
from headrace import AsyncClient, HeadraceError

__all__ = ["COMPLETED", "LEFT", "QUEUE_FULL", "QUEUE_TIMEOUT", "Answer", "Call", "Callers", "Priority", "Wire"]

Wire = Literal["grpc", "http"]
Priority = Literal["interactive", "batch"]

COMPLETED: Final = "completed"
LEFT: Final = "left"  # by the caller, as was planned
CUT: Final = "cut"  # the answer ended without an end
# What HTTP calls otherwise. A request that is wrong has as many codes there as there are ways to be wrong.
INVALID: Final = "INVALID_FIELD"
QUEUE_FULL: Final = "QUEUE_FULL"
QUEUE_TIMEOUT: Final = "QUEUE_TIMEOUT"
REASONS: Final = {"server_is_overloaded": QUEUE_FULL, "queue_timeout": QUEUE_TIMEOUT}
# Beyond every limit of the servers: what needs longer hangs.
HANG_S: Final = 120.0
HUNG: Final = "hung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a caller does. `leave_after_s`: cancels then. `pause_s`: stops reading that long at the first content."""

    wire: Wire
    prompt: str
    max_tokens: int
    priority: Priority = "interactive"
    tenant: str = "tenant"
    timeout_s: float = 60.0
    leave_after_s: float | None = None
    pause_s: float = 0.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of it: seconds from sending to the first content (None if none came) and to the end.

    `outcome` is "completed", "left", "hung", "cut", or the reason of a failure: an ErrorReason without
    its prefix, over HTTP the code where no reason is known by it.
    """

    ttft_s: float | None
    total_s: float
    outcome: str


class Callers:
    """All callers of one bench; an async context manager, which ends what is left of their calls."""

    def __init__(self, path: Path) -> None:
        self._port = path.http_port
        self._client = AsyncClient(f"127.0.0.1:{path.grpc_port}", transport="asyncio")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.close()

    async def answer(self, call: Call) -> Answer:
        """Make the call and return what became of it. Cancelling it cancels the call."""
        try:
            async with asyncio.timeout(HANG_S):
                return await (self._over_grpc(call) if call.wire == "grpc" else self._over_http(call))
        except TimeoutError:
            return Answer(ttft_s=None, total_s=HANG_S, outcome=HUNG)

    async def _over_grpc(self, call: Call) -> Answer:
        begun_s = time.perf_counter()
        stream = self._client.generate(
            model="default",
            prompt=call.prompt,
            max_output_tokens=call.max_tokens,
            priority=call.priority,
            top_p=call.top_p,
            timeout_s=call.timeout_s,
            metadata=(("authorization", f"Bearer {call.tenant}"),),
        )
        outcome, pause_s = COMPLETED, call.pause_s
        try:
            async with asyncio.timeout(call.leave_after_s) as patience, stream:
                async for event in stream:
                    if pause_s and event.HasField("delta"):
                        await asyncio.sleep(pause_s)
                        pause_s = 0.0
        except TimeoutError:
            if not patience.expired():  # it is the bound of `answer`
                raise
            outcome = LEFT
        except HeadraceError as error:
            outcome = error.reason or error.status.name
        return Answer(ttft_s=stream.time_to_first_delta_s, total_s=time.perf_counter() - begun_s, outcome=outcome)

    async def _over_http(self, call: Call) -> Answer:
        headers = {
            "Authorization": f"Bearer {call.tenant}",
            "Request-Timeout-Ms": str(math.ceil(call.timeout_s * 1000)),
        }
        members: dict[str, object] = {"top_p": call.top_p}
        if call.priority == "batch":
            members["service_tier"] = "flex"
        request = chat_request(self._port, call.prompt, call.max_tokens, members, headers)
        begun_s = time.perf_counter()
        # A caller who pauses has to fill what the kernels hold, before anyone can notice.
        reader = await connect(self._port, lambda: Reader(request), is_narrow=call.pause_s > 0)
        try:
            async with asyncio.timeout(call.leave_after_s):
                if call.pause_s:
                    await reader.first
                    reader.pause()
                    await asyncio.sleep(call.pause_s)
                    reader.resume()
                is_whole = await reader.done
        except TimeoutError:
            is_whole, outcome = False, LEFT
        else:
            outcome = COMPLETED if is_whole else _failure(reader)
        finally:
            reader.close()
        # A refusal is an answer when its status is there, and not when the connection has closed.
        ended_s = reader.answered_s if outcome != LEFT and not is_whole and reader.status >= 400 else None
        return Answer(
            ttft_s=None if reader.first_s is None else reader.first_s - reader.sent_s,
            total_s=(ended_s or time.perf_counter()) - begun_s,
            outcome=outcome,
        )


def _failure(reader: Reader) -> str:
    code = reader.failure_code
    if reader.status == 400:
        return INVALID
    return CUT if code is None else REASONS.get(code, code)
