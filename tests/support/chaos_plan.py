"""What each request of a storm does, by seed and number: the same plan every time. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.support.chaos_script import Script

__all__ = [
    "GENEROUS_S",
    "MODELS",
    "Behaviour",
    "CancelByName",
    "How",
    "Leave",
    "Moment",
    "Pace",
    "Plan",
    "Way",
    "plan_of",
]

# Model, and how many of ten requests go there.
MODELS: Final = {"wide": 7, "narrow": 3}
# No request that is let alone takes as long: longest wait in the line, longest script, slowest reader.
GENEROUS_S: Final = 20.0
_TENANTS: Final = 4
_BIG: Final = "x" * 2000
_FAULTS: Final = ("error", "unavailable", "crash", "hang", "cut")
# Two levels of UTF-8 beyond ASCII in every token, and one that is cut in the middle of both.
_WIDE: Final = "é🌊"


class Way(Enum):
    """How a request comes: over gRPC by a client's two transports or by grpc.aio alone, or over HTTP."""

    GRPCIO = "grpcio"
    ASYNCIO = "asyncio"
    RAW = "raw"
    STREAM = "stream"
    WHOLE = "whole"

    @property
    def is_http(self) -> bool:
        """Whether it comes through the gateway."""
        return self in (Way.STREAM, Way.WHOLE)


class How(Enum):
    """How a client leaves."""

    CANCEL = "cancel"
    CANCEL_READ = "cancel the task that reads"
    RESET = "reset"
    CLOSE = "close"
    HALF_CLOSE = "half-close"
    FREEZE = "freeze the connection"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When something is done: so long after the begin, after so many events, or at the first event of a kind.

    Whichever comes first of those that are set; `seconds` is always.
    """

    seconds: float
    events: int | None = None
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Reads with a pause of `pause_s` after every `every` events, `times` times; `is_tiny`: into a tiny buffer."""

    every: int
    pause_s: float
    times: int
    is_tiny: bool = False

    @property
    def total_s(self) -> float:
        """All pauses together."""
        return self.pause_s * self.times


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Goes away."""

    how: How
    when: Moment


@dataclass(frozen=True, kw_only=True)
class CancelByName:
    """Is stopped by CancelGeneration from another connection; a stranger's has to be of no effect."""

    when: Moment
    is_stranger: bool = False


