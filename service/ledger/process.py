"""Which process wrote a row, and whether it still lives, as far as that can be told from here."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Process", "is_alive", "this_process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One start of the service.

    `pid` means something within `pid_space` alone: a boot of a host, a PID namespace.
    `pid_mark` tells it from another process that got the same number; empty where
    the system does not show one.
    """

    id: str
    host: str
    pid: int
    pid_space: str
    pid_mark: str


def this_process() -> Process:
    """Return this process, under a new random id."""
    pid, host = os.getpid(), socket.gethostname()
    return Process(
        id=f"proc_{secrets.token_hex(8)}", host=host, pid=pid, pid_space=_pid_space(host), pid_mark=_pid_mark(pid)
    )


def is_alive(other: Process, here: Process) -> bool | None:
    """Return whether it lives; None if that cannot be told from here."""
    # Containers of one host have the same boot and the same small numbers, and often the host's name.
    if other.pid_space != here.pid_space:
        return None
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    return not other.pid_mark or other.pid_mark == _pid_mark(other.pid)


def _pid_space(host: str) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{host} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return host


def _pid_mark(pid: int) -> str:
    """Return when the process started, in clock ticks since the boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # Field 22 of proc(5); the name in parentheses, field 2, may hold spaces and parentheses.
    return stat.rpartition(")")[2].split()[19]
