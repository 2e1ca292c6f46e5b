"""What the simulator plays in a storm, and what has to come of it: the text, the ids, the end.

Pure, and told apart from the simulator: it says what `service/backends/simulator.py` promises,
and shares no code with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

__all__ = ["ChoiceText", "Script"]

# Beyond the simulator's own words: ids of a script's tokens begin anew there.
_ID_COUNT: Final = 256
_LOGPROB: Final = -0.5
_REPLACEMENT: Final = "\ufffd"
_FROM_OUTSIDE: Final = {"TIME_LIMIT", "CANCELLED"}


@dataclass(frozen=True, kw_only=True)
class Script:
    """One run of the simulator. Times in milliseconds.

    `pieces` are the bytes of the tokens in turn, `output_tokens` where the model ends by itself, `limit` is
    the request's max_output_tokens. `fault` happens after `fault_after` tokens. `stop` is a stop string: the text
    of one piece, and found in no other.
    """

    pieces: tuple[bytes, ...]
    output_tokens: int
    limit: int
    queue_ms: float = 0
    prefill_ms: float = 0
    token_ms: float = 0
    fault: str = "none"
    fault_after: int = 0
    stop: str | None = None

    def prompt(self) -> str:
        """Return the prompt that makes the simulator play it."""
        members: dict[str, Any] = {"tokens": [_written(piece) for piece in self.pieces]}
        members |= {"output_tokens": self.output_tokens, "queue_ms": self.queue_ms, "prefill_ms": self.prefill_ms}
        members |= {"token_ms": self.token_ms, "fault": self.fault, "fault_after": self.fault_after}
        return "simulate: " + json.dumps(members, separators=(",", ":"))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt where it is sent as it is: one a word, and one at the start."""
        return len(self.prompt().split()) + 1

    @property
    def count(self) -> int:
        """Tokens of a run that nothing interferes with."""
        return min(self.output_tokens, self.limit)

    @property
    def reach(self) -> int:
        """Tokens that the engine makes at most."""
        return self.count if self.fault == "none" else min(self.count, self.fault_after)

    @property
    def stop_at(self) -> int | None:
        """Tokens up to the end of the stop string; None if it does not come."""
        if self.stop is None:
            return None
        at = self.pieces.index(self.stop.encode())
        return at + 1 if at < self.reach else None

    @property
    def own_end(self) -> tuple[str, int] | None:
        """Finish reason and tokens of a choice that is left to itself; None if it fails."""
        if self.stop_at is not None:
            return "STOP", self.stop_at
        if self.fault != "none":
            return None
        return ("LENGTH" if self.count >= self.limit else "STOP"), self.count

    @property
    def first_silence_s(self) -> float:
        """Longest silence of the engine before its first token; infinite if there is none."""
        if self.fault == "hang" and self.reach == 0:
            return float("inf")
        return max(self.queue_ms, self.prefill_ms) / 1000

    @property
    def gap_s(self) -> float:
        """Longest silence of the engine behind a token."""
        return float("inf") if self.fault == "hang" and self.reach > 0 else self.token_ms / 1000

    def data(self, tokens: int) -> bytes:
        """Return the bytes of the first tokens."""
        rounds, rest = divmod(tokens, len(self.pieces))
        return b"".join(self.pieces) * rounds + b"".join(self.pieces[:rest])

    def text(self, tokens: int) -> str:
        """Return the text of a choice that ended after so many tokens; a stop string is left out."""
        if tokens == self.stop_at:
            tokens -= 1
        return self.data(tokens).decode(errors="replace")

    @cached_property
    def whole(self) -> str:
        """The text of all that may come."""
        return self.text(self.reach if self.stop_at is None else self.stop_at)

    @cached_property
    def has_whole_characters(self) -> bool:
        """Whether every token is text by itself."""
        return all(_is_text(piece) for piece in self.pieces)

    def token_id(self, at: int) -> int:
        """Return the id of a token, from 0."""
        return at % len(self.pieces) % _ID_COUNT


