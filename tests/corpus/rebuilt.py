"""Compiles every entry's versions anew, in today's format, and compares the scores with those of the files as frozen.

    python -m tests.corpus.rebuilt [ENTRY ...]
    make -C loadtest corpus-rebuilt

Same backend, precision and batch sizes; in float32 every score must stay within WITHIN, in a lower precision within the
bound that `freshet compile` keeps by default, since its ranges are calibrated anew. Entries without a graph to compile,
and those that are signed, are left out by name. Exit status: 0 where all scores are within, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from freshet_serving.compiler.building.calibrate import Tolerance
from freshet_serving.compiler.building.recompile import CompileOptions, compile_version
from freshet_serving.compiler.progress import SilentReporter
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.package import Manifest, undivided_name
from tests.corpus.entry import FROZEN, Entry, entries
from tests.corpus.scoring import lacking, scored

WITHIN = 1e-6
LOOSE = Tolerance(0.05, 1.0)


def rebuilt(entry: Entry, folder: Path) -> Entry:
    """A copy of the entry whose versions are compiled anew; raises FreshetError where one cannot be."""
    shutil.copytree(entry.folder, folder)
    store, moments = folder / "store", entry.moments
    for path in sorted(folder.rglob("model.json")):
        before = Manifest.from_json(path.read_bytes())
        listed = [e for e in before.executables if e.subgraph == undivided_name(before)]
        precision = next((e.precision for e in listed if e.precision != "float32"), "float32")
        backends = tuple(dict.fromkeys(e.backend for e in listed))
        buckets = tuple(sorted({e.bucket for e in listed}))
        options = CompileOptions(backends=backends, precision=precision, buckets=buckets, bound=LOOSE)
        compile_version(path.parent, options, SilentReporter())
        after = Manifest.from_json(path.read_bytes())
        assert after.format == "freshet/2"
        assert bool(after.graphs) == bool(before.graphs), f"{entry.name}: divided otherwise than before"
        version = path.parent.relative_to(store).as_posix()
        compiled = f"{version}/compiled/"
        new = [f"{version}/{name}" for name in sorted(after.files) if name.startswith("compiled/")]
        moments = [replace(moment, arrived=_with(moment.arrived, compiled, new)) for moment in moments]
    return replace(entry, folder=folder, moments=moments)


def _with(arrived: list[str], compiled: str, new: list[str]) -> list[str]:
    """The files of a moment with other compiled ones in the place of those that came with it."""
    others = [name for name in arrived if not name.startswith(compiled)]
    return arrived if len(others) == len(arrived) else [*new, *others]


def apart(entry: Entry, aside: Path) -> tuple[int, float]:
    """(scores, the largest difference) of an entry as frozen and compiled anew."""
    anew = rebuilt(entry, aside / "frozen" / entry.name)
    (aside / "a").mkdir()
    (aside / "b").mkdir()
    worst, count = 0.0, 0
    for frozen, compiled in zip(scored(entry, aside / "a"), scored(anew, aside / "b"), strict=True):
        for name, values in frozen.scores.items():
            off = abs(values.astype(float) - compiled.scores[name].astype(float))
            worst, count = max(worst, float(off.max(initial=0.0))), count + values.size
    return count, worst


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.rebuilt", description=__doc__)
    parser.add_argument("entry", nargs="*", help="names of entries; all of them by default")
    chosen = parser.parse_args().entry
    failed = 0
    for entry in entries(FROZEN):
        if chosen and entry.name not in chosen:
            continue
        if missing := lacking(entry):
            print(f"{entry.name:22} left out: lacks {', '.join(missing)}")
            continue
        if entry.keys:
            print(f"{entry.name:22} left out: signed")
            continue
        lower = "int8" in json.dumps(entry.computes) or "bfloat16" in json.dumps(entry.computes)
        with tempfile.TemporaryDirectory(prefix="freshet-rebuilt-") as folder:
            try:
                count, worst = apart(entry, Path(folder))
            except FreshetError as error:
                print(f"{entry.name:22} left out: {error}")
                continue
        within = LOOSE.error if lower else WITHIN
        failed += worst > within
        print(f"{entry.name:22} {count:5} scores, off by at most {worst:.2g} (allowed {within:g})", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
