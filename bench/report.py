"""Puts the figures of the last full runs into docs/performance.md: `python -m bench.report`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from bench.lines import Line
from bench.options import DOCS, RESULTS

__all__ = ["filled", "main"]

PAGE: Final = DOCS / "performance.md"
LATEST: Final = RESULTS / "latest.json"
_PLACE: Final = re.compile(r"(<!-- figures of (?P<section>\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def main() -> None:
    """Fill the page from bench/results/latest.json. Places of sections that were not measured stay as they are."""
    if not LATEST.exists():
        raise SystemExit("bench: nothing was measured yet: make bench")
    PAGE.write_text(filled(PAGE.read_text(), json.loads(LATEST.read_text())))


def filled(page: str, results: Mapping[str, Any]) -> str:
    """Return the page with the figures of every section that was measured in full; quick runs do not count."""

    def fill(place: re.Match[str]) -> str:
        found = results.get(place["section"])
        if found is None or found["is_quick"]:
            return place[0]
        return f"{place[1]}{_table(found)}{place[3]}"

    return _PLACE.sub(fill, page)


def _table(found: Mapping[str, Any]) -> str:
    machine = found["machine"]
    rows = [f"| {' | '.join(_cells(Line(**line)))} |" for line in found["lines"]]
    where = (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_mb'] / 1000:.0f} GB, {machine['system']}, "
        f"Python {machine['python']}"
    )
    head = (
        f"Taken on {found['taken'].split()[0]}: {where}.",
        "",
        "| figure | measured | promised | |",
        "|---|---|---|---|",
    )
    return "\n".join([*head, *rows, ""])


def _cells(line: Line) -> tuple[str, ...]:
    # What is indented on the terminal belongs to the line above it.
    what = line.what.strip()
    return what if line.what == what else f"… {what}", line.measured, line.promised or "", line.verdict


if __name__ == "__main__":
    main()
