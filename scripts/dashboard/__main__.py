"""Writes deploy/observability/grafana/headrace.json, or with --check fails if it is out of date."""

from __future__ import annotations

import sys

from scripts.dashboard.page import TARGET, document

if sys.argv[1:] == ["--check"]:
    is_written = TARGET.exists() and TARGET.read_text() == document()
    sys.exit(0 if is_written else f"{TARGET.name}, the dashboard, is out of date; run: make docs")
TARGET.write_text(document())
