"""`make -C loadtest follow-worth`: served fresh against frozen at the first version; results/follow-worth.md.

The first part of a log makes the full version; the rest is followed in the order of time, a delta a window. Each window
is scored before it is learned, by the newest generation and by the first, with a server's tables and executables.
`deepfm` reads flat features, `din` histories from events besides: AUC. `sasrec_next` ranks what comes next among all
items: NDCG@10. A history is what the log has of the user before the row; for `din` frozen twice it is that of the first
version, as in a store that nobody writes to.

Logs: a made-up shop of this repository's generator whose users act on their last items and on tastes that drift, and
whose items' quality ages; and MovieLens-1M, if FRESHET_DATA has it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.joined_rows import joined_rows
from freshet_serving.models.data.movielens import MovieLensSource
from freshet_serving.models.data.next_item_rows import NextItemRows
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.data.source import Batch, Field, Source
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking
from freshet_serving.models.evaluation.evaluate import inputs_of
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.next_item_evaluation import NextItemRanker
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.columns import Column, Ragged, take_rows
from loadtest.bench.event_logs import LogKind, event_log
from loadtest.reports.report import machine, opening, origin

RESULTS = Path(__file__).parents[2] / "results"
SHOP = LogKind(
    "followed shop", 0, 3_000, 800, last=1.4, shown_followers=0.3, taste=0.8, drift=0.03, quality=0.8, ageing=4.0
)
ML_COLUMNS = tuple(
    Field(name, kind) for name, kind in (("user_id", "id"), ("movie_id", "id"), ("year", "id"), ("occupation", "id"))
)
SHOP_LOG, ML_LOG = "shop", "MovieLens-1M"
CASES, TOP = 2048, 10
FRESH, FROZEN, FROZEN_TWICE = "fresh", "frozen", "frozen twice"


@dataclass(frozen=True, slots=True)
class FollowedLog:
    """A log in the order of time.

    Attributes:
        item: Name of the column of items.
        others: Names of columns of ids that are features besides user_id and the item.
        table: The rows.
        first: Rows of the full version.
        window: Rows of a delta.
    """

    item: str
    others: tuple[str, ...]
    table: pa.Table
    first: int
    window: int


@dataclass(slots=True)
class Figures:
    """AUC or NDCG of each window, and of all together, by side."""

    windows: dict[str, list[float]] = field(default_factory=dict)
    whole: dict[str, float] = field(default_factory=dict)


def shop(windows: int, scale: float) -> FollowedLog:
    first, window = int(60_000 * scale), int(2_500 * scale)
    columns = event_log(SHOP, 1, first + windows * window).columns
    return FollowedLog("item_id", ("category", "hour"), pa.table(dict(columns)), first, window)


def movielens(folder: Path, windows: int, scale: float) -> FollowedLog:
    first, window = int(400_000 * scale), int(10_000 * scale)
    parts = []
    for batch in MovieLensSource(str(folder), ML_COLUMNS).batches(20_000):
        parts.append(pa.table(dict(batch.columns) | {"label": batch.label, "time": batch.time}))
    return FollowedLog(
        "movie_id", ("year", "occupation"), pa.concat_tables(parts)[: first + windows * window], first, window
    )


def config_of(arch: str, log: FollowedLog, folder: Path) -> TrainConfig:
    features = {
        name: {"kind": "id", "side": "user" if name in ("user_id", "occupation") else "item"}
        for name in ("user_id", log.item, *(log.others if arch != "sasrec_next" else ()))
    }
    history = {"columns": {"item": log.item}, "tables": {"item": log.item}, "from_events": "user_id"}
    history |= {"ties": "file"} if arch == "sasrec_next" else {"where": "label"}
    return parse_config(
        {
            "model": {"name": arch, "arch": arch},
            "data": {"path": str(folder / "log"), "label": "label", "time": "time", "follow": True},
            "features": features,
            "sequences": {} if arch == "deepfm" else {"history": history},
            "train": {"seed": 1},
            "publish": {
                "repository": str(folder / "repository"),
                "full_rows": log.first,
                "delta_rows": log.window,
            },
        }
    )


class Windows:
    """The windows of a log, scored by generations of one model."""

    def __init__(self, config: TrainConfig, source: Source, log: FollowedLog) -> None:
        self._config, self._source, self._log = config, source, log
        self._old: dict[str, Column] | None = None
        self._users = np.empty(0, np.int64)
        self.labels: list[np.ndarray] = []
        self.scores: dict[str, list[np.ndarray]] = {}

    def score(self, number: int, fresh: GenerationScorer, frozen: GenerationScorer, figures: Figures) -> None:
        """Score the rows of a window; add each side's AUC."""
        log = self._log
        batch = next(iter(self._source.batches(log.window, log.first + number * log.window)))
        sides: dict[str, tuple[GenerationScorer, Batch]] = {FRESH: (fresh, batch), FROZEN: (frozen, batch)}
        if isinstance(self._source, SequenceSource):
            sides[FROZEN_TWICE] = frozen, self._with_old_histories(batch)
        self.labels.append(batch.label)
        for side, (scorer, rows) in sides.items():
            scores = scorer.score(inputs_of(scorer.description, rows), len(rows), scorer.outputs(["label"]))
            self.scores.setdefault(side, []).append(scores)
            figures.windows.setdefault(side, []).append(float(auc(batch.label, scores)))
            figures.whole[side] = float(auc(np.concatenate(self.labels), np.concatenate(self.scores[side])))

    def remember(self) -> None:
        """Keep the histories as they are at the first version."""
        if not isinstance(self._source, SequenceSource):
            return
        events = self._source.events_before(self._log.first)["history"]
        keys, splits, times, values = events.histories(events.users(), self._log.first, 0.0)
        order = np.argsort(np.asarray(keys))
        self._users = np.asarray(keys)[order]
        # The last row is that of users who had no events.
        self._old = {
            name: take_rows(
                Ragged(lists.values, np.append(lists.row_splits, lists.row_splits[-1])), np.append(order, len(order))
            )
            for name, lists in self._source.lists("history", splits, times, values).items()
        }

    def _with_old_histories(self, batch: Batch) -> Batch:
        assert self._old is not None
        users = np.asarray(batch.columns["user_id"])
        place = np.searchsorted(self._users, users)
        known = np.append(self._users, -1)[place] == users
        rows = np.where(known, place, len(self._users))
        old = {name: take_rows(lists, rows) for name, lists in self._old.items()}
        return Batch(dict(batch.columns) | old, batch.label, batch.time, batch.start)


