"""docs/decisions: every page is in the list once, and leads to code that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))


def test_decision_list_has_every_page_once_with_its_title():
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(listed, key=lambda line: line[1]) == [
        (page.read_text().split("\n")[0].removeprefix("# "), page.name) for page in PAGES
    ]


def test_decision_pages_are_numbered_without_gaps():
    assert [int(page.name[:4]) for page in PAGES] == list(range(1, len(PAGES) + 1))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_decision_page_states_its_decision_and_existing_modules(page):
    text = page.read_text()
    modules = re.findall(r"`([\w/]+\.py)`", text.partition("**Where.**")[2])

    assert re.match(r"# .+\n\n(Accepted|Superseded by \[\d{4}\]\(.+\)), \d{4}-\d\d-\d\d\.\n\n\*\*Decision\.\*\*", text)
    assert modules
    assert [module for module in modules if not (ROOT / module).exists()] == []
