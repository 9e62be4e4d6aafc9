"""`make -C loadtest sequence-quality`: rankers over histories on MovieLens-1M; loadtest/results/sequence-quality.md.

Rows in order of time: 80 % are learned, the next 10 % choose, the last 10 % are what is reported. A row is a rating;
its label is 4 stars and more; its history is what the user gave 4 stars and more strictly before it, the newest 50.
Features are the user, the movie and the history, embeddings have 16 numbers, rows are shuffled, and of up to three
epochs the best on the choosing rows is kept. Freshet's settings are those that it chooses itself; `hstu` also reads
the times. FuxiCTR's DIN has an embedding for each id of the learned rows and one for all others, the same layers, Adam
at its default rate with the better of two batches by seed 0, its own early stopping, and an environment of its own.
`deepfm` has no history. Each run is kept when it ends; the command continues where it was stopped, seed after seed.
Next-item models, which are measured over all items, are in next-item-logs.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.compiler.building.auc import auc
from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.spec import draft, measure_log_odds, measure_scaling, share_of_ones
from freshet_serving.models.training.trainer import Trainer
from loadtest.bench import needs
from loadtest.bench.training.sequence_rows import EPOCHS, SCORED_ROWS, Run, SequenceRows, best_epoch
from loadtest.reports.report import RESULTS, begun, opening, store, stored, table

PEER_PYTHON = needs.ROOT / "build" / "fuxictr-venv" / "bin" / "python"
VENV = "`make -C loadtest fuxictr-venv` makes it"
ARCHS = ("deepfm", "din", "stca", "sasrec", "hstu", "bst")
PEER = "FuxiCTR DIN"
SEEDS = (0, 1, 2)
WAYS = tuple({"batch": batch, "rate": 0.001, "regularizer": 0.0} for batch in (2048, 512))
"""The rate and the regularizer are FuxiCTR's defaults."""
GOALS = (("din", PEER, -0.001), ("stca", "din", -0.001), ("din", "deepfm", 0.0), ("stca", "deepfm", 0.0))
"""(side, other side, the least by which the first is to be better)."""

Way = Mapping[str, Any]


def freshet_run(rows: SequenceRows, arch: str, seed: int) -> Run:
    """With what `freshet train` chooses, rows shuffled."""
    config, source = rows.config(arch), rows.source(arch)
    learned, names = rows.parts["learned"][1], [f.name for f in config.features]
    settings = replace(chosen(config.train, config.features, learned, share_of_ones(source)), seed=seed)
    trainer = Trainer(draft(config, measure_scaling(source, config.features)), settings, config.network)
    trainer.dense.set_initial_bias(measure_log_odds(source))
    random = np.random.default_rng(seed)

    def learn() -> None:
        with PrefetchPipeline(rows.batches("learned", settings.batch_rows, names, random), trainer.transform) as works:
            for work in works:
                trainer.learn(work)

    def auc_of(part: str) -> float:
        found = [(trainer.score(trainer.transform(b)), b.label) for b in rows.batches(part, SCORED_ROWS, names)]
        scores, labels = (np.concatenate(column) for column in zip(*found))
        return float(auc(labels, scores))

    return best_epoch(learn, auc_of, EPOCHS)


def fuxictr_run(python: str, rows: Path, way: Way, seed: int) -> Run:
    """Raises subprocess.CalledProcessError."""
    words = [str(rows), str(way["batch"]), str(way["rate"]), str(way["regularizer"]), str(seed), str(EPOCHS)]
    told = subprocess.check_output([python, str(Path(__file__).with_name("fuxictr_din_side.py")), *words], text=True)
    run: Run = json.loads(told.splitlines()[-1])
    return run


