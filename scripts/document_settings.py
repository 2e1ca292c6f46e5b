"""Writes docs/configuration.md from the settings themselves, so that the two cannot disagree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from gateway.config import GatewaySettings
from runtime.settings import Settings
from service.config import ServiceSettings

TARGET = Path(__file__).parents[1] / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

Every setting is a variable and a flag; a flag wins over the variable. All wrong values are reported at once (what does
not fit together, once each value is right), a variable that looks like a misspelt setting is named, and
`--print-config` prints what is in effect, secrets masked. This page is written by `scripts/document_settings.py` from
the settings themselves.

Where spans and metrics go is decided by OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT` turns the export
on; see [observability](observability.md)). Models beyond a single one are declared in a [models file](models.md).

The command line reads `HEADRACE_TARGET` (the service, `127.0.0.1:50051` if unset; several addresses as
`ipv4:10.0.0.1:50051,10.0.0.2:50051`), `HEADRACE_ADMIN_TARGET` (the admin port, `127.0.0.1:50052` if unset),
`HEADRACE_METRICS_URL` (for `headrace top`; the service's metrics port, `http://127.0.0.1:9464/metrics` if unset),
`HEADRACE_API_KEY` (the key or token to call with) and, for `headrace keys`, `HEADRACE_KEYS_FILE`.
"""


def document() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for title, module, settings in (
        ("Service", "service", ServiceSettings),
        ("Gateway", "gateway", GatewaySettings),
    ):
        parts.append(f"\n## {title}: `python -m {module}`\n\n{_table(settings)}")
    return "".join(parts)


def _table(settings: type[Settings]) -> str:
    prefix = settings.model_config.get("env_prefix") or ""
    rows = ["| variable | flag | default | meaning |", "|---|---|---|---|"]
    for name, field in settings.model_fields.items():
        if name == "print_config":
            continue
        default = "" if field.default in (None, PydanticUndefined, []) else f"`{_shown(field.default)}`"
        choices = _choices(field.annotation)
        meaning = (field.description or "") + (f" One of {choices}." if choices and "One of" not in str(field) else "")
        rows.append(f"| `{prefix}{name.upper()}` | `--{name.replace('_', '-')}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choices(annotation: object) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if get_origin(annotation) is Union:
        return next((found for part in get_args(annotation) if (found := _choices(part))), "")
    return ""


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if TARGET.read_text() == document() else "docs/configuration.md is out of date; run: make docs")
    TARGET.write_text(document())
