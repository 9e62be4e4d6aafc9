"""Scores the frozen corpus with two commits on this machine, and compares every score to the bit.

    python -m tests.corpus.compare BASE [HEAD] [--base-python PYTHON] [--only ENTRY ...]
    make -C loadtest corpus ARGS="HEAD~1 --base-python .venv/bin/python"

Each commit is checked out into a git worktree of its own, under a folder for temporary files, and scored by an
environment of its own: the Python that is given, or what `make install` makes there (minutes). HEAD is this checkout as
it stands, with this Python, where none is named. Both score the entries of this checkout; a commit that has no scoring
of its own is scored with this one's.

Bits are compared at pinned shapes: one bucket an entry, one session, one thread, the backend that the entry stores.
Exit status: 0 where all scores are equal, 1 where one differs or could not be compared, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.entry import FROZEN

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent.relative_to(ROOT)
SCORING = ("__init__.py", "entry.py", "adapter.py", "scoring.py")
PINNED = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
ONE_LINE = 120


@dataclass(frozen=True)
class Compared:
    """An entry under both commits: how many scores were compared, the largest difference, and `why` it is not equal."""

    entry: str
    scores: int
    worst: float
    why: str


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.corpus.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="a commit")
    parser.add_argument("head", nargs="?", default="", help="a commit; this checkout as it stands where left out")
    parser.add_argument("--base-python", type=Path, help="the Python that scores BASE; `make install` where left out")
    parser.add_argument("--only", nargs="+", default=[], metavar="ENTRY", help="these entries")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freshet-compare-") as folder:
        aside = Path(folder)
        with checked_out(arguments.base, aside / "base") as base:
            before = score(base, arguments.base_python, aside / "base.json", arguments.only)
        if arguments.head:
            with checked_out(arguments.head, aside / "head") as head:
                after = score(head, None, aside / "head.json", arguments.only)
        else:
            after = score(ROOT, Path(sys.executable), aside / "head.json", arguments.only)
    results = [compared(name, *both) for name, both in _side_by_side(before["entries"], after["entries"]).items()]
    print(table(results, before["libraries"], after["libraries"], arguments.base, arguments.head or "this checkout"))
    return int(any(result.why for result in results) or not results)


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """A worktree of a commit, with this checkout's scoring where it has none; removed at the end."""
    _run("git", "worktree", "add", "--quiet", "--detach", str(folder), commit)
    try:
        if not (folder / CORPUS / "scoring.py").exists():
            (folder / CORPUS).mkdir(parents=True, exist_ok=True)
            for name in SCORING:
                shutil.copyfile(ROOT / CORPUS / name, folder / CORPUS / name)
        yield folder
    finally:
        _run("git", "worktree", "remove", "--force", str(folder))


def score(checkout: Path, python: Path | None, out: Path, only: list[str]) -> dict[str, Any]:
    """The report of tests.corpus.scoring under a checkout, by the Python that `make install` makes there by default.

    Raises RuntimeError where the engine that was scored was not the checkout's.
    """
    if python is None:
        _run("make", "-C", str(checkout), "install")
        python = checkout / ".venv" / "bin" / "python"
    # Not resolved: the link is what tells Python which environment it is.
    command = [str(Path.cwd() / python), "-m", "tests.corpus.scoring", "--out", str(out), "--frozen", str(FROZEN)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FRESHET_", "PYTHON"))}
    subprocess.run(
        [*command, *only], cwd=checkout, env={**environment, **PINNED, "PYTHONPATH": str(checkout)}, check=True
    )
    report: dict[str, Any] = json.loads(out.read_text())
    if Path(report["root"]).resolve() != checkout.resolve():
        raise RuntimeError(f"expected the engine of {checkout}, got that of {report['root']}")
    return report


def compared(entry: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Compared:
    """What two reports say of one entry; None where a report does not name it."""
    for which, report in (("base", before), ("head", after)):
        if report is None:
            return Compared(entry, 0, 0.0, f"not scored by {which}")
        if "lacking" in report:
            return Compared(entry, 0, 0.0, f"{which} lacks {', '.join(report['lacking'])}")
    assert before is not None, "returned above"
    assert after is not None, "returned above"
    if before["computes"] != after["computes"]:
        return Compared(entry, 0, 0.0, f"computed by {before['computes']} and {after['computes']}")
    pairs = _side_by_side(before["scores"], after["scores"])
    different = [key for key, (report, other) in pairs.items() if report is None or report != other]
    worst = max([0.0, *(_apart(*pairs[key]) for key in different)])
    why = f"{len(different)} differ, first {different[0]!r}" if different else ""
    return Compared(entry, len(pairs), worst, why or ("" if pairs else "nothing was scored"))


def table(results: list[Compared], base: Mapping[str, str], head: Mapping[str, str], *names: str) -> str:
    width = max([5, *(len(result.entry) for result in results)])
    lines = [f"{'entry':{width}}  scores  largest difference  to the bit"]
    for result in results:
        verdict = "equal" if not result.why else f"NOT EQUAL: {result.why}"
        lines.append(f"{result.entry:{width}}  {result.scores:6}  {result.worst:18.3g}  {verdict}"[: width + ONE_LINE])
    equal, scores = sum(not result.why for result in results), sum(result.scores for result in results)
    lines.append(f"{' and '.join(names)}: {equal} of {len(results)} entries equal, {scores} scores")
    differing = [
        f"{name} {base.get(name)} and {head.get(name)}"
        for name in sorted({*base, *head})
        if base.get(name) != head.get(name)
    ]
    if differing:
        lines.append(f"the environments differ, which alone may change bits: {'; '.join(differing)}")
    return "\n".join(lines)


def _apart(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> float:
    """The largest difference of two arrays; infinite where they are not alike in shape and type."""
    if before is None or after is None or (before["shape"], before["dtype"]) != (after["shape"], after["dtype"]):
        return float("inf")
    first, second = (np.frombuffer(bytes.fromhex(x["bytes"]), x["dtype"]).astype(np.float64) for x in (before, after))
    return float(np.abs(first - second).max(initial=0.0))


def _side_by_side(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (before.get(key), after.get(key)) for key in [*before, *(key for key in after if key not in before)]}


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
