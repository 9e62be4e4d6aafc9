"""`make mutants` itself: what it changes, what it runs, and that what is said of survivors still holds."""

import faulthandler
import json
import textwrap

import pytest

from tests.mutants import __main__ as running
from tests.mutants import report, slot, subjects
from tests.mutants.operators import Mutant, mutants

MODULE = '''
"""A module, with 1 word of its own."""
import logging

log = logging.getLogger("a")
LIMIT, PARTS = 64, (1 << 4) * 3
TABLE = {"a": (True, 0)}


class Box:
    def __init__(self, n: int = 0) -> None:
        self.n = n

    @property
    def full(self) -> bool:
        return self.n >= LIMIT

    def put(self, items, hurry=False):
        if not items:
            raise ValueError(f"items: {len(items) + 1} wanted")
        for item in reversed(items):
            if item is None or (hurry and item < 0):
                continue
            self.n += item
            self.last = item
            log.info("put %d", item + 1)
            note(self)
        try:
            return min(self.n, LIMIT)
        except OSError:
            self.n = 0
'''


def changes(source):
    """Each mutant as (where, before, after); proves that every one is a module of its own."""
    found = mutants(source)
    made = {m.applied(source) for m in found}
    assert len(made) == len(found) == len({m.name for m in found})
    assert source not in made
    for mutated in made:
        compile(mutated, "mutant", "exec")
    return {(m.where, m.before, m.after) for m in found}


def test_typical_mistakes_are_generated_as_mutants():
    put = "Box.put"
    assert changes(textwrap.dedent(MODULE)) == {
        ("", "True", "False"),
        ("", "0", "1"),
        ("Box.__init__", "0", "1"),
        ("Box.full", "self.n >= LIMIT", "self.n > LIMIT"),
        ("Box.full", "self.n >= LIMIT", "self.n < LIMIT"),
        ("Box.full", "return self.n >= LIMIT", "return None"),
        (put, "False", "True"),
        (put, "not items", "items"),
        (put, "if not items: raise ValueError(f'items: {len(items) + 1} wanted')", "pass"),
        (put, "reversed(items)", "items"),
        (put, "item is None", "item is not None"),
        (put, "item is None or (hurry and item < 0)", "item is None and (hurry and item < 0)"),
        (put, "item is None or (hurry and item < 0)", "hurry and item < 0"),
        (put, "item is None or (hurry and item < 0)", "item is None"),
        (put, "hurry and item < 0", "hurry or item < 0"),
        (put, "hurry and item < 0", "item < 0"),
        (put, "hurry and item < 0", "hurry"),
        (put, "item < 0", "item <= 0"),
        (put, "item < 0", "item >= 0"),
        (put, "0", "1"),
        (put, "if item is None or (hurry and item < 0): continue", "pass"),
        (put, "continue", "break"),
        (put, "self.n += item", "pass"),
        (put, "self.n += item", "self.n -= item"),
        (put, "self.last = item", "pass"),
        (put, "note(self)", "pass"),
        (put, "min(self.n, LIMIT)", "max(self.n, LIMIT)"),
        (put, "return min(self.n, LIMIT)", "return None"),
        (put, "self.n = 0", "raise"),
        (put, "self.n = 0", "pass"),
    }


def test_change_is_applied_only_at_its_position():
    source = "def f(ä):\n    return 'ß' if ä < 1 else (ä <  # why\n        2)\n"
    (bound,) = [m for m in mutants(source) if (m.before, m.after) == ("ä < 2", "ä <= 2")]
    assert bound.applied(source) == "def f(ä):\n    return 'ß' if ä < 1 else ((ä <= 2))\n"


def test_mutant_name_is_stable_while_its_function_is_unchanged():
    before, after = "def f(a):\n    return a < 1\n", "X = 1\n\n\ndef f(a):\n    # Why.\n    return a < 1\n"
    first, moved = (next(m for m in mutants(source) if m.after == "a <= 1") for source in (before, after))
    assert (first.name, first.scope) == (moved.name, moved.scope)
    assert (first.line, moved.line) == (2, 6)
    changed = next(m for m in mutants(before.replace("def f(a)", "def f(a, b=2)")) if m.after == "a <= 1")
    assert (changed.name, changed.scope) != (first.name, first.scope)


def test_every_mutant_of_a_module_parses():
    assert len(changes((subjects.ROOT / "processor/tables/arena.py").read_text())) > 40


def test_every_group_has_modules():
    found = subjects.modules()
    assert found.keys() == subjects.GROUPS.keys()
    assert all(found.values())