class NextItemWindows:
    """The windows of a log, ranked by generations of a next-item network."""

    def __init__(self, config: TrainConfig, source: Source, log: FollowedLog) -> None:
        assert isinstance(source, SequenceSource)
        self._config, self._source, self._log = config, source, log
        self._columns = [f for f in config.features if f.sequence is not None]
        self._item = next(f for f in config.features if f.side == "item")
        self._events = next(f.name for f in self._columns if f.table == self._item.table)
        self._whole: dict[str, CatalogueRanking] = {}

    def remember(self) -> None:
        """Do nothing: a history is always that of the log."""

    def score(self, number: int, fresh: GenerationScorer, frozen: GenerationScorer, figures: Figures) -> None:
        """Rank the items of a window's events; add each side's NDCG."""
        (sequence,) = self._config.sequences.values()
        first = self._log.first + number * self._log.window
        rows = NextItemRows(self._source.events, sequence, self._columns, first + self._log.window)
        cases = list(rows.cases(CASES, first, self._events))
        for side, scorer in ((FRESH, fresh), (FROZEN, frozen)):
            ranker, one = NextItemRanker(scorer, self._item, self._events), CatalogueRanking(TOP)
            whole = self._whole.setdefault(side, CatalogueRanking(TOP))
            for histories, targets in cases:
                whole._tally.add(ranker.rank(histories, targets, one).ranks)
            figures.windows.setdefault(side, []).append(one.result().ndcg)
            figures.whole[side] = whole.result().ndcg


