"""The table of bug reports: every mark is found, and what does not fit is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts import report_table as table

SOURCE = """
import pytest

pytestmark = [pytest.mark.asyncio, pytest.mark.report("A01")]

@pytest.mark.report("A02", "A03")
async def test_one(): ...

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.report("A04"))])
def test_two(x): ...

@pytest.mark.report("A05")
class TestThree:
    @pytest.mark.report("A06")
    def test_four(self): ...
"""


def test_marks_are_found_wherever_pytest_takes_them() -> None:
    found = {(mark.report, mark.test) for mark in table.marks_of(SOURCE, "t.py")}
    assert found == {
        ("A01", "t.py"),
        ("A02", "t.py::test_one"),
        ("A03", "t.py::test_one"),
        ("A04", "t.py::test_two"),
        ("A05", "t.py::TestThree"),
        ("A06", "t.py::TestThree::test_four"),
    }


def test_an_id_that_cannot_be_read_from_the_source_is_an_error() -> None:
    with pytest.raises(ValueError, match="plain string"):
        list(table.marks_of("@pytest.mark.report(name)\ndef test_a(): ...", "t.py"))


@pytest.mark.parametrize(
    ("does_not_apply", "marked", "problem"),
    [
        ("", ["A01"], None),
        ("", [], "A01 has no test"),
        ("we have none of it", [], None),
        ("we have none of it", ["A01"], "A01 is said not to apply"),
        ("", ["A01", "Z99"], "unknown report 'Z99'"),
    ],
)
def test_what_does_not_fit_is_told(does_not_apply: str, marked: list[str], problem: Any) -> None:
    reports = {"A01": table.Report(title="One", does_not_apply=does_not_apply)}
    marks = [table.Mark(report, "t.py::test") for report in marked]
    found = table.problems(reports, marks)
    assert (found == []) if problem is None else (problem in found[0])
    assert "| A01 | One |" in table.table(reports, marks)


def test_a_stale_page_fails_the_check_and_writing_mends_it(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "reports.toml").write_text('[A02]\ntitle = "Two"\n')
    (tmp_path / "tests" / "reports.md").write_text("old")
    (tmp_path / "tests" / "test_it.py").write_text('@pytest.mark.report("A02")\ndef test_a(): ...\n')
    assert table.main(["--check"], tmp_path) == 1
    assert table.main([], tmp_path) == 0
    assert table.main(["--check"], tmp_path) == 0
    assert "`tests/test_it.py::test_a`" in (tmp_path / "tests" / "reports.md").read_text()
