"""`make mutants`: is a small change of the code noticed by a test? loadtest/results/mutants.md has what was run.

A sample of each module's mutants (tests.mutants.operators), the same for the same seed. A mutant's own tests are run
first, then, where it survives them, those beside them. What has been run is kept and not run again, until the function
that was changed, or for a survivor its tests, have changed; so a run that was cut short goes on where it was.

Own code, because neither mutmut nor cosmic-ray fits: mutmut (3.x) replaces functions by ones that choose a mutant when
they are called, which Numba cannot compile and decorated functions, properties among them, are left out of; cosmic-ray
runs a command a mutant in the working tree, which is an interpreter, and all imports, for each. Neither leaves out a
guard or a call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.mutants.operators import Mutant
from tests.mutants.report import page
from tests.mutants.slot import SURVIVED
from tests.mutants.subjects import ROOT, beneath, chosen, modules, tests_of

RESULTS = ROOT / "loadtest" / "results"


def main() -> int:
    """0 when at most one in ten of every group survives."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--mutants", type=int, default=12, help="of each module [12]")
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--only", nargs="*", default=[""], help="groups, or what modules' paths begin with [all]")
    parser.add_argument("--at-once", type=int, default=2, help="modules at a time [2]")
    parser.add_argument("--minutes", type=float, default=600.0, help="no mutant is begun after that [600]")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    given = parser.parse_args()
    records = Records(given.out)
    work = {
        module: [m for m in chosen(module, given.mutants, given.seed) if not records.knows(module, m)]
        for group, names in modules().items()
        for module in names
        if group in given.only or module.startswith(tuple(given.only))
    }
    work = {module: mutants for module, mutants in work.items() if mutants}
    run(work, records, given.at_once, time.time() + 60 * given.minutes)
    text, worst = page(records.kept)
    (given.out / "mutants.md").write_text(text)
    return 1 if worst > 0.1 else 0


class Records:
    """What was run, kept in mutants.json. kept: by module, by mutant's name."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._path, self._lock = out / "mutants.json", threading.Lock()
        self.kept: dict[str, dict[str, dict]] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def knows(self, module: str, mutant: Mutant) -> bool:
        """Whether what is known of a mutant still holds."""
        record = self.kept.get(module, {}).get(mutant.name)
        if record is None or record["scope"] != mutant.scope:
            return False
        return record["outcome"] != SURVIVED or record["tests"] == fingerprint(module)

    def note(self, module: str, mutant: Mutant, answer: dict) -> None:
        record = {"scope": mutant.scope, "tests": fingerprint(module), "outcome": answer["outcome"], "by": answer["by"]}
        with self._lock:
            self.kept.setdefault(module, {})[mutant.name] = record
            text = ",\n".join(f"{json.dumps(name)}: {_lines(of)}" for name, of in sorted(self.kept.items()))
            aside = self._path.with_suffix(".tmp")
            aside.write_text(f"{{\n{text}\n}}\n")
            aside.replace(self._path)


def _lines(of: dict[str, dict]) -> str:
    """A record a line."""
    return (
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(of.items())) + "\n}"
    )


def fingerprint(module: str) -> str:
    """Of a module's tests, own and beside."""
    own, beside = tests_of(module)
    crc = 0
    for test in (*own, *beside):
        crc = zlib.crc32((ROOT / test).read_bytes(), crc)
    return f"{crc:08x}"


def run(work: dict[str, list[Mutant]], records: Records, at_once: int, until_s: float) -> None:
    """Runs mutants by module, each module in a copy of the tree; what becomes of a mutant is noted at once."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    copies: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="freshet-mutants-") as folder, Progress(*columns) as progress:
        for number in range(min(at_once, len(work))):
            copies.put(copied(Path(folder) / str(number)))
        bar = progress.add_task("mutants", total=sum(map(len, work.values())))
        survived = itertools.count(1)

        def one(module: str) -> None:
            copy, mutants = copies.get(), {m.name: m for m in work[module]}
            try:
                for answer in answers(copy, module, mutants.values(), until_s):
                    if "error" in answer:
                        progress.console.print(f"{module}: {answer['error']}", markup=False, highlight=False)
                        continue
                    mutant = mutants[answer["name"]]
                    records.note(module, mutant, answer)
                    progress.advance(bar)
                    if answer["outcome"] == SURVIVED:
                        progress.console.print(f"{module}:{mutant.line}  {mutant.name}", markup=False, highlight=False)
                        progress.update(bar, description=f"mutants ({next(survived)} survived)")
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, spread(work)))


def answers(copy: Path, module: str, mutants: Iterable[Mutant], until_s: float) -> Iterable[dict]:
    """What a slot says of each mutant."""
    source = (ROOT / module).read_text()
    own, beside = tests_of(module)
    ours, libraries = beneath(module, own + beside)
    job = {
        "module": module,
        "beneath": [*libraries, *ours],
        "own": own,
        "beside": beside,
        "until_s": until_s,
        "mutants": [{"name": m.name, "source": m.applied(source)} for m in mutants],
    }
    with (
        open(copy / "slot.log", "a") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.slot"],
            cwd=copy,
            env=environment(copy),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as slot,
    ):
        try:
            slot.stdin.write(json.dumps(job))
            slot.stdin.close()
            for line in slot.stdout:
                yield json.loads(line)
        finally:
            slot.terminate()
    if slot.returncode > 1:
        yield {"error": f"the slot has ended with {slot.returncode}: {(copy / 'slot.log').read_text()[-2000:]}"}


def environment(copy: Path) -> dict[str, str]:
    """Of a slot: the modules of its copy, and room for what tests write."""
    (copy / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(copy), "TMPDIR": str(copy / "tmp"), "PYTHONUNBUFFERED": "1"}


def copied(to: Path) -> Path:
    """A copy of the working tree as it is, with its compiled kernels."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    names = {name for name in listed.split("\0") if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink())}
    names |= {file.relative_to(ROOT).as_posix() for file in (ROOT / "processor" / "kernels" / "compiled").iterdir()}
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    return to


def spread(work: Iterable[str]) -> list[str]:
    """Modules of all groups in turn, so that a run that is cut short has seen some of each."""
    groups = [[m for m in names if m in work] for names in modules().values()]
    return [m for row in itertools.zip_longest(*groups) for m in row if m is not None]


if __name__ == "__main__":
    sys.exit(main())
