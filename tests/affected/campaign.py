"""Whether affected tests kill what all short tests kill: `make -C loadtest affected-mutants`, in pieces.

A mutant of a module of the product is written to a copy of the tree. The affected short tests run first, the module's
own among them before the others; if it survives these, all other short tests run. What kills it there was left out.

Costs: a mutant that no test kills takes a whole run of the short tests, most others some seconds. What became of each
is kept after each, so that a campaign can be ended at any moment and goes on where it was.

Rejected: the forks of `make mutants`, which know a module's own tests alone.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.affected.changes import Repository
from tests.affected.closure import Tree, is_of_structure
from tests.affected.facts import codes_of
from tests.affected.share import PRODUCT
from tests.mutants.__main__ import copied, environment
from tests.mutants.operators import Mutant, mutants
from tests.test_found import about_module

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results" / "affected-mutants.json"
KILLED, MISSED, SURVIVED = "killed by affected tests", "killed by other tests alone", "survived"
GENERATED = ("serving/codecs/proto_files.py",)
QUICK = ("-x", "-q", "-m", "not long", "-p", "no:cacheprovider", "-p", "no:xdist")
TIMEOUT_S = 3600.0
NONE_COLLECTED = 5
"""What pytest ends with where all tests are long ones."""


def drawn(tree: Tree, number: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return so many mutants of modules of the product, in an order that chance gives; the same for the same seed."""
    chance = random.Random(seed)
    modules = [path for path in tree.paths if path.startswith(tuple(f"{top}/" for top in PRODUCT))]
    modules = [path for path in modules if path not in GENERATED and not path.endswith("__init__.py")]
    chosen = []
    for module in chance.choices(modules, k=number):
        every = mutants((ROOT / module).read_text())
        if every:
            chosen.append((module, chance.choice(every)))
    return chosen


def divided(tree: Tree, module: str, mutant: Mutant) -> tuple[list[str], list[str]]:
    """Return the tests that a mutant affects, the module's own first, and all others.

    Tests of the structure are left out: they are always affected, and read a tree that git knows.
    """
    source = (ROOT / module).read_text()
    before, after = codes_of(source), codes_of(mutant.applied(source))
    changed = {f"{module}::{part}" for part in after if after[part] != before.get(part)}
    affected, own = set(tree.affected(changed)), set(about_module(module))
    tests = sorted((test for test in tree.tests if not is_of_structure(test)), key=lambda test: (test not in own, test))
    return [test for test in tests if test in affected], [test for test in tests if test not in affected]


class Trial:
    """Runs tests on mutants in a copy of the tree. Test files that fail there as things are do not count."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        self._unsound: set[str] = set()

    def outcome(self, module: str, mutant: Mutant, tests: Sequence[Sequence[str]]) -> tuple[str, str]:
        """
        Return what becomes of a mutant, and the test that killed it.

        Args:
            module: The module that it changes.
            mutant: The mutant.
            tests: The affected tests, and the others.
        """
        source = (ROOT / module).read_text()
        for result, files in zip((KILLED, MISSED), tests):
            test = self._killer(module, source, mutant.applied(source), files)
            if test:
                return result, test
        return SURVIVED, ""

    def _killer(self, module: str, source: str, mutated: str, files: Sequence[str]) -> str:
        while left := [file for file in files if file not in self._unsound]:
            (self._copy / module).write_text(mutated)
            try:
                test = self.first_failed(left)
            finally:
                (self._copy / module).write_text(source)
            file = test.partition("::")[0]
            if not test or file not in left or not self.first_failed([file]):
                return test
            self._unsound.add(file)
        return ""

    def first_failed(self, files: Sequence[str]) -> str:
        """Return the first test that fails in the copy; empty if all pass."""
        command = [sys.executable, "-m", "pytest", *QUICK, *files]
        try:
            done = subprocess.run(
                command, cwd=self._copy, env=environment(self._copy), capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return "a test that hangs"
        if done.returncode in (0, NONE_COLLECTED):
            return ""
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return lines[0].split(" ")[1] if lines else f"pytest, with {done.returncode}"


def run(number: int, minutes: float, seed: int) -> dict[str, int]:
    """
    Try mutants that were not tried yet, and return how many there are of each outcome in all.

    Args:
        number: of mutants, with those of earlier runs.
        minutes: No mutant is begun after that.
        seed: Chooses the mutants.
    """
    kept: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    tree, until_s = Repository(ROOT).working_tree(), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="freshet-affected-") as folder:
        trial = Trial(copied(Path(folder) / "copy"))
        for module, mutant in drawn(tree, number, seed):
            name = f"{module}: {mutant.name}"
            if name in kept:
                continue
            if time.monotonic() > until_s:
                break
            result, test = trial.outcome(module, mutant, divided(tree, module, mutant))
            kept[name] = {"outcome": result, "by": test}
            RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
            print(f"{name}: {result} {test}", file=sys.stderr, flush=True)
    return dict(Counter(record["outcome"] for record in kept.values()))
