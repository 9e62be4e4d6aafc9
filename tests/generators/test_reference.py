import posixpath
import re
from pathlib import Path

import pytest

from generators import reference

DOCS = Path(__file__).parents[2] / "docs"


def test_tables_of_every_page_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "FOLDER", tmp_path / "build" / "reference")
    reference.main()
    assert {path.name for path in (tmp_path / "build" / "reference").iterdir()} == set(reference.PAGES)


@pytest.mark.parametrize("name", reference.PAGES)
def test_tables_have_a_page_and_links_that_lead_somewhere(name):
    assert "The site has" in (DOCS / "reference" / name).read_text()
    for target in re.findall(r"\]\(([^()\s#]+)(?:#[^()\s]*)?\)", reference.PAGES[name]()):
        if not re.match(r"[a-z]+:", target):
            assert (DOCS / posixpath.normpath(posixpath.join("reference", target))).exists(), target


def test_site_adds_tables_to_the_same_pages():
    hook = (DOCS / "theme" / "generated_reference.py").read_text()
    assert set(re.findall(r'"([\w-]+\.md)"', hook)) == set(reference.PAGES)
