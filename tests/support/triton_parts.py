"""Makes the engine's own modules (deploy/triton/lib) importable for tests."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["LIB"]

LIB = Path(__file__).resolve().parents[2] / "deploy" / "triton" / "lib"
if str(LIB) not in sys.path:
    sys.path.insert(0, str(LIB))
