"""`make -C loadtest small-tables`: defaults on twenty random small tables; loadtest/results/small-tables.md.

Each table (loadtest.bench.random_tables) is learned as `freshet train` does it: the full version in one epoch, then
twelve deltas of a sixth of its rows. Rows do not drift. After each delta the mean score of the same 2,048 rows is
compared with the one before: a good delta that moves it by half is what servers hold. AUC and log-loss are of rows that
are never learned, as many as the full version has, behind the full version and behind the last delta.

*former*: batches by the number of rows alone, the network at 0.001, as they were before the share of ones counted.
Differences are now minus former, over seeds, with the 95 % interval of a bootstrap of the rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.defaults import chosen, transformed
from freshet_serving.models.training.spec import (
    draft,
    measure_log_odds,
    measure_scaling,
    measure_transforms,
    share_of_ones,
)
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.models.training.window_guard import row_losses
from loadtest.bench.bench_defaults import RESULTS
from loadtest.bench.labelled_tables import FirstRows
from loadtest.bench.random_tables import TABLES, RandomTable, draw_shape
from loadtest.reports.report import machine, opening, origin, table

DELTAS, DELTA_SHARE, FEWEST_DELTA_ROWS = 12, 6, 100
ASKED_ROWS = 2048
RESAMPLES = 100
HALF = 0.5
FORMER, NOW = "former", "now"

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SmallTableRun:
    """What became of one table with one set of settings.

    Attributes:
        moves: of the mean score by each delta, relative to the one before.
        full, end: scores of the rows that were not learned, behind the full version and behind the last delta.
    """

    moves: list[float]
    full: Float32s
    end: Float32s


class SmallTable:
    """One random table, with both sets of defaults."""

    def __init__(self, table: RandomTable) -> None:
        self.table, self.rows = table, table.shape.rows
        config, first = table.config(), FirstRows(table, self.rows)
        self.config = replace(config, features=transformed(config.features, measure_transforms(first, config.features)))
        self._manifest = draft(self.config, measure_scaling(first, self.config.features))
        self._log_odds = measure_log_odds(first)
        self.settings: dict[str, TrainSettings] = {
            FORMER: chosen(config.train, config.features, self.rows),
            NOW: chosen(config.train, config.features, self.rows, share_of_ones(first)),
        }
        self.kept = table.rows(3 * self.rows, 4 * self.rows)

    def run(self, which: str, seed: int) -> SmallTableRun:
        """Train full version and deltas."""
        settings = replace(self.settings[which], seed=seed)
        trainer = Trainer(self._manifest, settings, self.config.network)
        trainer.dense.set_initial_bias(self._log_odds)
        for batch in FirstRows(self.table, self.rows).batches(settings.batch_rows):
            trainer.learn(batch)
        full, asked = trainer.score(self.kept.columns), self.kept.slice(0, min(ASKED_ROWS, len(self.kept)))
        moves, before = [], _mean(trainer.score(asked.columns))
        step = max(FEWEST_DELTA_ROWS, self.rows // DELTA_SHARE)
        for n in range(DELTAS):
            rows = self.table.rows(self.rows + n * step, min(self.rows + (n + 1) * step, 3 * self.rows))
            for first in range(0, len(rows), settings.batch_rows):
                trainer.learn(rows.slice(first, min(len(rows), first + settings.batch_rows)))
            now = _mean(trainer.score(asked.columns))
            moves.append(now / before - 1)
            before = now
        return SmallTableRun(moves, full, trainer.score(self.kept.columns))

    def measure(self, seeds: int) -> dict[str, Any]:
        """Compare both sets over seeds; JSON-able."""
        runs = {which: [self.run(which, seed) for seed in range(seeds)] for which in self.settings}
        label = self.kept.label
        found: dict[str, Any] = {"name": self.table.shape.name, "ones": int(label.sum())}
        for which, each in runs.items():
            settings = self.settings[which]
            found[which] = {
                "settings": f"batch {settings.batch_rows}, network {settings.dense_learning_rate:.2g}",
                "moved": max(abs(move) for run in each for move in run.moves),
                **{
                    f"{at}_{what}": float(np.mean([measure(label, getattr(run, at)) for run in each]))
                    for at in ("full", "end")
                    for what, measure in (("auc", auc), ("log_loss", mean_loss))
                },
            }
        for at in ("full", "end"):
            pairs = [(getattr(now, at), getattr(old, at)) for now, old in zip(runs[NOW], runs[FORMER])]
            found[f"{at}_auc"] = bootstrap(label, pairs, auc)
            found[f"{at}_log_loss"] = bootstrap(label, pairs, mean_loss)
        return found


def bootstrap(label: Float32s, pairs: Sequence[tuple[Float32s, Float32s]], measure: Any) -> list[float]:
    """Return the mean difference of a measure, first minus second of each pair, and its 95 % interval."""
    random, differences = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        rows = random.integers(0, len(label), len(label))
        differences.append(np.mean([measure(label[rows], a[rows]) - measure(label[rows], b[rows]) for a, b in pairs]))
    low, high = np.nanpercentile(differences, [2.5, 97.5])
    return [float(np.mean([measure(label, a) - measure(label, b) for a, b in pairs])), float(low), float(high)]


def mean_loss(label: Float32s, scores: Float32s) -> float:
    """Return the mean log-loss; a hundred times as fast as one that is kept row by row, for resamples."""
    return float(row_losses(label, scores).mean())


def _mean(scores: Float32s) -> float:
    return float(scores.astype(np.float64).mean())


def page(document: Any) -> str:
    """Write small-tables.md."""
    lines = [*opening("Small tables", __doc__ or "", document)]
    rows = []
    for found in document["tables"]:
        old, now = found[FORMER], found[NOW]
        rows.append(
            [
                found["name"],
                old["settings"],
                now["settings"],
                f"{old['moved']:.0%} -> {now['moved']:.0%}",
                f"{old['full_auc']:.3f} -> {now['full_auc']:.3f}",
                f"{old['full_log_loss']:.4f} -> {now['full_log_loss']:.4f}",
                f"{old['end_auc']:.3f} -> {now['end_auc']:.3f}",
                f"{old['end_log_loss']:.4f} -> {now['end_log_loss']:.4f}",
            ]
        )
    heads = ["table", "former", "now", "moved at most", "AUC, full", "log-loss, full", "AUC, end", "log-loss, end"]
    lines += [table(heads, rows), ""]
    rows = [[found["name"], *(_spelled(found[key]) for key in DIFFERENCES)] for found in document["tables"]]
    heads = ["table", *(key.replace("_", " ").replace("log loss", "log-loss") for key in DIFFERENCES)]
    lines += ["Differences, now minus former:", "", table(heads, rows), "", *_summary(document["tables"]), ""]
    return "\n".join(lines)


DIFFERENCES = ("full_auc", "full_log_loss", "end_auc", "end_log_loss")


def _summary(tables: Sequence[Any]) -> list[str]:
    far = {which: sum(found[which]["moved"] >= HALF for found in tables) for which in (FORMER, NOW)}
    lines = [f"Tables where a delta moved the mean score by half or more: {far[FORMER]} before, {far[NOW]} now."]
    for key in DIFFERENCES:
        sign = 1 if key.endswith("auc") else -1
        better = sum(sign * found[key][1 if sign > 0 else 2] > 0 for found in tables)
        worse = sum(sign * found[key][2 if sign > 0 else 1] < 0 for found in tables)
        mean = np.mean([found[NOW][key] / found[FORMER][key] - 1 for found in tables])
        what = key.replace("_", ", ").replace("log, loss", "log-loss")
        lines.append(f"{what}: beyond the interval better on {better}, worse on {worse}; {mean:+.2%} in the mean.")
    return lines


def _spelled(found: Sequence[float]) -> str:
    return f"{found[0]:+.4f} ({found[1]:+.4f} to {found[2]:+.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest small-tables", description=__doc__)
    parser.add_argument("--tables", type=int, default=TABLES)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    document: dict[str, Any] = {
        "machine": machine(),
        "origin": origin("-C loadtest small-tables", "ARGS", sys.argv[1:]),
    }
    document["tables"] = []
    arguments.out.mkdir(parents=True, exist_ok=True)
    for seed in range(arguments.tables):
        found = SmallTable(RandomTable(draw_shape(seed, arguments.tables))).measure(arguments.seeds)
        console.print(
            f"{found['name']}: moved {found[FORMER]['moved']:.0%} -> {found[NOW]['moved']:.0%};"
            f" {', '.join(f'{key} {_spelled(found[key])}' for key in DIFFERENCES)}"
        )
        document["tables"].append(found)
        (arguments.out / "small-tables.json").write_text(json.dumps(document, indent=1) + "\n")
        (arguments.out / "small-tables.md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main()
