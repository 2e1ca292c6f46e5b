"""The overload section of the bench."""

from __future__ import annotations

from typing import Final

import uvloop

from bench.lines import Line
from bench.options import Options
from bench.overload.judge import judge
from bench.overload.plan import SETTINGS, phases
from bench.overload.run import play
from bench.processes import running_path

__all__ = ["measure"]

PICTURE: Final = "overload.png"


def measure(options: Options) -> list[Line]:
    """Return the figures, and draw the picture. About a minute and a quarter."""
    # Not at the top: it takes a second, and other sections draw nothing.
    from bench.overload.plot import draw

    with running_path(SETTINGS) as path:
        recording = uvloop.run(play(path, phases(is_quick=options.is_quick)))
    draw(recording, options.picture(PICTURE))
    return judge(recording)
