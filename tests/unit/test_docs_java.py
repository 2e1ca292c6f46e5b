"""What the pages of the Java client show is what its build runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace._version import __version__

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "java"
GUIDE = ROOT / "docs" / "clients" / "java.md"
PAGES = [GUIDE, CLIENT / "README.md"]
# ExamplesTest.java runs every file of the folder.
EXAMPLES = {path.read_text("utf-8"): path.stem for path in sorted((CLIENT / "examples").glob("*.java"))}


def programs(page: Path) -> list[str]:
    """Return the Java programs of a page."""
    return re.findall(r"```java\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_program_on_a_page_is_an_example_to_the_letter(page: Path) -> None:
    assert programs(page)
    assert [program for program in programs(page) if program not in EXAMPLES] == []


def test_the_guide_shows_every_example_or_leads_to_it() -> None:
    shown = {EXAMPLES[program] for program in programs(GUIDE)}
    linked = set(re.findall(r"examples/(\w+)\.java\)", GUIDE.read_text("utf-8")))
    assert shown | linked == set(EXAMPLES.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_version_is_the_same_wherever_it_stands() -> None:
    (version,) = re.findall(r"<artifactId>headrace-client</artifactId>\s*<version>(.*?)</version>", pom())
    assert version == __version__
    for page in PAGES:
        text = page.read_text("utf-8")
        named = re.findall(r"headrace-client(?:</artifactId>\s*<version>|:)([\d.]+\d)", text)
        assert named == [version]


def test_the_build_names_no_address_to_load_from() -> None:
    addresses = set(re.findall(r"https?://[^\s\"<]+", pom()))
    assert {
        address for address in addresses if not address.startswith(("http://maven.apache.org/", "http://www.w3.org/"))
    } == set()


def pom() -> str:
    """Return the build of the client."""
    return (CLIENT / "pom.xml").read_text("utf-8")
