"""docs/decisions: every page is in the list once, is short, and leads to code that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[a-z]*.md"))
MOST_WORDS = 300


def test_decision_list_has_every_page_once_with_its_title():
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(listed, key=lambda line: line[1]) == [
        (page.read_text().split("\n")[0].removeprefix("# "), page.name) for page in PAGES
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_decision_page_states_its_decision_and_existing_modules(page):
    text = page.read_text()
    modules = re.findall(r"`([\w/]+\.py)`", text.partition("**Where.**")[2])

    assert re.match(r"# .+\n\n\*\*Context\.\*\* ", text)
    assert "\n\n**Decision.** " in text
    assert "\n\n**Rejected.** " in text
    assert len(text.split()) <= MOST_WORDS
    assert modules
    assert [module for module in modules if not (ROOT / module).exists()] == []
