"""`make -C loadtest small-runs`: what a run over 2,000 new rows costs; results/small-runs.md.

A log of 200,000 rows is a folder of files; a first `freshet train` publishes its version and deltas. Then one more file
of 2,000 rows comes and the same command runs again, as a shop's nightly or hourly task does: from the checkpoint, to
one delta. Its processor time is compared with that of `python -c "import tensorflow"`, which no run can do without,
alternating with it. Models: flat features, the same with the items' columns from an entity, `din` over histories from
events, and the next-item network `sasrec_next`. Each has had two runs before that are not counted, so that what is
kept between runs is there.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.bench.event_logs import KINDS, event_log
from loadtest.reports.report import machine, opening, origin

RESULTS = Path(__file__).parents[2] / "results"
ROWS, NEW_ROWS, AIM_S = 200_000, 2_000, 4.0
COMMON = """
[model]
name = "shop"
{arch}
[data]
path = "{folder}"
format = "parquet"
label = "label"
time = "time"
[publish]
repository = "repository"
full_rows = {full}
delta_rows = 2000
"""
USER = '[features.user_id]\nkind = "id"\nside = "user"\n'
ITEM = '[features.item_id]\nkind = "id"\nside = "item"\n'
CATEGORY = '[features.category]\nkind = "id"\nside = "item"\n'
HISTORY = """
[sequences.history]
columns = {{ item = "item_id" }}
tables = {{ item = "item_id" }}
from_events = "user_id"
{where}
"""
ENTITY = '[entities.item]\nkey = "item_id"\npath = "items.parquet"\ncolumns = ["category"]\n'
MODELS = {
    "flat": ('arch = "deepfm"', USER + ITEM + CATEGORY),
    "entities": ('arch = "deepfm"', USER + ITEM + CATEGORY + ENTITY),
    "din": ('arch = "din"', USER + ITEM + CATEGORY + HISTORY.format(where='where = "label"')),
    "sasrec_next": ('arch = "sasrec_next"', USER + ITEM + HISTORY.format(where='ties = "file"')),
}


def cpu_s(command: list[str], folder: Path) -> float:
    """Return the processor seconds of a command that must end with 0."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command[:4])}: {ended.stdout[-600:]}{ended.stderr[-600:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Shop:
    """A folder with a log that grows."""

    def __init__(self, folder: Path, rows: int, new_rows: int, files: int) -> None:
        kind = next(kind for kind in KINDS if kind.name == "last item")
        self._columns = dict(event_log(kind, 1, rows + files * new_rows).columns)
        self._folder, self._at, self._new_rows = folder / "log", 0, new_rows
        self._folder.mkdir()
        items, first = np.unique(self._columns["item_id"], return_index=True)
        pq.write_table(
            pa.table({"item_id": items, "category": self._columns["category"][first]}), folder / "items.parquet"
        )
        self.grow(rows)

    def grow(self, rows: int = 0) -> None:
        """Add a file."""
        stop = self._at + (rows or self._new_rows)
        names = ("user_id", "item_id", "category", "time", "label")
        table = pa.table({name: self._columns[name][self._at : stop] for name in names})
        pq.write_table(table, self._folder / f"{self._at:09}.parquet")
        self._at = stop


def measured(name: str, rows: int, new_rows: int, rounds: int) -> dict[str, Any]:
    """Return the processor seconds of runs of a model and of TensorFlow's import, by round."""
    arch, features = MODELS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shop = Shop(folder, rows, new_rows, rounds + 1)
        file = folder / "train.toml"
        log = folder / "log"
        text = COMMON.format(arch=arch, folder=log, full=rows - 10 * new_rows) + features
        if name == "entities":
            # The category is the entity's, not the log's.
            for path in sorted(log.glob("*.parquet")):
                pq.write_table(pq.read_table(path).drop(["category"]), path)
        file.write_text(text)
        train = [sys.executable, "-m", "freshet_serving", "train", "--config", str(file)]
        first = cpu_s(train, folder)
        shop.grow()
        cpu_s(train, folder)
        runs, imports = [], []
        for _ in range(rounds):
            shop.grow()
            runs.append(cpu_s(train, folder))
            imports.append(cpu_s([sys.executable, "-c", "import tensorflow"], folder))
    beyond = [run - plain for run, plain in zip(runs, imports)]
    return {
        "first_s": round(first, 1),
        "runs_s": [round(value, 2) for value in runs],
        "imports_s": [round(value, 2) for value in imports],
        "beyond_s": round(statistics.median(beyond), 2),
        "ratio": round(statistics.median(run / plain for run, plain in zip(runs, imports)), 2),
    }


def page(results: dict[str, Any], aim_s: float) -> str:
    """Return the report."""
    lines = [
        "| model | the first run, s | a run over the new rows, s | import of TensorFlow, s | beyond it, s | ratio |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, figures in results.items():
        runs, imports = (statistics.median(figures[key]) for key in ("runs_s", "imports_s"))
        lines.append(
            f"| {name} | {figures['first_s']} | {runs:.2f} | {imports:.2f} | {figures['beyond_s']:.2f} |"
            f" {figures['ratio']:.2f} |"
        )
    late = [name for name, figures in results.items() if figures["beyond_s"] > aim_s]
    verdict = f"not met by {', '.join(late)}" if late else "met by all"
    return "\n".join([*lines, "", f"Processor seconds, medians. The aim, {aim_s:g} s beyond the import, is {verdict}."])


def main() -> None:
    """Run the benchmark, and write the report."""
    parser = argparse.ArgumentParser(prog="make -C loadtest small-runs", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--new-rows", type=int, default=NEW_ROWS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    stored: dict[str, Any] = {"machine": machine(), "origin": origin("-C loadtest small-runs", "ARGS", sys.argv[1:])}
    stored["models"] = {}
    for name in options.models:
        stored["models"][name] = measured(name, options.rows, options.new_rows, options.rounds)
        print(name, stored["models"][name], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "small-runs.json").write_text(json.dumps(stored, indent=1))
    lines = [*opening("Runs over few new rows", __doc__ or "", stored), page(stored["models"], AIM_S), ""]
    (options.out / "small-runs.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
