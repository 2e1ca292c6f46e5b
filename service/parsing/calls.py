"""Finds tool calls in what a model writes: one state machine, and a shape per format.

A shape says how calls are marked; what is inside the mark is read by `CallObject`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from service.parsing.base import Piece
from service.parsing.call_object import CallObject, Status
from service.parsing.json_values import skip_whitespace
from service.parsing.marks import mark_at, tail_of
from service.parsing.prefixed_call import PrefixedCall
from service.parsing.writer import PieceWriter

__all__ = ["CallParser", "Shape"]

_FENCE: Final = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How calls stand in the output.

    `opener` and `closer` mark them; `is_bare`: the answer may also begin with a
    call, unmarked; `has_fences`: and that in a Markdown fence. `checks_names`: what
    names no known function is no call, marked or not. `has_prefixed_names`:
    `name{...}` may stand behind the opener. `separators` may stand between calls,
    besides whitespace. `is_whole`: there is nothing but the calls.
    """

    opener: str = ""
    closer: str = ""
    separators: str = ","
    is_bare: bool = False
    has_fences: bool = False
    checks_names: bool = False
    has_prefixed_names: bool = False
    is_whole: bool = False


class CallParser:
    """An `OutputParser` for one `Shape`.

    `names` are the functions there are; without `parallel` the first call is the last thing.
    """

    def __init__(self, shape: Shape, *, names: frozenset[str], parallel: bool) -> None:
        self._shape = shape
        self._names = names
        self._parallel = parallel
        self._writer = PieceWriter()
        # Read, and not written while it may become a call.
        self._held: list[str] = []
        # Not even read: it may become a mark.
        self._partial = ""
        self._call: CallObject | PrefixedCall | None = None
        self._in_list = False
        self._in_fence = False
        self._is_bare = shape.is_bare
        self._is_broken = False
        # A call has ended, and its closer has not come yet.
        self._is_unclosed = False
        self._is_complete = False
        self._expected: Mapping[str, Callable[[], None]] = {}
        self._step: Callable[[str, int], int] = self._in_text
        if shape.is_bare:
            fence = {_FENCE: self._enter_fence} if shape.has_fences else {}
            opener = {shape.opener: self._enter_mark} if shape.opener else {}
            self._expect({**opener, **fence, **self._values()})

    @property
    def calls(self) -> int:
        """Tool calls begun so far."""
        return self._writer.calls

    @property
    def is_complete(self) -> bool:
        """True once nothing may follow."""
        return self._is_complete

    @property
    def is_reasoning(self) -> bool:
        """False: this parser knows none."""
        return False

    def feed(self, text: str) -> list[Piece]:
        """Return what is certain now that `text` has arrived."""
        if self._is_complete:
            return []
        if self._partial:
            text, self._partial = self._partial + text, ""
        at, end = 0, len(text)
        while at < end:
            at = self._step(text, at)
        return self._writer.take()

    def flush(self) -> list[Piece]:
        """Return what was held back."""
        rest, self._partial = self._partial, ""
        if self._is_complete:
            return []
        if self._call is not None and self._call.is_begun:
            self._call.flush()
        if self._is_broken:
            self._writer.arguments(rest)
        else:
            held = "".join(self._held)
            # A comma behind a call is part of the list that was cut.
            is_list_cut = self._in_list and self.calls and not held.strip(f" \t\r\n{self._shape.separators}")
            self._writer.text(rest if is_list_cut else held + rest)
        return self._writer.flush()

    def _in_text(self, text: str, at: int) -> int:
        opener = self._shape.opener
        if not opener:
            self._writer.text(text[at:])
            return len(text)
        found = text.find(opener, at)
        if self._is_unclosed:
            closer = self._shape.closer
            closed = text.find(closer, at, found if found >= 0 else len(text))
            if closed >= 0:
                self._writer.text(text[at:closed])
                self._leave()
                return closed + len(closer)
        if found >= 0:
            self._writer.text(text[at:found])
            self._held.append(opener)
            self._enter_mark()
            return found + len(opener)
        found = tail_of(text, at, opener)
        if self._is_unclosed:
            found = min(found, tail_of(text, at, self._shape.closer))
        self._partial = text[found:]
        self._writer.text(text[at:found])
        return len(text)

    def _expect(self, expected: Mapping[str, Callable[[], None]]) -> None:
        """After whitespace one of these has to come; anything else means that what is held is text."""
        self._expected = expected
        self._step = self._in_expectation

    def _in_expectation(self, text: str, at: int) -> int:
        start, at = at, skip_whitespace(text, at)
        if at > start:
            self._held.append(text[start:at])
        if at == len(text):
            return at
        mark = mark_at(text, at, self._expected)
        if mark is None:
            return self._give_back(at)
        if not mark:
            self._partial = text[at:]
            return len(text)
        self._held.append(mark)
        self._expected[mark]()
        return self._end_of(text, at + len(mark))

    def _end_of(self, text: str, at: int) -> int:
        return len(text) if self._is_complete else at

    def _give_back(self, at: int) -> int:
        self._writer.text("".join(self._held))
        is_unclosed = self._is_unclosed
        self._leave()
        self._is_unclosed = is_unclosed
        return at

    def _leave(self) -> None:
        """Go on behind a call, or behind what turned out to be none."""
        self._held.clear()
        self._call = None
        self._in_list = self._in_fence = self._is_bare = self._is_broken = self._is_unclosed = False
        self._step = self._in_text

    def _values(self) -> dict[str, Callable[[], None]]:
        return {"{": self._enter_object, "[": self._enter_list}

    def _enter_mark(self) -> None:
        self._is_bare = self._is_unclosed = False
        self._expect(self._values())
        if self._shape.has_prefixed_names:
            self._step = self._before_name

    def _enter_fence(self) -> None:
        self._in_fence = True
        self._expect({"json": lambda: self._expect(self._values()), **self._values()})

    def _enter_list(self) -> None:
        self._in_list = True
        self._expect({"{": self._enter_object})

    def _enter_object(self) -> None:
        is_checked = self._shape.checks_names or (self._is_bare and not self._shape.is_whole)
        self._call = CallObject(self._writer, self._names if is_checked else None)
        self._step = self._in_call

    def _in_call(self, text: str, at: int) -> int:
        call = self._call
        assert call is not None  # entered with one
        start, at = at, call.feed(text, at)
        if call.is_begun:
            self._held.clear()
        else:
            self._held.append(text[start:at])
        match call.status:
            case Status.OPEN:
                self._partial = text[at:]
                return len(text)
            case Status.FAILED:
                return self._give_back(at)
            case Status.BROKEN:
                self._writer.arguments(call.tail)
                self._call = None
                self._is_broken = True
                self._step = self._in_broken
                return at
            case Status.DONE:
                self._call = None
                self._end_call(call.tail)
                return self._end_of(text, at)

    def _end_call(self, tail: str = "") -> None:
        if not self._parallel or (self._shape.is_whole and not self._in_list):
            self._is_complete = True
            return
        self._writer.text(tail)
        self._is_unclosed = bool(self._shape.closer)
        expected = {"{": self._enter_object, **dict.fromkeys(self._shape.separators, self._enter_next)}
        if self._in_list:
            expected["]"] = self._end_list
        self._expect({**expected, **self._closers()})

    def _enter_next(self) -> None:
        self._expect({"{": self._enter_object})

    def _end_list(self) -> None:
        self._held.clear()
        self._in_list = False
        closers = self._closers()
        if closers:
            self._expect(closers)
        else:
            self._leave()
        self._is_complete = self._shape.is_whole

    def _closers(self) -> dict[str, Callable[[], None]]:
        closer = self._shape.closer or (_FENCE if self._in_fence else "")
        return {closer: self._leave} if closer else {}

    def _in_broken(self, text: str, at: int) -> int:
        for closer in self._closers():
            found = text.find(closer, at)
            if found >= 0:
                self._writer.arguments(text[at:found])
                self._writer.end()
                self._leave()
                self._is_complete = self._is_complete or not self._parallel
                return self._end_of(text, found + len(closer))
            found = tail_of(text, at, closer)
            self._partial = text[found:]
            self._writer.arguments(text[at:found])
            return len(text)
        self._writer.arguments(text[at:])
        return len(text)

    def _before_name(self, text: str, at: int) -> int:
        start, at = at, skip_whitespace(text, at)
        if at > start:
            self._held.append(text[start:at])
        if at < len(text):
            if text[at] in self._expected:
                self._step = self._in_expectation
            else:
                self._call = PrefixedCall(self._writer)
                self._step = self._in_call
        return at
