"""Writes tests/reports.md: which test holds which public bug report.

A test names the reports that it holds: `@pytest.mark.report("A01")`, with
several ids if need be, on a function, a class, one set of parameters
(`pytest.param(..., marks=pytest.mark.report("A01"))`) or, as `pytestmark`, on
a whole module. The marks are read from the source, so that nothing is
imported and no engine is needed. What each report is about, or why it does
not apply here, stands in tests/reports.toml.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORTS = Path("tests") / "reports.toml"
TARGET = Path("tests") / "reports.md"

INTRODUCTION = """\
# Public bug reports

Faults that users of systems like this one reported in public, each replayed here as a test of the right behaviour. A
test names its reports with `@pytest.mark.report("A01")`. This page is written by `scripts/report_table.py` from those
marks and from `tests/reports.toml`.

"""


@dataclass(frozen=True, slots=True)
class Report:
    """One report: its title, a place of it (`owner/repository#number`), and why it does not apply (empty: it does)."""

    title: str
    source: str = ""
    does_not_apply: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """One id on one test; `test` is `path::name`, from the repository's root."""

    report: str
    test: str


def read_reports(text: str) -> dict[str, Report]:
    """Return the reports of a TOML text by id. Raises TypeError for a member that is not known."""
    return {name: Report(**members) for name, members in tomllib.loads(text).items()}


def marks_of(source: str, path: str) -> Iterator[Mark]:
    """Yield the marks in one module's source. Raises ValueError for an id that is not a plain string."""
    module = ast.parse(source)
    for name, ids in _marked(module, path):
        for report in ids:
            yield Mark(report, name)


def _marked(node: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, list[str]]]:
    for child in node.body:
        if isinstance(child, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "pytestmark" for t in child.targets
        ):
            yield name, _ids(child.value, name)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}::{child.name}"
            for decorator in child.decorator_list:
                yield inner, _ids(decorator, inner)
            if isinstance(child, ast.ClassDef):
                yield from _marked(child, inner)


def _ids(expression: ast.expr, name: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.report":
            for argument in node.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise ValueError(f"{name}: an id of a report must be a plain string")
                found.append(argument.value)
    return found


def table(reports: Mapping[str, Report], marks: Sequence[Mark]) -> str:
    """Return the page."""
    rows = ["| id | report | reported in | held by |", "|---|---|---|---|"]
    for name, report in sorted(reports.items()):
        tests = sorted({mark.test for mark in marks if mark.report == name})
        held = "<br>".join(f"`{test}`" for test in tests) or (
            f"does not apply: {report.does_not_apply}" if report.does_not_apply else "**no test yet**"
        )
        rows.append(f"| {name} | {report.title} | {_link(report.source)} | {held} |")
    return INTRODUCTION + "\n".join(rows) + "\n"


def _link(source: str) -> str:
    repository, _, number = source.partition("#")
    # The forge leads on from there if it is a pull request.
    return f"[{source}](https://github.com/{repository}/issues/{number})" if source else ""


def problems(reports: Mapping[str, Report], marks: Sequence[Mark]) -> list[str]:
    """Return what is wrong with the marks: unknown ids, reports without a test, and tests of what does not apply."""
    held = {mark.report for mark in marks}
    found = [f"{mark.test}: unknown report {mark.report!r}" for mark in marks if mark.report not in reports]
    for name, report in sorted(reports.items()):
        if report.does_not_apply and name in held:
            found.append(f"{name} is said not to apply, but has a test")
        elif not report.does_not_apply and name not in held:
            found.append(f"{name} has no test: {report.title}")
    return found


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the page, or with --check compare it and fail for every problem. Problems go to stderr."""
    is_check = "--check" in arguments
    reports = read_reports((root / REPORTS).read_text())
    files = sorted((root / "tests").rglob("test_*.py"))
    marks = [mark for file in files for mark in marks_of(file.read_text(), file.relative_to(root).as_posix())]
    page = table(reports, marks)
    found = problems(reports, marks)
    if is_check:
        if (root / TARGET).read_text() != page:
            found.append(f"{TARGET} is out of date; run: make docs")
    else:
        (root / TARGET).write_text(page)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found and is_check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
