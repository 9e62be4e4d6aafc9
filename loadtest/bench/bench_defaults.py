"""`make -C loadtest defaults`: what `freshet train` chooses, against the best of a grid; loadtest/results/defaults.md.

Each table is cut by its order: 70 % are learned, in one epoch; on the next 15 % the grid's best is chosen, by the AUC
of one seed; on the last 15 % default and best are compared, over five seeds, with an interval of the difference by a
bootstrap of the rows that both scored. A table's result replaces its last one in defaults.json; those that were not
measured now stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.spec import draft, measure_log_odds, measure_scaling, share_of_ones
from freshet_serving.models.training.trainer import Trainer
from loadtest.bench.labelled_tables import TABLES, FirstRows, LabelledTable

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "loadtest" / "results"
DATA = Path(os.environ.get("FRESHET_DATA", ROOT.parent / "shared" / "data"))
LEARNED, CHOSEN_ON = 0.7, 0.85
SEEDS, RESAMPLES = 5, 200
SCORED_ROWS = 8192
RATES = (("adam", 0.1, (0.001, 0.003, 0.01)), ("adagrad", 0.1, (0.05,)), ("adagrad", 1e-6, (0.01, 0.03, 0.1)))
"""Of the grid: optimizer, where its accumulators begin, learning rates."""

Float32s = NDArray[np.float32]


class LabelledSplit:
    """One table opened: learns from its first rows, scores the others."""

    def __init__(self, table: LabelledTable, data: Path) -> None:
        self._source, features = table.open(data / table.data)
        self.config: TrainConfig = table.config(features)
        rows = self._source.count_rows() or 0
        self.learned, self._chosen_on = round(rows * LEARNED), round(rows * CHOSEN_ON)
        first = FirstRows(self._source, self.learned)
        self._manifest = draft(self.config, measure_scaling(first, self.config.features))
        self._log_odds, self._ones = measure_log_odds(first), share_of_ones(first)

    def default(self) -> TrainSettings:
        """What `freshet train` chooses for the rows that are learned."""
        return chosen(self.config.train, self.config.features, self.learned, self._ones)

    def scores(self, settings: TrainSettings, seed: int) -> tuple[Float32s, Float32s]:
        """(labels, scores) of all rows that were not learned, after one epoch."""
        trainer = Trainer(self._manifest, replace(settings, seed=seed))
        trainer.dense.set_initial_bias(self._log_odds)
        for batch in FirstRows(self._source, self.learned).batches(settings.batch_rows):
            trainer.learn(batch)
        labels, scores = [], []
        for batch in self._source.batches(SCORED_ROWS, self.learned):
            labels.append(batch.label)
            scores.append(trainer.score(batch.columns))
        return np.concatenate(labels), np.concatenate(scores)

    def measure(self, console: Console) -> dict[str, Any]:
        """The table's result: settings, AUCs on the last rows, and the interval of their difference."""
        later = self._chosen_on - self.learned
        found = []
        for settings in grid(self.default().batch_rows):
            labels, scores = self.scores(settings, 0)
            found.append((auc(labels[:later], scores[:later]), settings))
            console.print(f"  {shown(settings)}: {found[-1][0]:.4f}")
        best = max(found, key=lambda pair: pair[0])[1]
        pairs = []
        for seed in range(SEEDS):
            labels, default = self.scores(self.default(), seed)
            pairs.append((default[later:], self.scores(best, seed)[1][later:]))
        labels = labels[later:]
        low, high = interval(labels, pairs)
        of_default, of_best = (float(np.mean([auc(labels, pair[i]) for pair in pairs])) for i in (0, 1))
        return {
            "rows": self.learned,
            "default": shown(self.default()),
            "best": shown(best),
            "auc": [of_default, of_best],
            "difference": [of_default - of_best, low, high],
        }


def grid(batch_rows: int) -> list[TrainSettings]:
    """What the default is compared with; batch_rows: the default's own."""
    smaller = min(batch_rows, 128)
    return [
        TrainSettings(batch, 1, optimizer, rate, 0.001, initial_accumulator=accumulator)
        for optimizer, accumulator, rates in RATES
        for rate in rates
        for batch in (smaller, 4 * smaller)
    ]


def interval(labels: Float32s, pairs: Sequence[tuple[Float32s, Float32s]], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean difference of AUC, first minus second of each pair, over resampled rows."""
    random = np.random.default_rng(seed)
    differences = []
    for _ in range(RESAMPLES):
        rows = random.integers(0, len(labels), len(labels))
        differences.append(np.mean([auc(labels[rows], a[rows]) - auc(labels[rows], b[rows]) for a, b in pairs]))
    low, high = np.nanpercentile(differences, [2.5, 97.5])
    return float(low), float(high)


def shown(settings: TrainSettings) -> str:
    """Settings in a word: `adagrad 0.05 from 1e-06, batch 128`."""
    begins = "" if settings.optimizer == "adam" else f" from {settings.initial_accumulator:g}"
    return f"{settings.optimizer} {settings.learning_rate:.2g}{begins}, batch {settings.batch_rows}"


def page(results: dict[str, Any]) -> str:
    """defaults.md."""
    lines = ["# Defaults", "", __doc__.split("\n\n", 1)[1].strip(), ""]
    optimizers = "; ".join(f"{name} from {begins:g} at {', '.join(map(str, rates))}" for name, begins, rates in RATES)
    lines += [f"The grid: {optimizers}; each in batches of the default's size, at most 128, and of four times that;"]
    lines += ["the network at 0.001.", ""]
    lines += ["| table | rows learned | default | AUC | best of the grid | AUC | difference (95 %) |"]
    lines += ["|---|---:|---|---:|---|---:|---:|"]
    for name in (name for name in TABLES if name in results):
        r = results[name]
        difference, low, high = r["difference"]
        lines.append(
            f"| {name} | {r['rows']:,} | {r['default']} | {r['auc'][0]:.4f} | {r['best']} | {r['auc'][1]:.4f}"
            f" | {difference:+.4f} ({low:+.4f} to {high:+.4f}) |"
        )
    missing = [name for name in TABLES if name not in results]
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)} (docs/reference/data.md says where real data are from)."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest defaults", description=__doc__)
    parser.add_argument("--only", default="", help="tables whose names hold this")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with ml-1m and criteo; FRESHET_DATA")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console, kept = Console(stderr=True, highlight=False), arguments.out / "defaults.json"
    results: dict[str, Any] = json.loads(kept.read_bytes()) if kept.exists() else {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        if arguments.only not in name:
            continue
        if table.data and not (arguments.data / table.data).exists():
            console.print(f"{name}: not at --data")
            continue
        console.print(f"[bold]{name}[/bold]")
        results[name] = LabelledSplit(table, arguments.data).measure(console)
        kept.write_text(json.dumps(results, indent=1) + "\n")
        (arguments.out / "defaults.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
