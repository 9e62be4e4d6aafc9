"""One meaning a word: class names and file names that mean two things, or differ by a letter, read from the code."""

import ast
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("freshet_serving", "processor", "compiler", "models", "serving", "loadtest")
# The two halves of a backend have one name: processor/backends runs what compiler/backends compiles.
HALVES = ("processor/backends/", "compiler/backends/")
# A server of each peer's own, in its own venv; a scenario is called as `make bench --only` is asked for it.
THEIRS = ("loadtest/peers/", "loadtest/bench/scenarios/")


def sources():
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path


def alike(a, b):
    """Whether one letter was added, taken away or changed."""
    if abs(len(a) - len(b)) > 1:
        return False
    if len(a) == len(b):
        return sum(x != y for x, y in zip(a, b)) == 1
    short, long = sorted((a, b), key=len)
    return any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


def modules():
    """File names -> where; without the halves and what is called by another's word."""
    found = defaultdict(list)
    for name, path in sources():
        if path.stem.startswith("__") or name.startswith(THEIRS):
            continue
        found[path.stem].append(name)
    return found


def test_a_file_name_means_one_thing():
    twice = {stem: names for stem, names in modules().items() if len(names) > 1}
    assert {stem: names for stem, names in twice.items() if not all(n.startswith(HALVES) for n in names)} == {}


def test_no_two_file_names_differ_by_a_letter_only():
    assert [pair for pair in combinations(sorted(modules()), 2) if alike(*pair)] == []


def test_a_class_name_means_one_thing():
    found = defaultdict(list)
    for name, path in sources():
        if not name.startswith(THEIRS):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(name)
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if not all(p.startswith(HALVES) for p in places)} == {}


@pytest.mark.parametrize(
    ("a", "b", "expected"), [("split", "splits", True), ("tier", "tied", True), ("a", "abc", False)]
)
def test_names_are_alike_that_differ_by_a_letter(a, b, expected):
    assert alike(a, b) is expected