class Runs:
    """What was run, by rows, side, settings and seed; each is kept as soon as it is there and not run again."""

    def __init__(self, out: Path, rows: int, console: Console) -> None:
        self._out, self._console = out, console
        self.results = {"by_rows": {}} | stored(out, "sequence-quality") | begun("sequence-quality")
        self._sides = self.results["by_rows"].setdefault(str(rows), {"sides": {}})
        self._sides["load"] = round(os.getloadavg()[0], 1)

    def of(self, side: str, way: Way, seed: int, run: Callable[[], Run]) -> Run:
        """Return a run, made first if it is not kept."""
        told = ", ".join(f"{key} {value:g}" for key, value in way.items()) or "its own choice"
        seeds: dict[str, Run] = self._sides["sides"].setdefault(side, {}).setdefault(told, {})
        if str(seed) not in seeds:
            began = time.perf_counter()
            seeds[str(seed)] = run() | {"seconds": round(time.perf_counter() - began, 1)}
            store(self._out, "sequence-quality", self.results, page(self.results))
            figures = ", ".join(f"{name} {value:.4g}" for name, value in seeds[str(seed)].items())
            self._console.print(f"  {side}, {told}, seed {seed}: {figures}")
        return seeds[str(seed)]


def of_seeds(ways: Mapping[str, Mapping[str, Run]]) -> tuple[str, list[Run]]:
    """Return a side's settings, those with the most seeds and then the best choosing rows, and their runs by seed."""
    told, runs = max(ways.items(), key=lambda item: (len(item[1]), item[1]["0"]["choosing"]))
    return told, [runs[str(seed)] for seed in SEEDS if str(seed) in runs]


def page(results: Mapping[str, Any]) -> str:
    lines = opening("Quality of networks over histories", __doc__ or "", results)
    lines += [f"The command is that of the last run. Aims are compared once both sides have {len(SEEDS)} seeds.", ""]
    for rows, part in sorted(results["by_rows"].items(), key=lambda item: int(item[0])):
        lines += [f"## {int(rows):,} rows", "", *of_rows(part), ""]
    return "\n".join(lines[:-1]) + "\n"


def of_rows(part: Mapping[str, Any]) -> list[str]:
    """Return the tables of the runs over the same rows."""
    found = {side: of_seeds(ways) for side, ways in part["sides"].items() if ways}
    means = {side: statistics.mean(run["auc"] for run in runs) for side, (_, runs) in found.items()}
    rows = []
    for side, (told, runs) in found.items():
        each = ", ".join(f"{run['auc']:.4f}" for run in runs)
        epochs, seconds = (", ".join(f"{run[name]:.0f}" for run in runs) for name in ("epochs", "seconds"))
        rows.append([side, f"{means[side]:.4f}", each, epochs, seconds, told])
    aims = []
    for side, other, least in GOALS:
        if side in means and other in means and len(found[side][1]) == len(found[other][1]) == len(SEEDS):
            more = means[side] - means[other]
            aims.append([f"{side} at least {other} {least:+.3f}", f"{more:+.4f}", "yes" if more >= least else "no"])
    return [
        f"{part['load']} processes waited for the cores when it began: it shows in seconds, not in AUC.",
        "",
        table(["side", "AUC, mean", "by seed", "epochs", "seconds", "settings"], rows),
        "",
        table(["aim", "difference", "met"], aims),
    ]


def race(runs: Runs, rows: SequenceRows, archs: Sequence[str], python: str) -> None:
    best: Way = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npz"
        if python:
            rows.save_coded(file)
        for seed in SEEDS:
            for arch in archs:
                runs.of(arch, {}, seed, partial(freshet_run, rows, arch, seed))
            for way in WAYS if python and not best else [best] * bool(python):
                runs.of(PEER, way, seed, partial(fuxictr_run, python, file, way, seed))
            if python and not best:
                tried = [(runs.of(PEER, way, seed, dict)["choosing"], n) for n, way in enumerate(WAYS)]
                best = WAYS[max(tried)[1]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest sequence-quality", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="*", choices=ARCHS, default=list(ARCHS), help="networks")
    add("--rows", type=int, default=0, help="the first so many; 0: all")
    add("--data", type=Path, default=needs.DATA, help="folder with ml-1m; FRESHET_DATA")
    add("--alone", action="store_true", help="without the peer")
    add("--out", type=Path, default=RESULTS, help="what its sequence-quality.json has is not run again")
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    tf.get_logger().setLevel("ERROR")
    folder = needs.movielens(arguments.data)
    if not arguments.alone:
        needs.interpreter(PEER_PYTHON, VENV)
    rows = SequenceRows(folder, arguments.rows)
    runs = Runs(arguments.out, rows.all, console)
    race(runs, rows, arguments.only, "" if arguments.alone else str(PEER_PYTHON))
    print(page(runs.results))


if __name__ == "__main__":
    main()
