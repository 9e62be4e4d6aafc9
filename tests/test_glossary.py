"""The glossary: about thirty domain terms with one meaning each, found under the names that people search for."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "reference" / "glossary.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| term |")
]
TERMS = [row[0] for row in ROWS]
MOST_TERMS = 46
# Names that this code base had before it took the field's.
DIALECT = re.compile(r"\b(aftermath|vigilance|nursery|limbo|probation|scatter|tray)s?\b", re.IGNORECASE)


def test_term_is_listed_once_and_the_list_stays_short():
    words = Counter(word.strip() for term in TERMS for word in term.split(","))
    assert [word for word, count in words.items() if count > 1] == []
    assert len(TERMS) <= MOST_TERMS


@pytest.mark.parametrize("row", ROWS, ids=TERMS)
def test_term_has_a_meaning_synonyms_and_a_code_location(row):
    term, meaning, synonyms, place = row
    assert meaning, term
    assert synonyms, term
    path = ROOT / place.strip("`")
    assert path.exists(), f"{term}: {place} does not exist"


@pytest.mark.parametrize(
    "searched",
    ["hot reload", "load shedding", "backpressure", "graceful shutdown", "rate limit", "quarantine", "circuit breaker"],
)
def test_common_search_terms_lead_to_a_term(searched):
    assert any(searched in " ".join(row) for row in ROWS)


def test_no_module_or_class_uses_a_retired_name():
    found = set()
    for floor in ("freshet_serving", "processor", "compiler", "models", "serving", "loadtest"):
        for path in sorted((ROOT / floor).rglob("*.py")):
            names = [path.stem, *re.findall(r"^\s*class (\w+)", path.read_text(), re.MULTILINE)]
            found |= {(path.relative_to(ROOT).as_posix(), name) for name in names if DIALECT.fullmatch(name)}
    assert found == set()
