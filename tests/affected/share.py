"""How much of the tests the last commits would have run: affected lines of tests in all lines of tests, by commit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.affected.changes import Repository

PRODUCT = ("freshet_serving", "serving", "models", "compiler", "processor")
AIMS = {"": "18 %", "processor": "40 %"}
HEAD = """\
# Tests that a commit affects

`make test-affected` runs the test files whose closure holds a definition that was changed: tests/affected/closure.py
says what counts. Below are {number} of the last {commits} commits that change Python of the product, evenly spread,
merges left out: the lines of the affected test files in the lines of all, those of tests/e2e and long ones with them,
each counted in the tree of its commit. A commit counts for each floor that it changes.
`python -m tests.affected --share {commits} --every {every}` makes this page.

| commits | number | lower quartile | median | upper quartile | aim of the median |
|---|--:|--:|--:|--:|--:|
"""

MUTANTS = """
Does it leave out what would notice? For {} of the {} mutants that [mutants.json](mutants.json) has as killed, the test
that failed first is affected by a change of the mutated definition (`python -m tests.affected --mutants`). Most of
these tests are the module's own, so this says little of tests further away.
"""


@dataclass(frozen=True, slots=True)
class CommitShare:
    """Of one commit. share: 0 to 1. floors: top folders of the product whose Python it changed."""

    commit: str
    share: float
    floors: frozenset[str]


def shares(repository: Repository, commits: int, every: int, tell: Callable[[str], None]) -> Iterator[CommitShare]:
    """
    Yield the share of each of the last commits that change Python of the product, the newest first.

    Args:
        commits: how many at most.
        every: only each so many-th of them.
        tell: called with a line a commit.
    """
    patterns = [f"{floor}/*.py" for floor in PRODUCT]
    names = repository.git("log", f"-{commits}", "--no-merges", "--format=%H", "--", *patterns).split()
    for commit in names[::every]:
        tree, lines = repository.tree(commit)
        paths = repository.git("diff", "--name-only", "--no-renames", f"{commit}~1", commit, "--", *patterns)
        affected = tree.affected(repository.changed(f"{commit}~1", commit))
        share = sum(lines[test] for test in affected) / sum(lines.values())
        floors = frozenset(path.partition("/")[0] for path in paths.split())
        tell(f"{commit[:8]} {share:.3f} {len(affected)} of {len(lines)} files {','.join(sorted(floors))}")
        yield CommitShare(commit[:8], share, floors)


def page(measured: list[CommitShare], commits: int, every: int, mutants: tuple[int, int]) -> str:
    """
    Return the report as Markdown.

    Args:
        measured: what shares() has told of these commits.
        commits: how many commits were asked for.
        every: which of them were measured.
        mutants: stored mutants whose killer is affected, and how many there are.
    """
    rows = []
    for floor in ("", *PRODUCT):
        values = [share.share for share in measured if not floor or floor in share.floors]
        if len(values) > 1:
            quartiles = " | ".join(f"{100 * value:.0f} %" for value in statistics.quantiles(values, n=4))
            rows.append(
                f"| {f'in {floor}/' if floor else 'all'} | {len(values)} | {quartiles} | {AIMS.get(floor, '')} |"
            )
    return (
        HEAD.format(number=len(measured), commits=commits, every=every)
        + "\n".join(rows)
        + "\n"
        + MUTANTS.format(*mutants)
    )
