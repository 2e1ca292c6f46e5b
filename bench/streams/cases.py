"""What is opened: how many streams, over what, what the engine does, and how they are read. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from bench.calls import Wire

__all__ = ["MAX_TOKENS", "MODELS", "Case", "Reading", "cases"]

IDLE_STREAMS: Final = 10_000
FROZEN_STREAMS: Final = 1_000
STREAMS_PER_CONNECTION: Final = 250
FROZEN_PER_CONNECTION: Final = 25
# What a server and this process need besides the streams' own sockets.
SPARE_FILES: Final = 500
# More than any buffer holds.
MAX_TOKENS: Final = 1_000_000
MODELS: Final = f"""
[[models]]
id = "simulator"
aliases = ["default"]
backend = "simulator"
template = "chatml"
max_running = 20000
max_output_tokens = {MAX_TOKENS}

[models.options]
max_context_tokens = {2 * MAX_TOKENS}
"""
# A token of an engine that sends several at a time, or of log-probs: a word would fill the same buffers ten
# times more slowly. `Reading.SOCKET` with words shows what many small events cost.
TOKEN: Final = "sixty-four bytes that stand for a few words of one engine step. "
WORDS_STREAMS: Final = 200
AN_HOUR_MS: Final = 3_600_000


class Reading(Enum):
    """What the reader does: all that comes; nothing after the head (a frozen process, whose kernel buffers fill);
    or it takes bytes and never gives the stream's HTTP/2 window back (a frozen consumer in a process that lives)."""

    ALL = "reads"
    SOCKET = "socket not read"
    WINDOW = "window not returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Streams of one kind.

    `timeout_s` is the patience of both servers with a reader, for this case. `begins_s` is when the engine makes
    its first token: by then all streams are there.
    """

    name: str
    wire: Wire
    streams: int
    per_connection: int
    script: Mapping[str, object]
    reading: Reading
    timeout_s: float = 30.0
    begins_s: float = 0.0

    @property
    def prompt(self) -> str:
        """What makes the simulator do what the case needs."""
        return f"simulate: {json.dumps(self.script)}\n"

    @property
    def has_connection(self) -> bool:
        """Whether each stream has a connection to the service of its own."""
        return self.wire == "grpc" and self.per_connection == 1

    @property
    def is_frozen(self) -> bool:
        """Whether the reader stops."""
        return self.reading is not Reading.ALL

    @property
    def settings(self) -> dict[str, str]:
        """The settings of service and gateway, but for the models file."""
        return {
            "HEADRACE_FIRST_TOKEN_TIMEOUT_S": "3600",
            "HEADRACE_READER_TIMEOUT_S": str(self.timeout_s),
            "HEADRACE_FULL_READER_TIMEOUT_S": str(self.timeout_s),
            "HEADRACE_GATEWAY_SEND_TIMEOUT_S": str(self.timeout_s),
            "HEADRACE_LOG_LEVEL": "error",
            "HEADRACE_GATEWAY_LOG_LEVEL": "error",
        }


def cases(*, is_quick: bool, file_limit: int) -> list[Case]:
    """Return the cases in the order in which they are measured; `file_limit` bounds connections."""
    scale = 10 if is_quick else 1
    idle, frozen = IDLE_STREAMS // scale, FROZEN_STREAMS // scale
    # Long enough for all streams to begin before the first token, and for the last one to be full before the
    # first is given up: only then the height is that of all.
    begins_s, patience_s = (5.0, 20.0) if is_quick else (20.0, 90.0)
    words: dict[str, object] = {"prefill_ms": begins_s * 1000, "token_ms": 0}
    flat_out = words | {"tokens": [TOKEN]}

    def idling(name: str, wire: Wire, streams: int, per_connection: int) -> Case:
        script = {"prefill_ms": AN_HOUR_MS}
        return Case(
            name=f"idle in prefill, {name}",
            wire=wire,
            streams=streams,
            per_connection=per_connection,
            script=script,
            reading=Reading.ALL,
        )

    def freezing(name: str, wire: Wire, reading: Reading, per_connection: int = 1) -> Case:
        return Case(
            name=f"frozen, {name}",
            wire=wire,
            streams=frozen,
            per_connection=per_connection,
            script=flat_out,
            reading=reading,
            timeout_s=patience_s,
            begins_s=begins_s,
        )

    return [
        idling("gRPC", "grpc", idle, STREAMS_PER_CONNECTION),
        idling("HTTP", "http", min(idle, file_limit - SPARE_FILES), 1),
        idling("gRPC, a connection each", "grpc", frozen, 1),
        freezing("gRPC, socket not read", "grpc", Reading.SOCKET),
        freezing("gRPC, window not returned", "grpc", Reading.WINDOW, FROZEN_PER_CONNECTION),
        freezing("HTTP", "http", Reading.SOCKET),
        replace(freezing("HTTP, a word a token", "http", Reading.SOCKET), streams=WORDS_STREAMS // scale, script=words),
    ]
