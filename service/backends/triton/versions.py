"""What depends on the server's version, in one table.

Versions are those of `ServerMetadata` (2.51.0 is release 24.10). A version that
cannot be read counts as the oldest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["SINCE", "Abilities", "abilities_of"]

# Ability -> first version (release): why it matters.
SINCE: Final[Mapping[str, tuple[int, int]]] = {
    # 26.04: the header `triton_grpc_error` turns in-band errors into statuses. Sent to
    # an earlier server it can end the whole server (use after free).
    "grpc_errors": (2, 68),
    # 25.04: a Python model can cancel the request it sent to another one, so that a BLS
    # written for it passes a cancel on. Before, none can.
    "bls_cancel": (2, 57),
    # 25.12: ModelReady turns false when a Python model's process has died. Before, only
    # a generation shows it.
    "sees_dead_processes": (2, 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """One field per row of `SINCE`."""

    grpc_errors: bool
    bls_cancel: bool
    sees_dead_processes: bool


def abilities_of(version: str) -> Abilities:
    """Return what a server of `version` ("2.51.0", also with a suffix) can do."""
    match = re.match(r"\D*(\d+)\.(\d+)", version)
    numbers = (int(match[1]), int(match[2])) if match else (0, 0)
    return Abilities(**{name: numbers >= since for name, since in SINCE.items()})