class ChoiceText:
    """Follows one choice of an answer against its script. Methods return what is wrong, None if nothing is."""

    __slots__ = ("_is_cut", "_script", "chars", "finish", "ids", "logprobs", "tokens")

    def __init__(self, script: Script) -> None:
        self._script = script
        self._is_cut = False
        self.chars = 0
        self.ids = 0
        self.logprobs = 0
        self.finish: str | None = None
        self.tokens: int | None = None

    def add_text(self, text: str) -> str | None:
        """Take the next piece of text."""
        if not text:
            return None
        if self.finish is not None:
            return f"text behind the end of the choice: {text[:40]!r}"
        if self._is_cut:
            return f"text behind a character that was cut: {text[:40]!r}"
        whole = self._script.whole
        if not whole.startswith(text, self.chars):
            self._is_cut = text.endswith(_REPLACEMENT) and whole.startswith(text[:-1], self.chars)
            if not self._is_cut:
                expected = whole[self.chars : self.chars + min(len(text), 60)]
                return f"text at character {self.chars}: {text[:60]!r} in place of {expected!r}"
        self.chars += len(text)
        return None

    def add_ids(self, ids: Sequence[int]) -> str | None:
        """Take the ids of a delta."""
        expected = [self._script.token_id(self.ids + at) for at in range(len(ids))]
        if list(ids) != expected:
            return f"token ids from token {self.ids} on: {list(ids)[:8]} in place of {expected[:8]}"
        self.ids += len(ids)
        return self._check_place(self.ids, "ids")

    def add_logprob(self, raw: bytes, logprob: float, token_id: int | None = None) -> str | None:
        """Take one log probability; `token_id` where it is told."""
        script, at = self._script, self.logprobs
        expected = script.pieces[at % len(script.pieces)]
        self.logprobs += 1
        if raw != expected:
            return f"log-prob of token {at}: {raw[:40]!r} in place of {expected[:40]!r}"
        if token_id not in (None, script.token_id(at)):
            return f"log-prob of token {at}: id {token_id} in place of {script.token_id(at)}"
        return None if logprob == _LOGPROB else f"log-prob of token {at}: {logprob} in place of {_LOGPROB}"

    def check_places(self) -> str | None:
        """Check that log-probs and text of a delta belong together."""
        return self._check_place(self.logprobs, "log-probs")

    def _check_place(self, tokens: int, what: str) -> str | None:
        if self._script.has_whole_characters and self.finish is None:
            chars = len(self._script.data(tokens).decode())
            if chars != self.chars:
                return f"{what} of {tokens} tokens with {self.chars} characters of text in place of {chars}"
        return None

    def end(self, finish: str, tokens: int | None, *, has_ids: bool, has_logprobs: bool) -> str | None:
        """Take the end of the choice: its reason as the contract names it, and its token count where it is told."""
        if self.finish is not None:
            return f"a second end of the choice: {finish} behind {self.finish}"
        self.finish = finish
        script = self._script
        if finish in _FROM_OUTSIDE:
            if tokens is not None and tokens > script.reach:
                return f"{finish} after {tokens} tokens, of {script.reach} that there are"
        elif script.own_end is None:
            return f"{finish}, though the engine fails after {script.reach} tokens"
        elif (finish, tokens if tokens is not None else script.own_end[1]) != script.own_end:
            return f"{finish} after {tokens} tokens in place of {script.own_end}"
        else:
            tokens = script.own_end[1]
        self.tokens = tokens
        if tokens is None:
            return None
        if (problem := self.check_count(tokens)) is not None:
            return problem
        shown = tokens - 1 if tokens == script.stop_at else tokens
        if has_ids and self.ids != shown:
            return f"{finish} after {tokens} tokens with {self.ids} ids"
        if has_logprobs and self.logprobs != shown:
            return f"{finish} after {tokens} tokens with {self.logprobs} log-probs"
        return None

    def check_count(self, tokens: int) -> str | None:
        """Check that the text is that of so many tokens, the choice having ended."""
        expected = self._script.text(tokens)
        if self.chars != len(expected) or self._is_cut == self._script.whole.startswith(expected):
            return (
                f"{self.finish} after {tokens} tokens with {self.chars} characters of text in place of {len(expected)}"
            )
        return None


def _written(piece: bytes) -> str:
    """Return a token as scripts write it: bytes that are no text by themselves as `\\xNN`."""
    return piece.decode() if _is_text(piece) else "".join(f"\\x{byte:02x}" for byte in piece)


def _is_text(piece: bytes) -> bool:
    try:
        return "\\x" not in piece.decode()
    except UnicodeDecodeError:
        return False
