"""The guard of deltas is on in the tests, and who turns it off says why."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
MOST_OFF = 0.1
TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
OPTION = re.compile(r"""FRESHET_DELTA_GUARD|--delta-guard["', ]+off|delta_guard=["']off|"mode": "off\"""")


def functions(text):
    """Yield the text of each test function of a module, with its marks and up to the next function."""
    begins = [match.start() for match in TEST.finditer(text)]
    for begin, end in zip(begins, [*begins[1:], len(text)]):
        marks = text.rfind("\n\n\n", 0, begin)
        yield text[max(marks, 0) : end]


def test_at_most_one_test_in_ten_disables_the_guard():
    every = off = 0
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        whole = "pytestmark" in text and "unguarded" in text.partition("pytestmark")[2].partition("\n\n")[0]
        for function in functions(text):
            every += 1
            off += whole or "mark.unguarded" in function or OPTION.search(function) is not None
    assert every > 3000
    assert off <= MOST_OFF * every, f"{off} of {every} tests turn the guard off"


def test_disabling_the_guard_needs_a_reason():
    for path in TESTS.rglob("*.py"):
        for match in re.finditer(r"mark\.unguarded(.*)", path.read_text()):
            assert path == Path(__file__) or re.match(r"\(\"[^\"]{10,}\"\)", match[1]), f"{path.name}: {match[0]}"
