"""`make -C loadtest quality`: AUC beside plain Keras and FuxiCTR on MovieLens-1M; loadtest/results/train-quality.md.

Rows in order of time: 80 % are learned, the next 10 % choose, the last 10 % are what is reported. All sides have the
same network (Freshet's zoo builds Keras' too, with the same first weights), the same eight features, shuffled rows, and
up to three epochs, of which the best on the choosing rows is kept. Freshet's settings are those that it chooses itself.
Peers have an embedding for each id of the learned rows and one for all others, and learn by Adam with the best of
several rates and batches, Keras' tried on the first network. What is chosen is chosen by seed 0 on the choosing rows,
epochs included. `Freshet in order` learns the rows in order of time, as a stream is learned.
`rated4` is 4 stars and more, `rated5` 5 of 5, a stand-in for a second label. FuxiCTR's DCN-v2 is its own, in an
environment of its own, and also tries regularizers of its embeddings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.compiler.building.auc import auc
from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.data.movielens import MovieLensSource
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.spec import draft, measure_log_odds, measure_scaling, share_of_ones
from freshet_serving.models.training.trainer import Trainer
from loadtest.bench import needs
from loadtest.bench.training.keras_quality import SCORED_ROWS, keras_run
from loadtest.bench.training.quality_rows import EPOCHS, LABELS, QualityRows, Run, best_epoch, said
from loadtest.reports.report import machine, opening, origin

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
DATA = Path(os.environ.get("FRESHET_DATA", HERE.parents[3] / "shared" / "data"))
ARCHS = {"deepfm": LABELS[:1], "dcn": LABELS[:1], "dlrm": LABELS[:1], "mmoe": LABELS, "esmm": LABELS}
SEEDS = (0, 1, 2)
MANY, FEW = 2048, 512
RATES = (0.001, 0.002, 0.004)
REGULARIZERS = (1e-5, 1e-4)

Way = dict[str, Any]
"""A peer's settings: batch, rate and, of FuxiCTR, regularizer of its embeddings; {} of Freshet."""
Side = Callable[[Way, int, int], Run]
"""A run with these settings, of this seed, over at most so many epochs."""
Step = Callable[[Way], list[Way]]
"""What is to be tried once the best of what was tried before is known."""


def rates(best: Way) -> list[Way]:
    return [{"batch": MANY, "rate": rate} for rate in RATES]


def fixed(way: Way) -> Step:
    return lambda best: [way]


def other_batch(best: Way) -> list[Way]:
    """With the rate that goes with the batch's root."""
    batch = FEW if best["batch"] == MANY else MANY
    return [best | {"batch": batch, "rate": best["rate"] * math.sqrt(batch / best["batch"])}]


def regularized(best: Way) -> list[Way]:
    return [best | {"regularizer": regularizer} for regularizer in REGULARIZERS]


def freshet_run(rows: QualityRows, arch: str, mixed: bool, way: Way, seed: int, epochs: int) -> Run:
    """With what `freshet train` chooses. mixed: rows are shuffled, as peers do, and not in order of time."""
    labels = ARCHS[arch]
    config, source = rows.config(arch, labels), MovieLensSource(rows.data, (), labels)
    ones = share_of_ones(source)
    settings = replace(chosen(config.train, config.features, rows.parts["learned"][1], ones), seed=seed)
    trainer = Trainer(draft(config, measure_scaling(source, config.features)), settings, config.network)
    trainer.dense.set_initial_bias(measure_log_odds(source))
    random = np.random.default_rng(seed) if mixed else None

    def learn() -> None:
        with PrefetchPipeline(
            rows.batches("learned", settings.batch_rows, len(labels), random), trainer.transform
        ) as works:
            for work in works:
                trainer.learn(work)

    def aucs(part: str) -> list[float]:
        scores = [trainer.score(batch.columns) for batch in rows.batches(part, SCORED_ROWS, len(labels))]
        scored = np.concatenate(scores).reshape(-1, len(labels))
        label = rows.coded(part, len(labels))[1]
        return [float(auc(label[:, k], scored[:, k])) for k in range(len(labels))]

    return best_epoch(learn, aucs, epochs)


def fuxictr_run(python: str, rows: Path, way: Way, seed: int, epochs: int) -> Run:
    """Raises subprocess.CalledProcessError."""
    words = [str(rows), str(way["batch"]), str(way["rate"]), str(way.get("regularizer", 0)), str(seed), str(epochs)]
    told = subprocess.check_output([python, str(HERE / "fuxictr_side.py"), *words], text=True)
    run: Run = json.loads(told.splitlines()[-1])
    return run


def write_rows(rows: QualityRows, path: Path) -> None:
    """The rows by part and column, for a side with an environment of its own."""
    arrays: dict[str, Any] = {"sizes": np.array(json.dumps(rows.sizes))}
    for part in rows.parts:
        ids, label = rows.coded(part, 1)
        arrays |= {f"{part}.{name}": column for name, column in ids.items()} | {f"{part}.label": label}
    np.savez(path, **arrays)


