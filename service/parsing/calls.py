"""Finds tool calls in what a model writes: one state machine, and a shape per format.

A shape says how calls are marked; what is inside the mark is read by `CallObject`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from service.parsing.base import Piece
from service.parsing.call_object import CallObject, Status
from service.parsing.json_values import skip_whitespace
from service.parsing.marks import mark_at, tail_of
from service.parsing.prefixed_call import PrefixedCall
from service.parsing.shape import Shape
from service.parsing.writer import PieceWriter

__all__ = ["CallParser"]

_FENCE: Final = "```"


class CallParser:
    """An `OutputParser` for one `Shape`.

    `names` are the functions there are, and what names another one is text: a
    caller could not answer it, nor send it back. Without `parallel` the first call
    is the last thing.
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
        # Nothing but what may stand behind a call has come since.
        self._is_behind_call = False
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
    def is_call_open(self) -> bool:
        """True while the arguments of the call begun last are not whole."""
        call = self._call
        return self._is_broken or (call is not None and call.is_begun and not call.is_whole)

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
            # Brackets behind a call, and a comma in a list that was cut.
            separators = self._shape.separators if self._in_list else ""
            is_remains = self._is_behind_call and not held.strip(f" \t\r\n}}]{separators}")
            self._writer.text(rest if is_remains else held + rest)
        return self._writer.flush()

    def _in_text(self, text: str, at: int) -> int:
        opener = self._shape.opener
        if not opener:
            self._writer.text(text[at:])
            return len(text)
        end = len(text)
        found = text.find(opener, at)
        if self._is_unclosed:
            closer = self._shape.closer
            closed = text.find(closer, at, found if found >= 0 else end)
            if closed >= 0:
                self._writer.text(text[at:closed], end - closed)
                self._close()
                return closed + len(closer)
        if found >= 0:
            self._writer.text(text[at:found], end - found)
            self._held.append(opener)
            self._enter_mark()
            return found + len(opener)
        found = tail_of(text, at, opener)
        if self._is_unclosed:
            found = min(found, tail_of(text, at, self._shape.closer))
        self._partial = text[found:]
        self._writer.text(text[at:found], end - found)
        return end

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
            return self._give_back(text, at)
        if not mark:
            self._partial = text[at:]
            return len(text)
        self._held.append(mark)
        self._expected[mark]()
        return self._end_of(text, at + len(mark))

    def _end_of(self, text: str, at: int) -> int:
        return len(text) if self._is_complete else at

    def _give_back(self, text: str, at: int) -> int:
        self._writer.text("".join(self._held), len(text) - at)
        is_unclosed = self._is_unclosed
        self._leave()
        self._is_unclosed = is_unclosed
        return at

    def _leave(self) -> None:
        """Go on behind a call, or behind what turned out to be none."""
        self._held.clear()
        self._call = None
        self._in_list = self._in_fence = self._is_bare = self._is_broken = False
        self._is_unclosed = self._is_behind_call = False
        self._step = self._in_text

    def _close(self) -> None:
        """Go on behind the mark that closes a call."""
        self._writer.drop_spaces()
        self._leave()

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
        shape = self._shape
        # What was forced says nothing else, and a string in it is what the schema asks for.
        is_strict = shape.is_strict or (self._is_bare and not shape.is_whole)
        self._call = CallObject(self._writer, self._names, is_strict=is_strict, unquotes=not shape.is_whole)
        self._is_behind_call = False
        self._step = self._in_call

    def _in_call(self, text: str, at: int) -> int:
        call = self._call
        assert call is not None  # entered with one
        written = self._writer.written
        start, at = at, call.feed(text, at)
        rest = len(text) - at
        if self._writer.written > written:
            # The tail may become text.
            self._writer.place(written, rest + len(call.tail))
        if call.is_begun:
            self._held.clear()
        else:
            self._held.append(text[start:at])
        match call.status:
            case Status.OPEN:
                self._partial = text[at:]
                return len(text)
            case Status.FAILED:
                return self._give_back(text, at)
            case Status.BROKEN:
                self._writer.arguments(call.tail, rest)
                self._call = None
                self._is_broken = True
                self._step = self._in_broken
                return at
            case Status.DONE:
                self._call = None
                self._end_call(call.tail, rest)
                return self._end_of(text, at)

    def _end_call(self, tail: str, rest: int) -> None:
        if not self._parallel or (self._shape.is_whole and not self._in_list):
            self._is_complete = True
            return
        self._writer.text(tail, rest)
        self._is_unclosed = bool(self._shape.closer)
        self._is_behind_call = True
        expected = {"{": self._enter_object, **dict.fromkeys(self._shape.separators, self._enter_next)}
        if self._in_list:
            expected["]"] = self._end_list
        self._expect_end(expected)

    def _expect_end(self, expected: Mapping[str, Callable[[], None]]) -> None:
        """After brackets too many, which models write more often than text right behind a call, as well."""
        self._expect({**dict.fromkeys("}]", self._pass_by), **self._closers(), **expected})

    def _pass_by(self) -> None:
        """Expect the same again."""

    def _enter_next(self) -> None:
        self._expect({"{": self._enter_object})

    def _end_list(self) -> None:
        self._held.clear()
        self._writer.drop_spaces()
        self._in_list = False
        self._expect_end({})
        self._is_complete = self._shape.is_whole

    def _closers(self) -> dict[str, Callable[[], None]]:
        closer = self._shape.closer or (_FENCE if self._in_fence else "")
        return {closer: self._close} if closer else {}

    def _in_broken(self, text: str, at: int) -> int:
        for closer in self._closers():
            found = text.find(closer, at)
            if found >= 0:
                self._writer.arguments(text[at:found], len(text) - found)
                self._writer.end()
                self._close()
                self._is_complete = self._is_complete or not self._parallel
                return self._end_of(text, found + len(closer))
            found = tail_of(text, at, closer)
            self._partial = text[found:]
            self._writer.arguments(text[at:found], len(text) - found)
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
                self._call = PrefixedCall(self._writer, self._names)
                self._step = self._in_call
        return at
