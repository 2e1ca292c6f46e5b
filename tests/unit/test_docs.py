"""What the documents show has to work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headrace._channel import SERVICE_CONFIG
from service.catalog.file import parse_models

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


def test_the_models_file_of_the_documents_is_a_good_one() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL)
    assert [model.id for model in parse_models(example, "models.toml")] == ["gemma-3-270m", "llama", "sim"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_the_service_config_on_the_page_is_the_client_s_own() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "lifecycle.md").read_text("utf-8"), re.DOTALL)
    assert json.loads(block) == SERVICE_CONFIG
