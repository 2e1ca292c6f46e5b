"""What the pages of the TypeScript client show is what its tests run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headrace._version import __version__

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "typescript"
GUIDE = ROOT / "docs" / "clients" / "typescript.md"
PAGES = [GUIDE, CLIENT / "README.md"]
# test/examples.test.ts runs every file of the folder.
EXAMPLES = {path.read_text("utf-8"): path.name for path in sorted((CLIENT / "examples").glob("*.ts"))}


def programs(page: Path) -> list[str]:
    """Return the programs of a page."""
    return re.findall(r"```ts\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_program_on_a_page_is_an_example_to_the_letter(page: Path) -> None:
    assert programs(page)
    assert [program for program in programs(page) if program not in EXAMPLES] == []


def test_the_guide_shows_every_example_below_its_name() -> None:
    shown = re.findall(r"\[`([^`]*)`\]\(([^)]*)\):\n\n```ts\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert sorted(name for name, _, _ in shown) == sorted(EXAMPLES.values())
    for name, link, program in shown:
        assert (GUIDE.parent / link).resolve() == CLIENT / "examples" / name
        assert EXAMPLES[program] == name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_version_is_the_same_wherever_it_stands() -> None:
    assert json.loads((CLIENT / "package.json").read_text("utf-8"))["version"] == __version__
    assert json.loads((CLIENT / "package-lock.json").read_text("utf-8"))["version"] == __version__
    assert f'VERSION = "{__version__}"' in (CLIENT / "src" / "version.ts").read_text("utf-8")


def test_the_lock_names_no_address_to_load_from() -> None:
    lock = json.loads((CLIENT / "package-lock.json").read_text("utf-8"))
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []


def test_every_kind_of_failure_is_listed() -> None:
    kinds = re.search(r"export type ErrorKind =(.*?);\n", (CLIENT / "src" / "errors.ts").read_text("utf-8"), re.DOTALL)
    (row,) = re.findall(r"\| `kind` \|(.*)\|", (CLIENT / "README.md").read_text("utf-8"))
    assert kinds is not None
    named = re.findall(r'\| "(\w+)"', kinds[1])
    assert sorted(re.findall(r"`(\w+)`", row.partition(":")[2])) == sorted(named)
    assert len(named) == 16  # as the page says
