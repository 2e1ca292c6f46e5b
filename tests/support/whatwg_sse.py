"""An event stream decoder by the letter of the HTML standard (server-sent events), for raw bytes in any pieces.

It shares nothing with the gateway's own writer. What the standard lets a
reader skip in silence (a field that it does not define, an event that the
end of the stream cuts) is kept in `oddities`, so that a test can demand that
there are none.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field

__all__ = ["Event", "EventStreamDecoder", "decode"]


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event: its type, its data, and the last event id at that moment."""

    type: str
    data: str
    last_event_id: str


@dataclass(slots=True)
class EventStreamDecoder:
    """Decodes one stream. `feed` takes bytes as they come; `close` says that no more come."""

    last_event_id: str = ""
    retry_ms: int | None = None
    comments: list[str] = field(default_factory=list)
    oddities: list[str] = field(default_factory=list)
    # The standard's decoder replaces what is no UTF-8; a replaced byte shows in the text.
    _bytes: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    _line: list[str] = field(default_factory=list)
    _is_first: bool = True
    _after_cr: bool = False
    _id: str = ""
    _type: str = ""
    _data: str = ""
    _has_fields: bool = False

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete."""
        return self._characters(self._bytes.decode(data))

    def close(self) -> list[Event]:
        """Return the events that the end completes; an unfinished one is dropped, as the standard says."""
        events = self._characters(self._bytes.decode(b"", final=True))
        if self._line or self._has_fields:
            self.oddities.append("the stream ends within an event")
        return events

    def _characters(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            if self._is_first:
                self._is_first = False
                if character == "\ufeff":
                    continue
            if character == "\n" and self._after_cr:
                self._after_cr = False
                continue
            self._after_cr = character == "\r"
            if character not in "\r\n":
                self._line.append(character)
                continue
            line = "".join(self._line)
            self._line.clear()
            if line:
                self._process(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        return events

    def _process(self, line: str) -> None:
        if line.startswith(":"):
            self.comments.append(line[1:])
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        self._has_fields = True
        match name:
            case "data":
                self._data += value + "\n"
            case "event":
                self._type = value
            case "id":
                if "\0" in value:
                    self.oddities.append("an id with NUL")
                else:
                    self._id = value
            case "retry":
                if value.isascii() and value.isdigit():
                    self.retry_ms = int(value)
                else:
                    self.oddities.append(f"retry is no number: {value!r}")
            case _:
                self.oddities.append(f"no such field: {name!r}")

    def _dispatch(self) -> Event | None:
        self.last_event_id = self._id
        kind, data, had_fields = self._type, self._data, self._has_fields
        self._type, self._data, self._has_fields = "", "", False
        if not data:
            if had_fields:
                self.oddities.append("a blank line after fields without data")
            return None
        return Event(kind or "message", data.removesuffix("\n"), self.last_event_id)


def decode(*pieces: bytes) -> tuple[list[Event], EventStreamDecoder]:
    """Return the events of a whole stream that came in `pieces`, and the decoder after its end."""
    decoder = EventStreamDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.close(), decoder
