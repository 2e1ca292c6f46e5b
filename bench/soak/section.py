"""The soak section of the bench."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import uvloop

from bench.lines import Line, figure, holds
from bench.memory import Trend, steady, trend
from bench.options import Options
from bench.processes import running_path
from bench.soak.mix import CAPACITY_PER_S, EXPECTED, LOAD, SETTINGS
from bench.soak.run import Soaked, soak

__all__ = ["measure"]

PICTURE: Final = "soak.png"
LENGTH_S: Final = 3600.0
QUICK_LENGTH_S: Final = 20.0
LEAST_LENGTH_S: Final = 10.0
# Between two processes and their callers a few connections come and go.
FILES: Final = 16
# A few seconds of each of the stretches that growth is looked for in.
LEAST_SAMPLES: Final = 60


def measure(options: Options) -> list[Line]:
    """Return the figures. Takes the seconds that SOAK_S tells, else an hour."""
    with running_path(SETTINGS) as path:
        soaked = uvloop.run(soak(path, _length_s(is_quick=options.is_quick)))
    if options.plots_soak:
        # Not at the top: it takes a second, and other sections draw nothing.
        from bench.soak.plot import draw

        draw(soaked, options.picture(PICTURE))
    return list(judge(soaked))


def _length_s(*, is_quick: bool) -> float:
    told = os.environ.get("SOAK_S", "")
    if not told:
        return QUICK_LENGTH_S if is_quick else LENGTH_S
    try:
        length_s = float(told)
    except ValueError:
        length_s = 0.0
    if not LEAST_LENGTH_S <= length_s < float("inf"):
        raise SystemExit(f"bench: SOAK_S must be seconds, at least {LEAST_LENGTH_S:.0f}, got {told!r}")
    return length_s


def _a_call(line: Trend, per_s: float) -> str:
    return f"{line.slope * 1024 / (per_s * 60):+.1f} bytes a call"


def judge(soaked: Soaked) -> Iterable[Line]:
    """Return the figures, and which of them are as promised."""
    per_s = soaked.made / soaked.length_s
    yield figure("Load", f"{per_s:.1f} calls per second, {LOAD:.0%} of a capacity of {CAPACITY_PER_S:.0f}")
    yield figure("Calls", f"{soaked.made:,} in {soaked.length_s:,.0f} s")
    late = [one for one in soaked.rss if soaked.length_s / 2 <= one.at_s <= soaked.length_s]
    for name, samples in (
        ("service", [(one.at_s, one.service_kib) for one in late]),
        ("gateway", [(one.at_s, one.gateway_kib) for one in late]),
    ):
        line = trend(samples)
        yield figure(f"RSS of the {name}, slope of the second half", f"{line}, {_a_call(line, per_s)}")
        if len(samples) >= LEAST_SAMPLES:
            growth = steady(samples)
            measured = f"{growth}, {_a_call(growth, per_s)}"
            yield holds(
                f"... of that, steady growth of the {name}", measured, "zero within noise", is_kept=growth.is_flat
            )
    first, last = soaked.rss[0], soaked.rss[-1]
    yield figure(
        "RSS at the beginning and at the end",
        f"service {first.service_kib / 1024:.1f} and {last.service_kib / 1024:.1f} MiB, "
        f"gateway {first.gateway_kib / 1024:.1f} and {last.gateway_kib / 1024:.1f} MiB",
    )
    (service_before, gateway_before), (service_after, gateway_after) = soaked.files
    most = max(service_after - service_before, gateway_after - gateway_before)
    files = f"service {service_before} and {service_after}, gateway {gateway_before} and {gateway_after}"
    yield holds("Open files before and after", files, f"at most {FILES} more", is_kept=most <= FILES)
    left = soaked.left
    still = f"{left.running} slots, {left.waiting + left.waiting_batch} waiting, {left.active} generations"
    yield holds("Left when all callers are gone", still, "nothing", is_kept=left.is_none)
    odd = {name: count for name, count in soaked.outcomes.items() if name not in EXPECTED}
    lost = soaked.made - soaked.outcomes.total()
    told = ", ".join(f"{name} {count}" for name, count in odd.items())
    measured = f"{sum(odd.values()) + lost}" + (f" ({told})" if told else "")
    yield holds("Calls that ended otherwise than asked for", measured, "0", is_kept=not odd and not lost)
    yield figure("Outcomes", ", ".join(f"{name} {count:,}" for name, count in soaked.outcomes.most_common()))
