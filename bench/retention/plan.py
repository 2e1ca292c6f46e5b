"""What is measured: the ways in which a generation is served, at what numbers of streams and at what pace. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

__all__ = ["JOINED", "MODELS", "PROMISED_US", "Case", "Way", "cases"]

# Long enough that a request's own cost is small beside its tokens'.
FLAT_OUT: Final = {1: 16_000, 16: 1500, 64: 500}
# As long at one stream as at 64: what a process does by the clock counts for one stream as well.
PACED_STREAMS: Final = (1, 16, 64)
PACED_TOKENS: Final = 200
PACED_TOKEN_MS: Final = 20
# Those to which a second reader comes as well.
JOINED_STREAMS: Final = 16
# Of a token each: what they cost is the requests' own cost.
REQUESTS: Final = 192
# Rounds are short and many, since neighbours on the machine come and go; how many times those that are asked for.
ROUNDS: Final = 3
PACED_ROUNDS: Final = 2
MAX_TOKENS: Final = 100_000
MODELS: Final = f"""
[[models]]
id = "simulator"
aliases = ["default"]
backend = "simulator"
max_running = 256
max_output_tokens = {MAX_TOKENS}

[models.options]
max_context_tokens = {2 * MAX_TOKENS}
"""


class Way(Enum):
    """How a generation is served.

    OFF and OFF_BESIDE are not retained; beside a store that is set nothing may be different. LOCAL_JOINER and
    REMOTE_JOINER have a second reader from the beginning, at the same and at another replica.
    """

    OFF = "not retained"
    OFF_BESIDE = "not retained, beside a store"
    MEMORY = "retained in memory"
    SHARED = "retained with a shared store"
    LOCAL_JOINER = "a second reader here"
    REMOTE_JOINER = "a second reader at another replica"

    @property
    def needs_store(self) -> bool:
        """Whether it can be measured with a Redis only."""
        return self in (Way.OFF_BESIDE, Way.SHARED, Way.REMOTE_JOINER)

    @property
    def base(self) -> Way:
        """What it is compared with."""
        return JOINED.get(self, Way.OFF)

    @property
    def is_retained(self) -> bool:
        """Whether its requests have an idempotency key."""
        return self not in (Way.OFF, Way.OFF_BESIDE)


# CPU of the service per token, more than without.
PROMISED_US: Final = {Way.OFF_BESIDE: 0.0, Way.MEMORY: 10.0, Way.SHARED: 25.0}
JOINED: Final = {Way.LOCAL_JOINER: Way.MEMORY, Way.REMOTE_JOINER: Way.SHARED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Some streams at once. `token_ms` 0: as fast as they can. `ways` begin with OFF."""

    streams: int
    tokens: int
    token_ms: int
    rounds: int
    ways: tuple[Way, ...]

    @property
    def is_request(self) -> bool:
        """Whether its streams are of one token: then a token costs what a request does."""
        return self.tokens == 1

    @property
    def name(self) -> str:
        """As it is told."""
        if self.is_request:
            return "a request"
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        return f"{streams}, " + (f"a token each {self.token_ms} ms" if self.token_ms else "flat out")

    @property
    def is_lone(self) -> bool:
        """Whether what its process does by the clock falls on so few tokens that it hides what they cost."""
        return self.streams == 1 and self.token_ms > 0

    @property
    def warm_up(self) -> Case:
        """A short form of it, which is not counted."""
        return replace(self, tokens=-(-self.tokens // 10))

    @property
    def prompt(self) -> str:
        """What makes the simulator keep the pace."""
        return f"simulate: {json.dumps({'token_ms': self.token_ms})}\n"


def cases(rounds: int, scale: int) -> list[Case]:
    """Return what is measured, with a `scale`-th of the tokens. A second reader comes to 16 streams."""
    plain = tuple(way for way in Way if way not in JOINED)
    many = rounds * ROUNDS
    return [
        Case(streams=REQUESTS // scale, tokens=1, token_ms=0, rounds=many, ways=plain),
        *_of_tokens(many, scale, plain, 0, FLAT_OUT),
        *_of_tokens(rounds * PACED_ROUNDS, scale, plain, PACED_TOKEN_MS, dict.fromkeys(PACED_STREAMS, PACED_TOKENS)),
    ]


def _of_tokens(
    rounds: int, scale: int, plain: tuple[Way, ...], token_ms: int, plan: Mapping[int, int]
) -> Iterable[Case]:
    for streams, tokens in plan.items():
        ways = tuple(Way) if streams == JOINED_STREAMS else plain
        yield Case(streams=streams, tokens=max(10, tokens // scale), token_ms=token_ms, rounds=rounds, ways=ways)
