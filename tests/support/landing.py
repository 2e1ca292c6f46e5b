"""Whether this run decides about a landing: then what repeats a path that another test walks is left out.

`make test` without CI in the environment leaves out nothing.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["IS_LANDING"]

IS_LANDING: Final = bool(os.environ.get("CI"))