Behaviour = Leave | CancelByName


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One request. Without a `behaviour` it is read to its end, without a `pace` as fast as it comes.

    `is_relayed`: over a connection that the storm cuts and freezes.
    """

    seed: int
    number: int
    way: Way
    script: Script
    behaviour: Behaviour | None = None
    pace: Pace | None = None
    model: str = "wide"
    is_relayed: bool = False
    is_chat: bool = False
    is_batch: bool = False
    choices: int = 1
    tenant: str = "tenant-0"
    wants_details: bool = False
    queue_events: bool = False
    deadline_s: float = GENEROUS_S
    time_limit_s: float | None = None

    @property
    def request_id(self) -> str:
        """The id under which it is found in the logs."""
        return f"chaos-{self.seed}-{self.number}"

    @property
    def has_own_connection(self) -> bool:
        """Whether it needs a connection that nobody else uses."""
        how = self.behaviour.how if isinstance(self.behaviour, Leave) else None
        return how in (How.RESET, How.CLOSE, How.HALF_CLOSE, How.FREEZE)

    def __str__(self) -> str:
        script = self.script
        told = [self.way.value, self.model, "chat" if self.is_chat else "text", "batch" if self.is_batch else ""]
        told += ["relayed" if self.is_relayed else "", "details" if self.wants_details else ""]
        told += ["queue events" if self.queue_events else "", f"n={self.choices}", f"deadline {self.deadline_s:.3f} s"]
        told.append("" if self.time_limit_s is None else f"time limit {self.time_limit_s:.3f} s")
        told.append(
            f"{script.output_tokens} tokens of {len(script.pieces[0])} bytes at most {script.limit}, "
            f"queue {script.queue_ms:.0f} prefill {script.prefill_ms:.0f} token {script.token_ms:.0f} ms"
        )
        told.append("" if script.fault == "none" else f"{script.fault} after {script.fault_after}")
        told.append("" if script.stop is None else f"stop {script.stop!r}")
        does = [str(one) for one in (self.pace, self.behaviour) if one is not None]
        return f"{', '.join(part for part in told if part)}: {' '.join(does) or 'reads all'}"


def plan_of(seed: int, number: int) -> Plan:
    """Return what request `number` of the storm `seed` does."""
    dice = random.Random(f"{seed}:{number}")
    way = dice.choice((Way.GRPCIO, Way.ASYNCIO, Way.RAW, Way.STREAM, Way.STREAM, Way.WHOLE))
    pace = _pace(dice) if dice.random() < 0.12 else None
    choices = dice.choice((1, 1, 1, 1, 1, 2, 2, 3, 4))
    is_chat = way.is_http and dice.random() < 0.5
    # Log-probs of a text completion have no bytes.
    may_have_details = is_chat or not way.is_http
    if pace is None:
        script = _script(dice, number)
        wants_details = may_have_details and script.stop is None and dice.random() < 0.3
    else:
        wants_details = may_have_details and dice.random() < 0.5
        script = _many_tokens(dice, number) if wants_details else _big_tokens(dice, number, choices)
    return Plan(
        seed=seed,
        number=number,
        way=way,
        script=script,
        behaviour=_behaviour(dice, way),
        pace=pace,
        model=dice.choices(tuple(MODELS), tuple(MODELS.values()))[0] if choices == 1 else "wide",
        is_relayed=not way.is_http and dice.random() < 0.25,
        is_chat=is_chat,
        is_batch=dice.random() < 0.25,
        choices=choices,
        tenant=f"tenant-{dice.randrange(_TENANTS)}",
        wants_details=wants_details,
        queue_events=not way.is_http and dice.random() < 0.3,
        deadline_s=_deadline_s(dice),
        time_limit_s=None if dice.random() > 0.1 else dice.uniform(0.02, 1.5),
    )


def _behaviour(dice: random.Random, way: Way) -> Behaviour | None:
    kind = dice.random()
    if kind < 0.25:
        cancels = () if way.is_http else (How.CANCEL, How.CANCEL_READ) * 3
        breaks = (How.RESET, How.CLOSE, How.HALF_CLOSE) if way.is_http else _BREAKS
        return Leave(how=dice.choice((*cancels, *breaks)), when=_moment(dice))
    if kind < 0.4 and way is not Way.WHOLE:
        return CancelByName(when=_moment(dice), is_stranger=dice.random() < 0.2)
    return None


def _pace(dice: random.Random) -> Pace:
    """Return that of a reader who freezes, or of one who is slow."""
    if dice.random() < 0.5:
        return Pace(every=dice.randrange(1, 4), pause_s=3.0, times=1, is_tiny=True)
    pause_s = dice.uniform(0.05, 0.5)
    return Pace(every=dice.randrange(1, 20), pause_s=pause_s, times=6, is_tiny=dice.random() < 0.5)


_BREAKS: Final = (How.RESET, How.CLOSE, How.HALF_CLOSE, How.FREEZE)


def _moment(dice: random.Random) -> Moment:
    """Return a moment in any phase: at once, in the line, before headers, in prefill, while decoding, at the end."""
    match dice.randrange(8):
        case 0:
            return Moment(seconds=dice.uniform(0, 0.004))
        case 1:
            return Moment(seconds=dice.uniform(0.005, 0.3))
        case 2:
            return Moment(seconds=5, kind="queued")
        case 3:
            return Moment(seconds=5, kind="started")
        case 4:
            return Moment(seconds=5, kind="choice_finished")
        case 5:
            return Moment(seconds=5, kind="completed")
        case 6:
            return Moment(seconds=dice.uniform(0.1, 2))
        case _:
            return Moment(seconds=5, events=dice.randrange(1, 30))


def _deadline_s(dice: random.Random) -> float:
    """Return mostly a generous deadline, else one from 1 ms to 3 s, as often below a tenth of a second as above."""
    return GENEROUS_S if dice.random() < 0.8 else 0.001 * 3000 ** dice.random()


def _script(dice: random.Random, number: int) -> Script:
    kinds, mark = dice.randrange(4), f"{number}"
    count = dice.randrange(1, 60)
    stop = None
    match kinds:
        case 0:
            pieces = [f"<{mark}:{at}>".encode() for at in range(count)]
            stop = pieces[dice.randrange(count)].decode() if dice.random() < 0.3 else None
        case 1:
            pieces = [f"{_WIDE}{mark}:{at}".encode() for at in range(count)]
        case 2:
            pieces = _cut(f"{mark}{_WIDE}".encode() * 5, dice)
        case _:
            pieces = [f" {mark}:{at}".encode() for at in range(count)]
    output_tokens = dice.randrange(1, 80)
    fault = dice.choice(_FAULTS) if dice.random() < 0.2 else "none"
    is_at_once = dice.random() < 0.3
    return Script(
        pieces=tuple(pieces),
        output_tokens=output_tokens,
        limit=dice.choice((4000, 4000, dice.randrange(1, 80))),
        queue_ms=dice.choice((0, 0, dice.randrange(100))),
        prefill_ms=1500 if dice.random() < 0.01 else dice.choice((0, dice.randrange(300), dice.randrange(40))),
        token_ms=dice.choice((0, 1, 5, dice.randrange(40))),
        fault=fault,
        fault_after=0 if fault == "none" or is_at_once else dice.randrange(output_tokens + 1),
        stop=stop,
    )


def _big_tokens(dice: random.Random, number: int, choices: int) -> Script:
    """Return more than the kernel's buffers hold, faster than anybody reads."""
    pieces = tuple(f"[{number}:{at}]{_BIG}".encode() for at in range(4))
    return Script(pieces=pieces, output_tokens=3500 // choices, limit=4000, prefill_ms=dice.randrange(20))


def _many_tokens(dice: random.Random, number: int) -> Script:
    """Return more tokens with details than wait for a reader, so that they are joined."""
    pieces = tuple(f"[{number}:{at}]".encode() for at in range(200))
    return Script(pieces=pieces, output_tokens=dice.randrange(300, 2000), limit=4000, prefill_ms=dice.randrange(20))


def _cut(data: bytes, dice: random.Random) -> list[bytes]:
    """Cut anywhere, also within characters."""
    pieces = []
    while data:
        length = dice.randrange(1, 4)
        pieces.append(data[:length])
        data = data[length:]
    return pieces
