"""Whether this machine can run the CPU Triton, and with which library path."""

from __future__ import annotations

import ctypes
import platform
import sys
import sysconfig
from pathlib import Path

__all__ = ["libpython_folder", "why_not"]

_GLIBC = (2, 35)
_PYTHONS = ((3, 11), (3, 13))


def why_not() -> str | None:
    """Return one line that says why Triton cannot run here, or None if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"needs Linux on x86-64; this is {platform.system()} on {platform.machine()}"
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < _GLIBC:
        return f"needs glibc {_GLIBC[0]}.{_GLIBC[1]} or later; this is {name or 'another libc'} {version}"
    if not _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        return f"needs Python 3.11 to 3.13; this is {platform.python_version()}"
    if libpython_folder() is None:
        return f"needs the shared library {_libpython()}; install the package of your system that has it"
    return None


def libpython_folder() -> str | None:
    """Return the folder of libpython, "" when the loader finds it by itself, None when there is none."""
    folder = sysconfig.get_config_var("LIBDIR") or ""
    if folder and (Path(folder) / _libpython()).exists():
        return folder
    try:
        ctypes.CDLL(_libpython())
    except OSError:
        return None
    return ""


def _libpython() -> str:
    return f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
