"""The conformance program of each client: how it is started, and what it needs to be there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CLIENTS", "Client"]

ROOT: Final = Path(__file__).resolve().parents[2]
CLIENTS_FOLDER: Final = ROOT / "clients"


@dataclass(frozen=True, slots=True)
class Client:
    """One client. `command` runs its program; `needs` is what its build leaves, or None where it needs none."""

    name: str
    command: tuple[str, ...]
    needs: Path | None = None
    made_by: str = ""

    @property
    def is_there(self) -> bool:
        """Whether its program can be started."""
        return self.needs is None or self.needs.exists()


_GO: Final = CLIENTS_FOLDER / "go" / "bin" / "conformance"
_JAVA: Final = CLIENTS_FOLDER / "java" / "target" / "lib"
_TYPESCRIPT: Final = CLIENTS_FOLDER / "typescript" / "build" / "conformance.js"
_PYTHON: Final = str(CLIENTS_FOLDER / "python" / "conformance.py")

CLIENTS: Final = (
    Client("python", (sys.executable, _PYTHON, "asyncio")),
    Client("python-sync", (sys.executable, _PYTHON, "sync")),
    Client("python-grpcio", (sys.executable, _PYTHON, "grpcio")),
    Client("typescript", ("node", str(_TYPESCRIPT)), _TYPESCRIPT, "make clients-typescript"),
    Client("java", (str(CLIENTS_FOLDER / "java" / "conformance"),), _JAVA, "make clients-java"),
    Client("go", (str(_GO),), _GO, "make clients-go"),
)
