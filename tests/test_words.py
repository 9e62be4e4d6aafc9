"""One meaning a word: no class name and no file name stands for two things, read from the code."""

import ast
from collections import defaultdict
from pathlib import Path

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


ENDINGS = ("ings", "ing", "ers", "er", "ors", "or", "ed", "es", "s", "e")


def stem(name):
    """A name without the letters that make it a plural, or what does it, or what is done."""
    return next((name.removesuffix(e) for e in ENDINGS if name.endswith(e) and len(name) > len(e) + 2), name)


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


def test_no_two_file_names_are_forms_of_one_word():
    forms = defaultdict(set)
    for name in modules():
        forms[stem(name)].add(name)
    assert {root: names for root, names in forms.items() if len(names) > 1} == {}


def test_a_class_name_means_one_thing():
    found = defaultdict(list)
    for name, path in sources():
        if not name.startswith(THEIRS):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(name)
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if not all(p.startswith(HALVES) for p in places)} == {}


def test_forms_of_one_word_have_one_stem():
    assert {stem(name) for name in ("session", "sessions")} == {"session"}
    assert {stem(name) for name in ("watcher", "watching", "watched", "watch")} == {"watch"}
    assert {stem(name) for name in ("serve", "server", "served")} == {"serv"}
