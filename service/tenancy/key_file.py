"""The keys file on disk: read at the start, and again when it has changed."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Final

from service.tenancy.keys import KeySet, KeysFileError, parse_keys

__all__ = ["KeyFile"]

logger = logging.getLogger("headrace.service")

_LOOK_S: Final = 1.0
# A revocation that is not in effect is worth saying again.
_REMIND_S: Final = 60.0
_SHOWN_PROBLEMS: Final = 10

_Stamp = tuple[int, int, int, int]


class KeyFile:
    """Keys that follow their file.

    A thread of its own looks at the file's times once a second, so that neither calls
    nor the event loop wait for a disk: what is revoked is refused about a second
    later. A file that is gone or wrong changes nothing, and is reported until it is
    mended.
    """

    def __init__(self, path: Path, *, look_s: float = _LOOK_S) -> None:
        """Read the file. Raises `KeysFileError`."""
        self._path = path
        self._look_s = look_s
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._told_s: float | None = None
        self._stamp = self._stamped()
        self._keys = self._read()

    @property
    def keys(self) -> KeySet:
        """The keys now in effect."""
        return self._keys

    def start(self) -> None:
        """Begin to look for changes."""
        # A daemon: a disk that does not answer must not hold up the end of the process.
        self._thread = threading.Thread(target=self._watch, name="keys-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no longer."""
        self._is_closed.set()

    def look(self) -> None:
        """Take the file's keys if it has changed; what is wrong with it is logged."""
        stamp = self._stamped()
        is_due = self._told_s is not None and time.monotonic() - self._told_s >= _REMIND_S
        if stamp == self._stamp and not is_due:
            return
        try:
            self._keys = self._read()
        except KeysFileError as error:
            self._told_s = time.monotonic()
            shown = "; ".join(error.problems[:_SHOWN_PROBLEMS])
            logger.error("the keys file cannot be used, and the keys read before stay in effect: %s", shown)
        else:
            self._told_s = None
            logger.info("the keys file has changed", extra={"entries": len(self._keys)})
        self._stamp = stamp

    def _watch(self) -> None:
        while not self._is_closed.wait(self._look_s):
            try:
                self.look()
            except Exception:
                logger.exception("the keys file could not be looked at")

    def _stamped(self) -> _Stamp | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        # The third for rights that were mended, the last for a new file in its place.
        return found.st_mtime_ns, found.st_size, found.st_ctime_ns, found.st_ino

    def _read(self) -> KeySet:
        name = str(self._path)
        try:
            text = self._path.read_text("utf-8")
        except (OSError, ValueError) as error:
            told = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise KeysFileError([f"{name}: cannot be read: {told}"]) from None
        return parse_keys(text, name)
