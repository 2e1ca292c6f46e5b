"""How a section of the bench is to be run, and where what it makes goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["DOCS", "RESULTS", "Options"]

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
RESULTS: Final = ROOT / "bench" / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`is_quick` asks for figures that show that it works and mean nothing more; `plots_soak` for docs/soak.png."""

    rounds: int = 3
    is_quick: bool = False
    plots_soak: bool = False

    @property
    def scale(self) -> int:
        """What the work is divided by."""
        return 10 if self.is_quick else 1

    def picture(self, name: str) -> Path:
        """Return where a plot goes: a quick one is not for the documents."""
        return (RESULTS if self.is_quick else DOCS) / name