class Runs:
    """What was run, by network, side, settings and seed; each is kept as soon as it is there and not run again."""

    def __init__(self, out: Path, rows: int, console: Console) -> None:
        self._out, self._console = out, console
        kept = out / "train-quality.json"
        found = json.loads(kept.read_bytes()) if kept.exists() else {}
        self.results: dict[str, Any] = found if found.get("rows") == rows else {"rows": rows, "archs": {}}
        self.results |= {"machine": machine(), "origin": origin("-C loadtest quality", "ARGS", sys.argv[1:])}

    def of(self, arch: str, name: str, steps: Sequence[Step], side: Side) -> Way:
        """Tries a side's ways on the first seed, and runs the others with the best of them, its epochs included."""
        tried: list[tuple[Run, Way]] = []
        best: Way = {}
        for ways in steps:
            for way in ways(best):
                tried.append((self._run(arch, name, way, SEEDS[0], EPOCHS, side), way))
            first, best = max(tried, key=lambda pair: pair[0]["choosing"])
        for seed in SEEDS[1:]:
            self._run(arch, name, best, seed, first["epochs"], side)
        return best

    def _run(self, arch: str, name: str, way: Way, seed: int, epochs: int, side: Side) -> Run:
        told = ", ".join(f"{key} {value:g}" for key, value in way.items()) or "its own choice"
        seeds = self.results["archs"].setdefault(arch, {}).setdefault(name, {}).setdefault(told, {})
        if str(seed) not in seeds:
            seeds[str(seed)] = side(way, seed, epochs)
            (self._out / "train-quality.json").write_text(json.dumps(self.results, indent=1) + "\n")
            (self._out / "train-quality.md").write_text(page(self.results))
            self._console.print(f"  {name}, {told}, seed {seed}: {said(seeds[str(seed)])}")
        kept: Run = seeds[str(seed)]
        return kept


def finished(ways: Mapping[str, Mapping[str, Run]]) -> tuple[str, list[Run]] | None:
    """A side's settings, those that all seeds were run with, and its run a seed; None where there is none yet."""
    return next(((way, [runs[str(s)] for s in SEEDS]) for way, runs in ways.items() if len(runs) == len(SEEDS)), None)


def page(results: dict[str, Any]) -> str:
    """train-quality.md."""
    lines = opening("Quality of training", __doc__, results)
    lines += [
        "| network | label | Freshet | peer | its AUC | Freshet's more; by seed | epochs | peer's settings |",
        "|---|---|---:|---|---:|---|---|---|",
    ]
    for arch, sides in results["archs"].items():
        ours = finished(sides.get("Freshet", {}))
        for k, label in enumerate(ARCHS[arch]):
            for name, ways in sides.items():
                theirs = finished(ways)
                if ours is None or theirs is None or name == "Freshet":
                    continue
                mine, its = ([run["auc"][k] for run in side[1]] for side in (ours, theirs))
                each = ", ".join(f"{a - b:+.4f}" for a, b in zip(mine, its))
                epochs = " / ".join(", ".join(str(run["epochs"]) for run in side[1]) for side in (ours, theirs))
                mean = statistics.mean(mine) - statistics.mean(its)
                lines.append(
                    f"| `{arch}` | {label} | {statistics.mean(mine):.4f} | {name} | {statistics.mean(its):.4f}"
                    f" | **{mean:+.4f}** ({each}) | {epochs} | {theirs[0]} |"
                )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest quality", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", choices=ARCHS, default=list(ARCHS), help="networks")
    add("--rows", type=int, default=0, help="the first so many; 0: all")
    add("--data", type=Path, default=DATA, help="folder with ml-1m; FRESHET_DATA")
    add("--fuxictr", default=os.environ.get("FRESHET_FUXICTR_PYTHON", ""), help="a Python that has fuxictr and torch")
    add("--out", type=Path, default=RESULTS, help="what its train-quality.json has is not run again")
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    tf.get_logger().setLevel("ERROR")
    rows = QualityRows(needs.movielens(arguments.data), arguments.rows)
    runs = Runs(arguments.out, rows.all, console)
    settled: Way = {}
    for arch in arguments.only:
        console.print(f"[bold]{arch}[/bold]")
        runs.of(arch, "Freshet", (fixed({}),), partial(freshet_run, rows, arch, True))
        keras = partial(keras_run, rows, arch, ARCHS[arch])
        settled = runs.of(arch, "Keras", (fixed(settled),) if settled else (rates, other_batch), keras)
        if arch == "dcn" and arguments.fuxictr:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "rows.npz"
                write_rows(rows, file)
                side = partial(fuxictr_run, arguments.fuxictr, file)
                runs.of(arch, "FuxiCTR", (fixed(settled), other_batch, regularized), side)
        elif arch == "dcn":
            console.print("  FuxiCTR: not measured, --fuxictr or FRESHET_FUXICTR_PYTHON is to name a Python with it")
    for arch in arguments.only:
        runs.of(arch, "Freshet in order", (fixed({}),), partial(freshet_run, rows, arch, False))
    print(page(runs.results))


if __name__ == "__main__":
    main()
