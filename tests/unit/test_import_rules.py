"""Import rules that import-linter cannot state, because they are about parts of external packages."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("service", "gateway", "runtime", "clients/python/headrace")
    for path in (ROOT / folder).rglob("*.py")
    if "/headrace/v1/" not in path.as_posix()
)


@functools.cache
def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module}
    return names


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("opentelemetry.sdk", {"runtime/otel/"}),
        ("opentelemetry.exporter", {"runtime/otel/__init__.py"}),
        ("prometheus_client", {"runtime/otel/", "clients/python/headrace/cli/_scrape.py"}),
        ("tritonclient", {"service/backends/triton"}),
        ("xllamacpp", {"service/backends/llamacpp"}),
        ("redis", {"service/sharing/store.py", "service/tenancy/limits/redis_line.py"}),
        ("jwt", {"service/tenancy/issuer_keys.py", "service/tenancy/tokens.py"}),
        (
            "sqlalchemy",
            {"service/ledger/sql.py", "service/ledger/tables.py", "clients/python/headrace/cli/_ledger_sql.py"},
        ),
        ("hpack", {"clients/python/headrace/_http2/header_block.py"}),
    ],
)
def test_a_part_of_a_package_is_used_in_one_place(module: str, allowed: set[str]) -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if any(name == module or name.startswith(module + ".") for name in imported(path))
    }
    assert users, f"nothing imports {module}: the rule is out of date"
    assert not [user for user in users if not any(user.startswith(place) for place in allowed)]


def test_only_the_settings_read_the_environment() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if "os.environ" in path.read_text() or "os.getenv" in path.read_text()
    }
    # Names that look like misspelt settings; the SDK's own OTEL_* variables; XDG_CACHE_HOME, where users expect caches;
    # how llama.cpp's threads wait, gRPC's poller and its log, which can be told in no other way.
    assert users <= {
        "runtime/otel/__init__.py",
        "runtime/settings.py",
        "gateway/__main__.py",
        "service/backends/llamacpp/engine.py",
        "service/backends/llamacpp/sample_model.py",
        "clients/python/headrace/cli/__main__.py",
        "clients/python/headrace/cli/__init__.py",
    }