def test_sample_is_reproducible_and_depends_on_the_seed():
    module = "processor/versions/model.py"
    first, again, other = (subjects.chosen(module, 12, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 12


def test_equivalent_mutants_exist_and_have_a_reason():
    there = {
        module: {m.name for m in mutants((subjects.ROOT / module).read_text())} for module, _ in subjects.equivalent()
    }
    assert [key for key in subjects.equivalent() if key[1] not in there[key[0]]] == []
    assert [key for key, why in subjects.equivalent().items() if len(why) < 10] == []


@pytest.mark.long
def test_tests_affected_by_a_mutant_are_known_beforehand():
    module = "processor/tables/tier.py"
    own, beside = subjects.tests_of(module)
    assert own == ["tests/processor/tables/test_tier.py"]
    assert "tests/processor/tables/test_table.py" in beside
    assert "tests/processor/tables/test_arena.py" not in beside
    above = subjects.importers(module)
    assert {
        "processor.tables.table",
        "tests.processor.tables.test_tier",
        "processor.engine",
    } <= above
    ours, libraries = subjects.beneath(module, ["tests/processor/tables/test_tier.py"])
    assert {"freshet_serving.processor.tables.row_log", "freshet_serving.processor.kernels.rows"} <= set(ours)
    assert not above & {name.removeprefix("freshet_serving.") for name in ours}
    assert "numpy" in libraries


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with one module and its tests, and a slot in it."""
    (tmp_path / "adding.py").write_text("def total(a, b):\n    return a + b\n")
    (tmp_path / "test_adding.py").write_text(
        "import threading, adding\ndef test_total():\n    n = adding.total(1, 2)\n"
        "    if n == 1: threading.Event().wait()\n    assert n in (3, 4)\ndef test_none():\n    pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    # Its thread would not be there in a fork, and be waited for.
    faulthandler.cancel_dump_traceback_later()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.long
def test_failing_test_kills_a_mutant_and_the_module_is_restored(tree, monkeypatch):
    (tree / "test_other.py").write_text("def test_other():\n    assert False\n")
    before, module = (tree / "adding.py").stat().st_mtime_ns, slot.Module("adding.py")
    tests = module.sound(["test_other.py", "test_adding.py"])
    assert tests == ["test_adding.py"]
    assert module.unsound == {"test_other.py": "test_other.py::test_other"}
    monkeypatch.setattr(slot, "MARGIN_S", 1.0)
    for line, *wanted in (
        ("return a - a + 4", "survived", ""),
        ("return a - b", "killed", "test_adding.py::test_total"),
        ("return 1", "hung", ""),
        ("return (", "killed", "test_adding.py, which cannot be imported"),
        ("import os; os._exit(3)", "killed", "the interpreter"),
    ):
        assert list(module.run(tests, f"def total(a, b):\n    {line}\n")[:2]) == wanted
        assert (tree / "adding.py").read_text() == "def total(a, b):\n    return a + b\n"
        assert (tree / "adding.py").stat().st_mtime_ns == before


@pytest.mark.long
def test_results_are_kept_until_they_may_have_changed(tmp_path, monkeypatch):
    module = "processor/tables/arena.py"
    killed, survived, other = subjects.chosen(module, 3, 1)
    records = running.Records(tmp_path)
    records.note(module, killed, {"outcome": "killed", "by": "a test"})
    records.note(module, survived, {"outcome": "survived", "by": ""})
    again = running.Records(tmp_path)
    assert [again.knows(module, m) for m in (killed, survived, other)] == [True, True, False]
    assert json.loads((tmp_path / "mutants.json").read_text()) == again.kept
    monkeypatch.setattr(running, "fingerprint", lambda module: "other tests")
    assert [again.knows(module, m) for m in (killed, survived)] == [True, False]
    again.kept[module][killed.name]["scope"] = "another function"
    assert not again.knows(module, killed)


def test_page_counts_by_group_and_names_every_survivor(monkeypatch):
    module = "processor/tables/arena.py"
    killed, survived, same, gone = subjects.chosen(module, 4, 1)
    monkeypatch.setattr(report, "modules", lambda: {"tables": [module]})
    monkeypatch.setattr(report, "equivalent", lambda: {(module, same.name): "it is only slower"})
    kept = {
        m.name: {"scope": "other" if m is gone else m.scope, "outcome": "killed" if m is killed else "survived"}
        for m in (killed, survived, same, gone)
    }
    page, worst = report.page({module: kept})
    assert worst == 0.5
    assert "| 3 | 1 | 0 | 2 | 1 | 50.0% |" in page
    assert f"| {module}:{survived.line} | `{survived.name}` | **open** |" in page
    assert f"| {module}:{same.line} | `{same.name}` | it is only slower |" in page


def test_modules_of_all_groups_alternate():
    order = running.spread([m for names in subjects.modules().values() for m in names])
    assert sorted(order) == sorted(m for names in subjects.modules().values() for m in names)
    groups = {module: group for group, names in subjects.modules().items() for module in names}
    assert len({groups[module] for module in order[:8]}) == 8


def test_equally_written_mutants_have_distinct_names():
    names = [m.name for m in mutants("def f(a):\n    return [a < 1, a < 1]\n") if m.after == "a <= 1"]
    assert names == ["f: a < 1 -> a <= 1", "f: a < 1 -> a <= 1 (again, 1)"]
    assert isinstance(mutants("def f():\n    g()\n")[0], Mutant)
