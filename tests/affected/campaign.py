"""Whether affected tests kill what all short tests kill: `make -C loadtest affected-mutants`, in pieces.

A mutant of a module of the product is written to a copy of the tree. The module's own short tests run first, then the
other affected ones. All mutants that are left by these are written to the copy together, and all other short tests run
once; of those that fail, each runs again with one mutant alone. What kills it there was left out.

Costs: most mutants take some seconds, one that its own tests leave takes all affected tests, and those that are left
take one run of all short tests together. What became of each is kept after each, so that a campaign can be ended at any
moment and goes on where it was.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
LEFT = "left by affected tests, others not run"
QUICK = ("-q", "-m", "not long", "-p", "no:cacheprovider", "-p", "no:xdist")
TIMEOUT_S = 3600.0
NONE_COLLECTED = 5
"""What pytest ends with where all tests are long ones."""


def drawn(tree: Tree, number: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return so many mutants of modules of the product, in an order that chance gives; the same for the same seed."""
    chance = random.Random(seed)
    product = tuple(f"{top}/" for top in PRODUCT)
    modules = [path for path in tree.paths if path.startswith(product) and not path.endswith("__init__.py")]
    chosen = []
    for module in chance.choices(modules, k=number):
        every = mutants((ROOT / module).read_text())
        if every:
            chosen.append((module, chance.choice(every)))
    return chosen


def divided(tree: Tree, module: str, mutant: Mutant) -> tuple[list[str], list[str], list[str]]:
    """Return the tests that a mutant affects, the module's own before the others, and all that it does not affect.

    Tests of the structure are left out: they are always affected, and read a tree that git knows.
    """
    source = (ROOT / module).read_text()
    before, after = codes_of(source), codes_of(mutant.applied(source))
    changed = {f"{module}::{part}" for part in after if after[part] != before.get(part)}
    affected, own = set(tree.affected(changed)), set(about_module(module))
    tests = sorted(test for test in tree.tests if not is_of_structure(test))
    return (
        [test for test in tests if test in affected & own],
        [test for test in tests if test in affected - own],
        [test for test in tests if test not in affected],
    )


class Trial:
    """Runs tests on mutants in a copy of the tree. Test files that fail there as things are do not count."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        self._unsound: set[str] = set()

    def killer(self, module: str, mutant: Mutant, files: Sequence[str]) -> str:
        """Return a test that kills a mutant of a module; empty if all pass."""
        while left := [file for file in files if file not in self._unsound]:
            with self._written({module: mutant}):
                test = "".join(self.failed(left, "-x")[:1])
            file = test.partition("::")[0]
            if not test or file not in left or not self.failed([file], "-x"):
                return test
            self._unsound.add(file)
        return ""

    def killers(
        self, left: Mapping[str, tuple[str, Mutant]], others: Mapping[str, Sequence[str]]
    ) -> Iterator[tuple[str, str]]:
        """
        Yield (name, the test that kills it, or nothing) of each mutant that affected tests leave.

        Args:
            left: Modules and mutants, by name.
            others: The tests that each does not affect.
        """
        while left:
            # Of each module one.
            turn = {module: (name, mutant) for name, (module, mutant) in reversed(left.items())}
            files = sorted({file for name, _ in turn.values() for file in others[name]} - self._unsound)
            with self._written({module: mutant for module, (_, mutant) in turn.items()}):
                failed = {test.partition("::")[0] for test in self.failed(files)}
            if not failed <= set(files):
                # All of pytest ended, or hung.
                failed = set(files)
            for module, (name, mutant) in turn.items():
                yield name, self.killer(module, mutant, [file for file in others[name] if file in failed])
            done = {name for name, _ in turn.values()}
            left = {name: mutant for name, mutant in left.items() if name not in done}

    @contextmanager
    def _written(self, changed: Mapping[str, Mutant]) -> Iterator[None]:
        """Have the copy changed by mutants, one a module."""
        sources = {module: (ROOT / module).read_text() for module in changed}
        try:
            for module, mutant in changed.items():
                (self._copy / module).write_text(mutant.applied(sources[module]))
            yield
        finally:
            for module, source in sources.items():
                (self._copy / module).write_text(source)

    def failed(self, files: Sequence[str], *options: str) -> list[str]:
        """Return the tests that fail in the copy."""
        command = [sys.executable, "-m", "pytest", *QUICK, *options, *files]
        try:
            done = subprocess.run(
                command, cwd=self._copy, env=environment(self._copy), capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return ["a test that hangs"]
        if done.returncode in (0, NONE_COLLECTED):
            return []
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return [line.split(" ")[1] for line in lines] or [f"pytest, with {done.returncode}"]


def run(number: int, minutes: float, seed: int, others: bool = True) -> dict[str, int]:
    """
    Try mutants that were not tried yet, and return how many there are of each outcome in all.

    Args:
        number: of mutants, with those of earlier runs.
        minutes: No mutant is begun after that.
        seed: Chooses the mutants.
        others: Also run the tests that are not affected, on those that are left, if there is time.
    """
    kept: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    tree, until_s = Repository(ROOT).working_tree(), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="freshet-affected-") as folder:
        trial = Trial(copied(Path(folder) / "copy"))
        left, unaffected = {}, {}
        for module, mutant in drawn(tree, number, seed):
            name = f"{module}: {mutant.name}"
            if time.monotonic() > until_s or kept.get(name, {"outcome": LEFT})["outcome"] != LEFT:
                continue
            own, affected, unaffected[name] = divided(tree, module, mutant)
            if name not in kept:
                test = trial.killer(module, mutant, own) or trial.killer(module, mutant, affected)
                keep(kept, name, KILLED if test else LEFT, test)
            if kept[name]["outcome"] == LEFT:
                left[name] = module, mutant
        if others and time.monotonic() < until_s:
            for name, test in trial.killers(left, unaffected):
                keep(kept, name, MISSED if test else SURVIVED, test)
    return dict(Counter(record["outcome"] for record in kept.values()))


def keep(kept: dict[str, dict[str, str]], name: str, outcome: str, test: str) -> None:
    """Keep what became of a mutant, and tell."""
    kept[name] = {"outcome": outcome, "by": test}
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    print(f"{name}: {outcome} {test}", file=sys.stderr, flush=True)
