"""What ARCHITECTURE.md names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = ("freshet_serving", "processor", "compiler", "models", "serving", "loadtest", "generators", "tests", "docs")


def test_every_named_path_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(rf"`((?:{'|'.join(FLOORS)})/[\w./-]*)`", text))
    named |= set(re.findall(r"\]\((docs/[\w./-]+)\)", text))
    assert {path for path in named if "NEW" not in path and not (ROOT / path).exists()} == set()
    assert len(named) > 40


def test_document_is_short_enough_to_read_in_ten_minutes():
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) < 2400