def followed(arch: str, log: FollowedLog, windows: int) -> Figures:
    """Train on a log as it comes; return what each side scored before."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "log").mkdir()
        borders = [0, *range(log.first, len(log.table) + 1, log.window)]
        for first, stop in pairwise(borders):
            pq.write_table(log.table[first:stop], folder / "log" / f"{first:09}.parquet")
        config = config_of(arch, log, folder)
        source = joined_rows(lambda fields: open_source(config.data, fields), config.features, config.joined)
        scored = (NextItemWindows if arch == "sasrec_next" else Windows)(config, source, log)
        run = (NextItemRun if arch == "sasrec_next" else TrainingRun)(config)
        run.full()
        scored.remember()
        repository = str(folder / "repository")
        frozen = GenerationScorer(repository, arch)
        scored.score(0, frozen, frozen, figures)
        # A followed log has no end: nothing is awaited after the last window that is scored.
        for number, _ in zip(range(1, windows), run.stream()):
            scored.score(number, GenerationScorer(repository, arch), frozen, figures)
            newest = {side: round(values[-1], 4) for side, values in figures.windows.items()}
            print(f"{log.item} {arch} window {number}: {newest}", flush=True)
    return figures


def measured(name: str, arch: str, data: Path, windows: int, scale: float) -> dict[str, Any]:
    """Return the figures of one model on one log."""
    log = shop(windows, scale) if name == SHOP_LOG else movielens(data / "ml-1m", windows, scale)
    figures = followed(arch, log, windows)
    return {
        "log": name,
        "model": arch,
        "figure": "NDCG@10" if arch == "sasrec_next" else "AUC",
        "full_rows": log.first,
        "window_rows": log.window,
        "whole": figures.whole,
        "windows": figures.windows,
    }


def draw(stored: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    runs = stored["runs"]
    figure, axes = plt.subplots(1, len(runs), figsize=(4.2 * len(runs), 3.6), layout="constrained", squeeze=False)
    for run, place in zip(runs, axes[0]):
        for side, values in run["windows"].items():
            place.plot((np.arange(len(values)) + 0.5) * run["window_rows"], values, label=side)
        place.set(title=f"{run['model']}, {run['log']}", xlabel="events since the first version", ylabel=run["figure"])
        place.legend(frameon=False)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def page(stored: dict[str, Any]) -> str:
    """Return the report."""
    lines = [
        "| log | model | figure | fresh | frozen | gain | frozen, histories too | gain | windows won |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in stored["runs"]:
        whole, windows = run["whole"], run["windows"]
        won = sum(a > b for a, b in zip(windows[FRESH][1:], windows[FROZEN][1:]))
        twice = whole.get(FROZEN_TWICE)
        lines.append(
            f"| {run['log']} | {run['model']} | {run['figure']} | {whole[FRESH]:.4f} | {whole[FROZEN]:.4f} |"
            f" {whole[FRESH] - whole[FROZEN]:+.4f} | {'' if twice is None else f'{twice:.4f}'} |"
            f" {'' if twice is None else f'{whole[FRESH] - twice:+.4f}'} | {won} of {len(windows[FRESH]) - 1} |"
        )
    sizes = {(run["log"], run["full_rows"], run["window_rows"], len(run["windows"][FRESH])) for run in stored["runs"]}
    told = "; ".join(
        f"{log}: {first:,} rows, then {n} windows of {window:,}" for log, first, window, n in sorted(sizes)
    )
    return "\n".join(
        [
            *lines,
            "",
            f"{told}. In the first window all have the same weights.",
            *stored["skipped"],
            "",
            "![over time](follow-worth.png)",
        ]
    )


def main() -> None:
    """Run the benchmark, and write the report."""
    parser = argparse.ArgumentParser(prog="make -C loadtest follow-worth", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=Path(os.environ.get("FRESHET_DATA", "")), help="folder that has ml-1m")
    add("--logs", nargs="+", default=[SHOP_LOG, ML_LOG], choices=[SHOP_LOG, ML_LOG])
    add("--models", nargs="+", default=["deepfm", "din", "sasrec_next"], choices=["deepfm", "din", "sasrec_next"])
    add("--windows", type=int, default=24)
    add("--scale", type=float, default=1.0, help="of the numbers of rows")
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    stored: dict[str, Any] = {
        "machine": machine(),
        "origin": origin("-C loadtest follow-worth", "ARGS", sys.argv[1:]),
        "skipped": [],
        "runs": [],
    }
    logs = [name for name in options.logs if name == SHOP_LOG or (options.data / "ml-1m").is_dir()]
    if len(logs) < len(options.logs):
        stored["skipped"] += ["", "MovieLens-1M was skipped: FRESHET_DATA names no folder that has ml-1m."]
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [(name, arch, options.data, options.windows, options.scale) for name in logs for arch in options.models]
    # One a core; what has ended is kept if a later one fails.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(measured, *one) for one in wanted]):
            stored["runs"] = sorted([*stored["runs"], done.result()], key=lambda run: (run["log"], run["model"]))
            (options.out / "follow-worth.json").write_text(json.dumps(stored, indent=1) + "\n")
            draw(stored, options.out / "follow-worth.png")
            lines = [*opening("What following brings", __doc__ or "", stored), page(stored), ""]
            (options.out / "follow-worth.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
