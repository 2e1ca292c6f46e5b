"""The terminal of `headrace top`: keys, the live screen, and leaving the terminal as it was."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final

from rich.console import Console
from rich.live import Live

from headrace.cli._top_monitor import Snapshot
from headrace.cli._top_view import View

__all__ = ["show"]

_STEPS: Final = {"\t": 1, "\x1b[B": 1, "\x1b[A": -1}  # Tab, down, up
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)


def show(console: Console, snapshots: Iterable[Snapshot | None]) -> None:
    """Show each snapshot until `q`. The items that are None give keys and sizes their turn: there are many."""
    is_suspended = False

    def suspend(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_suspended
        is_suspended = True

    snapshot: Snapshot | None = None
    first, size, is_drawn = 0, console.size, False
    with _signals(suspend), _Terminal(console) as terminal:
        for new in snapshots:
            if is_suspended:
                is_suspended = False
                terminal.suspend()
                is_drawn = False
            keys = _keys()
            if "q" in keys or "Q" in keys:
                return
            step = sum(_STEPS.get(key, 0) for key in keys)
            first, snapshot = first + step, new or snapshot
            if snapshot is not None and (new is not None or step or size != console.size or not is_drawn):
                size, is_drawn = console.size, True
                terminal.draw(View(snapshot, first))


class _Terminal:
    """The screen beside the one with the shell's lines, and keys that come without Enter, for the length of a block."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._modes: Any = None

    def __enter__(self) -> _Terminal:
        self._begin()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def draw(self, view: View) -> None:
        """Draw it now."""
        self._live.update(view, refresh=True)

    def suspend(self) -> None:
        """Stop the process, as Ctrl-Z does, and go on when the shell wants it."""
        self._end()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._begin()

    def _begin(self) -> None:
        self._modes = _take_keys()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._live.start()

    def _end(self) -> None:
        self._live.stop()
        _give_keys_back(self._modes)


@contextlib.contextmanager
def _signals(suspend: Any) -> Iterator[None]:
    """Have SIGTERM unwind, so that the terminal is given back, and Ctrl-Z come at a good moment."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    wanted = {signal.SIGTERM: end}
    if hasattr(signal, "SIGTSTP"):
        wanted[signal.SIGTSTP] = suspend
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _take_keys() -> Any:
    """Have keys come at once and unseen; return the modes of before, None where there is no terminal to read."""
    try:
        import termios
        import tty

        if not sys.stdin.isatty():
            return None
        modes = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
    except (ModuleNotFoundError, OSError, ValueError):  # Windows; a standard input that is closed
        return None
    return modes


def _give_keys_back(modes: Any) -> None:
    if modes is not None:
        import termios

        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


def _keys() -> list[str]:
    """Return the keys pressed since the last call; `q` where the terminal is gone."""
    try:
        if not sys.stdin.isatty() or not select.select([sys.stdin], [], [], 0)[0]:
            return []
        pressed = os.read(sys.stdin.fileno(), 256)
    except (OSError, ValueError):
        return []
    return _KEY.findall(pressed.decode(errors="ignore")) if pressed else ["q"]
