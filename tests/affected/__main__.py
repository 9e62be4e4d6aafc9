"""Print which tests a change can break: `python -m tests.affected --list`, `--share`, `--mutants`, `--campaign`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.affected.campaign import run
from tests.affected.changes import Repository
from tests.affected.killers import missed
from tests.affected.share import page, shares

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Print test files, one a line, or the page of shares."""
    parser = argparse.ArgumentParser(prog="python -m tests.affected", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", nargs="?", const="", metavar="SINCE", help="test files affected since a revision")
    parser.add_argument("--share", type=int, metavar="N", help="share of the tests that the last N commits affected")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="of these only each K-th [1]")
    parser.add_argument("--mutants", action="store_true", help="stored mutants whose killer is not affected")
    parser.add_argument("--campaign", type=int, metavar="N", help="try N mutants of the product on affected tests")
    parser.add_argument("--minutes", type=float, default=600.0, help="no mutant is tried after that [600]")
    parser.add_argument("--affected-only", action="store_true", help="of a campaign: do not run the other tests")
    parser.add_argument("--seed", type=int, default=1, help="which mutants a campaign tries [1]")
    arguments = parser.parse_args()
    if arguments.campaign:
        others = not arguments.affected_only
        for result, number in run(arguments.campaign, arguments.minutes, arguments.seed, others).items():
            print(f"{number} mutants: {result}")
        return
    repository = Repository(ROOT)
    if arguments.share:
        measured = shares(
            repository, arguments.share, arguments.every, lambda line: print(line, file=sys.stderr, flush=True)
        )
        lines, number = missed(ROOT, repository.working_tree())
        print(page(list(measured), arguments.share, arguments.every, (number - len(lines), number)), end="")
        return
    if arguments.mutants:
        lines, number = missed(ROOT, repository.working_tree())
        print(*lines, f"{number - len(lines)} of {number} mutants: the test that killed it is affected", sep="\n")
        return
    changed = repository.changed(arguments.list or repository.base())
    tests = repository.working_tree().affected(changed)
    print(f"{len(tests)} test files are affected", file=sys.stderr)
    print(*tests, sep="\n", end="\n" if tests else "")


if __name__ == "__main__":
    main()
