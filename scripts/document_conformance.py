"""Writes docs/clients/conformance.md from clients/conformance.yaml: what every client does, as its test demands."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "clients" / "conformance.md"
sys.path.insert(0, str(ROOT))

from tests.conformance.clients import CLIENTS  # noqa: E402

INTRODUCTION = """\
# What every client does

Each client carries out the scenarios of [clients/conformance.yaml](../../clients/conformance.yaml) against the same
servers, with its public interface, and its answers are compared. `make conformance` runs those that are built, and a
change lands only if all of them pass: a tick is a test. Written by `scripts/document_conformance.py`.
"""


def document() -> str:
    """Return the page."""
    scenarios = yaml.safe_load((ROOT / "clients" / "conformance.yaml").read_text())["scenarios"]
    names = [client.name for client in CLIENTS]
    rows = [f"| scenario | what it shows | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    rows += [
        f"| {scenario['name']} | {scenario['does']} | {' | '.join('✓' for _ in names)} |" for scenario in scenarios
    ]
    return f"{INTRODUCTION}\n" + "\n".join(rows) + "\n"


def main() -> int:
    """Write the page, or with --check only say whether it is what would be written."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(document())
        return 0
    if not TARGET.exists() or TARGET.read_text() != document():
        print("docs/clients/conformance.md is out of date: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
