"""`make bench`: a table per topic on the terminal, and bench/results/latest.json.

CPU figures are the processes' own user + system time, so that they hold on a
noisy machine; wall-clock figures are to be read as ratios within one run.
`python -m bench.report` puts the figures that are held against a promise into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import psutil
import uvloop
from rich.console import Console

import bench.openai
import bench.path
import bench.triton.section
from bench.lines import Line, document, print_lines
from bench.options import RESULTS, Options
from bench.overload.section import measure as measure_overload
from bench.processes import running_path
from bench.retention.section import measure as measure_retention
from bench.soak.section import measure as measure_soak
from bench.streams.section import measure as measure_streams
from bench.telemetry.section import measure as measure_telemetry
from bench.triton.servers import running_servers

LATEST: Final = RESULTS / "latest.json"
WIDTH: Final = 140
# Sections whose figures are held against what is promised: title, and what measures them.
PROMISES: Final[Mapping[str, tuple[str, Callable[[Options], list[Line]]]]] = {
    "overload": ("Overload at 4 times the capacity", measure_overload),
    "streams": ("Memory of idle streams, and of streams that nobody reads", measure_streams),
    "retention": ("What retained generations cost the service, CPU per token", measure_retention),
    "telemetry": ("What telemetry costs, CPU of gateway and service together", measure_telemetry),
    "soak": ("Soak", measure_soak),
}
SECTIONS: Final = ("path", "openai", "triton", *PROMISES)
# Takes an hour: by name alone.
LONG: Final = "soak"


def main() -> None:
    """Run everything but the soak; takes about twenty minutes."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds per figure; the median is taken")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--only", choices=SECTIONS, help="one topic; the others keep their last figures")
    parser.add_argument("--check", action="store_true", help="end with 1 if something is not as promised")
    parser.add_argument("--plot", action="store_true", help="soak: draw docs/soak.png")
    arguments = parser.parse_args()
    options = Options(
        rounds=1 if arguments.quick else arguments.rounds, is_quick=arguments.quick, plots_soak=arguments.plot
    )
    results = json.loads(LATEST.read_text()) if arguments.only and LATEST.exists() else {}
    console, broken = Console(width=WIDTH), 0
    for section in (arguments.only,) if arguments.only else tuple(name for name in SECTIONS if name != LONG):
        if section in PROMISES:
            title, measure = PROMISES[section]
            lines = measure(options)
            print_lines(console, title, lines)
            broken += sum(line.is_kept is False for line in lines)
            found: dict[str, Any] = {"is_quick": options.is_quick, "lines": document(lines)}
        else:
            found = _costs(section, options, console)
        results[section] = {"machine": _machine(), "taken": _now(), **found}
    RESULTS.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"Written to {RESULTS.name}/{LATEST.name}")
    if broken:
        console.print(f"{broken} figures are not as promised.")
        if arguments.check:
            raise SystemExit(1)


def _costs(section: str, options: Options, console: Console) -> dict[str, Any]:
    """Measure and print one of the sections that tell what something costs."""
    rounds, scale = options.rounds, options.scale
    if section == "triton":
        with running_servers() as servers:
            found = uvloop.run(bench.triton.section.measure(servers, rounds, scale))
        bench.triton.section.print_tables(console, found)
    elif section == "openai":
        with running_path() as path:
            found = uvloop.run(bench.openai.measure(path, rounds, scale))
        bench.openai.print_table(console, found)
    else:
        bare = bench.path.measure_floor(scale)
        with running_path() as path:
            found = uvloop.run(bench.path.measure(path, rounds, scale))
        for row, one in zip(found["rows"], bare, strict=True):
            row["floor"] = one
        bench.path.print_table(console, found)
    return {"rounds": rounds, **found}


def _machine() -> dict[str, Any]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_mb": round(psutil.virtual_memory().total / 1e6),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


if __name__ == "__main__":
    main()
