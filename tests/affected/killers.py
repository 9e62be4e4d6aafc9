"""Whether the tests that are said to be affected are those that notice: by the mutants that `make mutants` has stored.

Of each mutant that was killed, results have the test that failed first. A change of the mutated definition must affect
that test's file. Mutants whose code was rewritten since, and tests that are gone, say nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.affected.changes import is_file
from tests.affected.closure import Tree
from tests.affected.facts import codes_of
from tests.mutants.operators import mutants

RESULTS = "loadtest/results/mutants.json"


def killed(root: Path) -> Iterator[tuple[str, str, set[str], str]]:
    """Yield (module, mutant, the nodes that it changes, the test file that killed it) of each stored mutant."""
    for module, records in json.loads((root / RESULTS).read_text()).items():
        if not is_file(root / module):
            continue
        source = (root / module).read_text()
        before = codes_of(source)
        there = {mutant.name: mutant for mutant in mutants(source)}
        for name, record in records.items():
            test = record["by"].partition("::")[0]
            if record["outcome"] != "killed" or name not in there or not is_file(root / test):
                continue
            after = codes_of(there[name].applied(source))
            yield module, name, {f"{module}::{part}" for part in after if after[part] != before.get(part)}, test


def missed(root: Path, tree: Tree) -> tuple[list[str], int]:
    """Return the mutants whose killer is not affected, a line each, and how many mutants there were."""
    lines, number = [], 0
    for module, name, nodes, test in killed(root):
        number += 1
        if test not in tree.affected(nodes):
            lines.append(f"{module}: {name}: {test}")
    return lines, number
