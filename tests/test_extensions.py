"""Every extension has a page and tests at its own path, and no page is without an extension."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "extensions"
FOLDERS = sorted(
    file.parent.relative_to(ROOT).as_posix()
    for floor in ("processor", "serving")
    for file in (ROOT / floor / "extensions").glob("*/__init__.py")
)
NAMES = {Path(folder).name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_extension_has_tests_at_its_path(folder):
    assert list((ROOT / "tests" / folder).glob("test_*.py"))


def test_each_extension_has_a_page_and_each_page_an_extension():
    assert {page.stem for page in PAGES.glob("*.md")} == NAMES


def test_list_of_extensions_leads_to_their_pages():
    listed = re.findall(r"^\| \[`(\w+)`\]\(\.\./extensions/(\w+)\.md\) \|", overview(), re.MULTILINE)
    assert listed == [(name, name) for name in sorted(NAMES)]


def test_site_has_a_place_for_each_page():
    placed = re.findall(r": extensions/(\w+)\.md$", (ROOT / "properdocs.yml").read_text(), re.MULTILINE)
    assert set(placed) >= NAMES


def overview():
    return (ROOT / "docs" / "concepts" / "extensions.md").read_text()
