"""Writes the tables of docs/observability.md from the tables in the code, so that the two cannot disagree."""

from __future__ import annotations

import sys
from pathlib import Path

from runtime.metrics import METRICS
from runtime.spans import ATTRIBUTES, SPANS

TARGET = Path(__file__).parents[1] / "docs" / "observability.md"


def spans() -> str:
    """Return the table of spans."""
    rows = ["| span | by | kind | from and to | attributes |", "|---|---|---|---|---|"]
    rows += [
        f"| `{span.name}` | {span.by} | {span.kind} | {span.when} | "
        f"{', '.join(f'`{name}`' for name in span.attributes) or 'none'} |"
        for span in SPANS
    ]
    return "\n".join(rows)


def attributes() -> str:
    """Return the table of attributes."""
    rows = ["| attribute | meaning |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in ATTRIBUTES.items()]
    return "\n".join(rows)


def metrics() -> str:
    """Return the table of metrics."""
    rows = ["| metric | in Prometheus | kind, unit | by | attributes | meaning |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{metric.name}` | `{metric.prometheus}` | {metric.kind.value}{', ' + metric.unit if metric.unit else ''} | "
        f"{metric.by} | {', '.join(f'`{name}`' for name in metric.attributes) or 'none'} | {metric.description} |"
        for metric in METRICS
    ]
    return "\n".join(rows)


def document(text: str) -> str:
    """Return the page with its tables made anew."""
    for name, table in (("spans", spans()), ("attributes", attributes()), ("metrics", metrics())):
        begin, end = f"<!-- {name}: generated -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, ended, behind = rest.partition(end)
        if not found or not ended:
            raise SystemExit(f"{TARGET.name}: {begin} ... {end} does not stand there")
        text = f"{before}{begin}\n{table}\n{end}{behind}"
    return text


def main() -> int:
    """Write the page, or with --check only say whether it is what would be written."""
    before = TARGET.read_text()
    after = document(before)
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(after)
        return 0
    if before != after:
        print("docs/observability.md is out of date: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
