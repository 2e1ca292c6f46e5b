r"""The notation of the bug reports for what a Triton does, as a script of the fake one.

Items stand apart by commas:

    "text"        one response of one token; \xNN is a byte, \n \t \\ \" as usual
    "x"x2000      2000 such responses;  "x"*2000  one token of 2000 times that text
    FIN FIN(why)  the final response without output; `length`: the limit is the number of tokens
    FIN+"x"       text and the final flag in one response
    ERR(CODE,"x") the call ends with a gRPC status;  ERR("x")  an error in the stream, as Triton sends it
    DROP          the TCP connection breaks;  CLOSE  the stream ends well, without the final flag
    HANG          nothing more comes
    @0.5          a pause of so many seconds before what follows (also behind an item: before that item)
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import grpc
import numpy as np

from tests.support.triton_fake import Abort, Do, Drop, Error, Hang, Says, Step
from tests.support.triton_fake import Final as FinalStep

__all__ = ["Played", "Script", "says_ids", "script"]

_ITEM: Final = re.compile(
    r"""\s*(?:
      (?P<fin>FIN)(?:\((?P<why>\w*)\))?(?:\+"(?P<last>(?:[^"\\]|\\.)*)")?
      | ERR\((?:(?P<code>[A-Z_]+)\s*,\s*)?"(?P<error>(?:[^"\\]|\\.)*)"\)
      | "(?P<text>(?:[^"\\]|\\.)*)"(?:x(?P<times>\d+)|\*(?P<size>\d+))?
      | (?P<word>DROP|CLOSE|HANG)
    )?\s*(?:@(?P<pause>[\d.]+))?\s*(?:,|$)""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


@dataclass(frozen=True, slots=True)
class Script:
    """Steps of the fake, how many tokens they carry, and whether the limit is what ends them."""

    steps: Sequence[Step]
    tokens: int
    is_length: bool


# What a replay plays: the notation, or steps that it has no word for.
Played = str | Sequence[Step]


async def _nothing() -> None:
    raise AssertionError("this replay has no connection to drop")


def script(notation: Played, drop: Callable[[], Awaitable[object]] = _nothing) -> Script:
    """Return the script that `notation` writes; ValueError for what it is not."""
    if not isinstance(notation, str):
        return Script(notation, 0, is_length=False)
    steps: list[Step] = []
    is_length, at = False, 0
    while at < len(notation):
        found = _ITEM.match(notation, at)
        if found is None or found.end() == at:
            raise ValueError(f"no item of a script: {notation[at : at + 40]!r}")
        at = found.end()
        if found["pause"]:
            steps.append(Do(partial(asyncio.sleep, float(found["pause"]))))
        is_length = is_length or found["why"] == "length"
        steps += _steps(found, drop)
    return Script(tuple(steps), sum(step.tokens for step in steps if isinstance(step, Says)), is_length)


def says_ids(*ids: int, logprobs: Sequence[float] = ()) -> Says:
    """Return one response of the token-level model: new token ids, with log-probabilities if they are given."""
    outputs = {
        "output_ids": ("INT32", [1, 1, len(ids)], np.array(ids, np.int32).tobytes()),
        "sequence_length": ("INT32", [1, 1], np.array([len(ids)], np.int32).tobytes()),
    }
    if logprobs:
        outputs["output_log_probs"] = ("FP32", [1, 1, len(logprobs)], np.array(logprobs, np.float32).tobytes())
    return Says(b"", tokens=len(ids), outputs=outputs)


def _steps(found: re.Match[str], drop: Callable[[], Awaitable[object]]) -> Sequence[Step]:
    if found["fin"]:
        return [FinalStep()] if found["last"] is None else [Says(_bytes(found["last"]), is_final=True)]
    if found["text"] is not None:
        return [Says(_bytes(found["text"]) * int(found["size"] or 1))] * int(found["times"] or 1)
    if found["error"] is not None:
        text = _bytes(found["error"]).decode()
        return [Abort(grpc.StatusCode[found["code"]], text) if found["code"] else Error(text, is_final=True)]
    match found["word"]:
        case "DROP":
            return [Do(drop), Hang()]
        case "CLOSE":
            return [Drop()]
        case "HANG":
            return [Hang()]
        case _:
            return []


def _bytes(text: str) -> bytes:
    def unescape(found: re.Match[bytes]) -> bytes:
        what = found[1]
        return bytes([int(what[1:], 16)]) if len(what) == 3 else _ESCAPES.get(what, what)

    return _ESCAPE.sub(unescape, text.encode())
