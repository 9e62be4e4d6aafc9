"""`make -C loadtest join`: labels that come late, joined, and what is learned of them; loadtest/results/join.md.

Clicks are made up with a known truth (models.data.synthetic: 300 users, 200 items of which one leaves every 20,000
rows), at two paces: one at which the world hardly moves while a label is awaited, and one eight times as fast. A model
that has learned 40,000 rows goes on with 200,000 more, each scored before it is learned, once with their true labels
as if they came at once; its scores are what was served. The rows lie in a folder as two servers record them, the
clicks come with delays of three shapes, and `freshet join` makes of both, by the moment when the last row was served,
what two more models learn instead, in the order of its files: with late clicks as corrections, and without any. All
three then score the 60,000 rows that follow. AUC is the mean over seeds; its difference is to true labels of the same
seed, with the lowest and the highest. The aim is 0.002.

Calibration of a window of 7,200 rows (an hour at the faster pace, eight at the other): the mean label of its rows as
they are learned, weighted, over the mean of their true labels, once all of its clicks have come; given are the window
that is farthest off, and the standard deviation of all. The aim is 2 %. While the first rows become as old as clicks
come late, the share of late clicks is not known yet: those windows stand apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.models.data.synthetic import SyntheticSource, default_features
from freshet_serving.models.streams.join_run import WINDOWS, JoinRun
from freshet_serving.models.streams.join_settings import JoinSettings
from freshet_serving.models.streams.join_windows import newest_lines
from freshet_serving.models.streams.joined_folder import LABEL, WEIGHT
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.spec import draft, measure_log_odds, measure_scaling, share_of_ones
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.columns import Ragged
from loadtest.reports.report import RESULTS, begun, opening, store, table

KNOWN_ROWS, STREAM_ROWS, SCORED_ROWS = 40_000, 200_000, 60_000
PACES = (0.25, 2.0)
"""Rows a second."""
USERS, ITEMS, ITEM_ROWS, DRIFT_ROWS = 300, 200, 20_000, 3_200_000
WAIT_S, LATE_S, LAG_S, WINDOW_ROWS, FILE_ROWS = 600.0, 7200.0, 120.0, 7200, 1024
RECORDED_ROWS, RECORDERS = 1200, 2
WAYS = {"corrected": LATE_S, "uncorrected": 0.0}
"""Seconds of patience with late labels after their first window."""
AIMED_AUC, AIMED_CALIBRATION = 0.002, 0.02
TIMESTAMP = pa.timestamp("us", "UTC")

Float64s = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Float64s]


class FirstRows:
    """The first rows of a stream."""

    def __init__(self, source: Source, rows: int) -> None:
        self._source, self._rows = source, rows
        self.schema = source.schema

    def count_rows(self) -> int:
        return self._rows

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        for batch in self._source.batches(rows, start):
            if batch.start >= self._rows:
                return
            yield batch.slice(0, min(len(batch), self._rows - batch.start))


def _half(random: np.random.Generator, rows: int) -> Float64s:
    late = random.random(rows) < 0.5
    return np.where(late, random.uniform(WAIT_S, 5 * WAIT_S, rows), random.uniform(0, WAIT_S, rows))


SHAPES: dict[str, Draw] = {
    "exponential, 10 minutes": lambda random, rows: random.exponential(600, rows),
    "heavy tail (Lomax 1.5, 5 minutes)": lambda random, rows: 300 * random.pareto(1.5, rows),
    "half later than the window": _half,
}


class LateWorld:
    """The clicks of one seed, and the models that learn them."""

    def __init__(self, seed: int, pace: float) -> None:
        self._source = SyntheticSource(
            seed, users=USERS, items=ITEMS, item_rows=ITEM_ROWS, drift_rows=DRIFT_ROWS, rows_per_s=pace
        )
        given = {"model": {"name": "late"}, "data": {"path": "x.parquet", "label": "label"}}
        self._config: TrainConfig = parse_config({**given, "features": default_features()})
        known = FirstRows(self._source, KNOWN_ROWS)
        self._settings = chosen(
            self._config.train, self._config.features, KNOWN_ROWS + STREAM_ROWS, share_of_ones(known)
        )
        self._draft = draft(self._config, measure_scaling(known, self._config.features))
        self._log_odds = measure_log_odds(known)
        self.rows = pa.concat_tables(map(_recorded, self._between(KNOWN_ROWS, KNOWN_ROWS + STREAM_ROWS)))

    def learn_truth(self) -> tuple[float, NDArray[np.float32]]:
        """AUC of what follows, after learning true labels; what was served meanwhile."""
        trainer, scores = self._begun(), []
        for batch in self._between(KNOWN_ROWS, KNOWN_ROWS + STREAM_ROWS):
            scores.append(trainer.score(batch.columns))
            trainer.learn(trainer.transform(batch))
        return self._measure(trainer), np.concatenate(scores)

    def learn_joined(self, folder: Path) -> float:
        """AUC of what follows, after learning joined rows."""
        trainer = self._begun()
        data = DataConfig(str(folder), "parquet", LABEL, weight=WEIGHT)
        with PrefetchPipeline(
            open_source(data, self._config.features).batches(self._settings.batch_rows), trainer.transform
        ) as works:
            for work in works:
                trainer.learn(work)
        return self._measure(trainer)

    def _begun(self) -> Trainer:
        trainer = Trainer(self._draft, self._settings)
        trainer.dense.set_initial_bias(self._log_odds)
        for batch in self._between(0, KNOWN_ROWS):
            trainer.learn(trainer.transform(batch))
        return trainer

    def _measure(self, trainer: Trainer) -> float:
        first = KNOWN_ROWS + STREAM_ROWS
        labels, scores = [], []
        for batch in self._between(first, first + SCORED_ROWS, 8192):
            labels.append(batch.label)
            scores.append(trainer.score(batch.columns))
        return float(auc(np.concatenate(labels), np.concatenate(scores)))

    def _between(self, first: int, last: int, rows: int = 0) -> Iterator[Batch]:
        return FirstRows(self._source, last).batches(rows or self._settings.batch_rows, first)


def _recorded(batch: Batch) -> pa.Table:
    """A batch as recorders write it: a request of one row each, with the true label."""
    assert batch.time is not None
    numbers = np.arange(batch.start, batch.end)
    columns: dict[str, Any] = {
        "freshet.request": pa.array([f"r{n}" for n in numbers.tolist()]),
        "freshet.row": pa.array(np.zeros(len(batch), np.int32)),
        "freshet.time": pa.array((batch.time * 1e6).astype(np.int64)).cast(TIMESTAMP),
        "freshet.generation": pa.array(["1.0"] * len(batch)),
        "truth": pa.array(batch.label),
    }
    for name, column in batch.columns.items():
        values: Any = column
        if isinstance(column, Ragged):
            words, at = values.values.tolist(), values.row_splits.tolist()
            columns[name] = pa.array([words[a:b] for a, b in zip(at, at[1:])], pa.list_(pa.binary()))
        else:
            columns[name] = pa.array(values.tolist() if hasattr(values, "offsets") else values)
    return pa.table(columns)


def lay_out(folder: Path, rows: pa.Table, scores: NDArray[np.float32], delays_s: Float64s) -> None:
    """Recordings and outcomes of rows. delays_s: [n], of positives what their click takes."""
    about = {b"freshet": json.dumps({"model": "late"}).encode()}
    recorded = rows.drop_columns(["truth"]).append_column("freshet.output.score", pa.array(scores))
    recorded = recorded.replace_schema_metadata(about)
    times = rows["freshet.time"].cast(pa.int64()).to_numpy()
    (folder / "recordings").mkdir()
    for n, first in enumerate(range(0, len(rows), RECORDED_ROWS)):
        name = f"late-w{n % RECORDERS}-{times[first] // 1000}-{n // RECORDERS + 1}.parquet"
        pq.write_table(recorded.slice(first, RECORDED_ROWS), folder / "recordings" / name)
    clicked = np.flatnonzero(rows["truth"].to_numpy())
    came_s = times[clicked] / 1e6 + delays_s[clicked]
    served_s = times[-1] / 1e6
    order = np.argsort(came_s)
    made = {"request": rows["freshet.request"].take(pa.array(clicked[order])), "time": pa.array(came_s[order])}
    clicks = pa.table({**made, "row": pa.array(np.zeros(len(clicked), np.int64))})
    # In two files: what came while rows were served, and after that.
    by_then = int(np.searchsorted(came_s[order], served_s))
    for name, part in (("outcomes", clicks.slice(0, by_then)), ("later", clicks.slice(by_then))):
        (folder / name).mkdir()
        pq.write_table(part, folder / name / f"{name}.parquet")


def joined(folder: Path, late_s: float, pace: float, now_s: float) -> dict[str, Any]:
    """Joins what lies there at a moment, into folder/joined-<late_s>; how long it took, and what it came to."""
    out = folder / f"joined-{late_s:g}"
    places = (str(folder / "recordings"), str(folder / "outcomes"), str(out))
    times: dict[str, Any] = {"wait_s": WAIT_S, "late_s": late_s, "lag_s": LAG_S, "window_s": WINDOW_ROWS / pace}
    settings = JoinSettings(*places, **times, file_rows=FILE_ROWS)
    run = JoinRun(settings, lambda: now_s)
    began_s = time.perf_counter()
    run.run()
    took_s, status = time.perf_counter() - began_s, run.status()
    return {"out": out, "rows_per_s": status.counts.rows / took_s, "late_share": status.late_share}


def calibrations(rows: pa.Table, out: Path) -> list[dict[str, float]]:
    """Of every whole window: its mean label as it was learned over that of the truth."""
    times_s = rows["freshet.time"].cast(pa.int64()).to_numpy() / 1e6
    truth = rows["truth"].to_numpy()
    made = []
    for line in newest_lines(out / WINDOWS, 10_000):
        began_s, ended_s = line["window"], line["window"] + line["window_s"]
        if times_s[0] <= began_s and ended_s <= times_s[-1]:
            true = float(truth[(times_s >= began_s) & (times_s < ended_s)].mean())
            made.append({"since_s": float(began_s - times_s[0]), "ratio": line["mean_label"] / true})
    return made


def measure(seed: int, pace: float, note: Callable[[str], None]) -> dict[str, Any]:
    """One seed: AUC with true labels, and of each shape with what was joined."""
    world = LateWorld(seed, pace)
    true_auc, scores = world.learn_truth()
    note(f"{pace:g} rows a second, seed {seed}: true labels {true_auc:.4f}")
    found: dict[str, Any] = {"seed": seed, "pace": pace, "auc": true_auc, "shapes": {}}
    served_s = world.rows["freshet.time"][-1].value / 1e6
    for n, (shape, draw) in enumerate(SHAPES.items()):
        random = np.random.default_rng([seed, n])
        delays_s = draw(random, len(world.rows))
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            lay_out(folder, world.rows, scores, delays_s)
            kept = delays_s[delays_s <= LATE_S]
            one: dict[str, Any] = {"late_share": float((kept > WAIT_S).mean())}
            for name, late_s in WAYS.items():
                run = joined(folder, late_s, pace, served_s + LAG_S)
                one[name] = {"auc": world.learn_joined(run["out"]), "rows_per_s": run["rows_per_s"]}
                one[name]["late_share"] = run["late_share"]
            # What came afterwards, for the calibration of the last windows.
            for path in (folder / "later").iterdir():
                path.rename(folder / "outcomes" / path.name)
            for name, late_s in WAYS.items():
                run = joined(folder, late_s, pace, served_s + 2 * LATE_S)
                one[name]["windows"] = calibrations(world.rows, run["out"])
        found["shapes"][shape] = one
        note(f"  {shape}: corrected {one['corrected']['auc']:.4f}, not {one['uncorrected']['auc']:.4f}")
    return found


def ratios(ones: list[dict[str, Any]], name: str, learning: bool) -> NDArray[np.float64]:
    """Of the windows in which the late share was still being learned, or of the others."""
    windows = [window for one in ones for window in one[name]["windows"]]
    return np.array([window["ratio"] for window in windows if (window["since_s"] < LATE_S) == learning])


def off(found: NDArray[np.float64]) -> str:
    """The farthest from 1, and the standard deviation."""
    if not len(found):
        return "-"
    return f"{found[np.abs(found - 1).argmax()] - 1:+.1%} ({found.std():.1%})"


def page(results: dict[str, Any]) -> str:
    lines = opening("Labels that come late", __doc__ or "", results)
    head = ["delays", "late", "estimated", "AUC, true labels", "joined", "joined, no corrections"]
    head += ["calibration", "first windows", "calibration, no corrections"]
    for pace in PACES:
        seeds = [seed for seed in results["seeds"] if seed["pace"] == pace]
        rows = []
        for shape in SHAPES:
            ones = [seed["shapes"][shape] for seed in seeds]
            row = [shape, f"{np.mean([one['late_share'] for one in ones]):.1%}"]
            row.append(f"{np.mean([one['corrected']['late_share'] for one in ones]):.1%}")
            row.append(f"{np.mean([seed['auc'] for seed in seeds]):.4f}")
            for name in WAYS:
                lost = [seed["shapes"][shape][name]["auc"] - seed["auc"] for seed in seeds]
                row.append(f"{np.mean(lost):+.4f} ({min(lost):+.4f} to {max(lost):+.4f})")
            row += [off(ratios(ones, "corrected", False)), off(ratios(ones, "corrected", True))]
            rows.append([*row, off(ratios(ones, "uncorrected", False))])
        told = f"{pace:g} rows a second: {WAIT_S * pace:,.0f} rows a window of {WAIT_S / 60:g} minutes"
        lines += [f"## {told}", "", table(head, rows), ""]
    speed = np.median([one["corrected"]["rows_per_s"] for seed in results["seeds"] for one in seed["shapes"].values()])
    lines.append(f"The join takes {speed:,.0f} rows a second on one core, in files of {FILE_ROWS:,} rows.")
    return "\n".join(lines) + "\n"


def passed(results: dict[str, Any]) -> bool:
    """Whether both aims are met: of calibration everywhere, of AUC at the slower pace, in the mean over seeds."""
    for shape in SHAPES:
        ones = [seed["shapes"][shape] for seed in results["seeds"]]
        if np.abs(ratios(ones, "corrected", False) - 1).max() > AIMED_CALIBRATION:
            return False
        slow = [seed for seed in results["seeds"] if seed["pace"] == PACES[0]]
        if abs(np.mean([seed["shapes"][shape]["corrected"]["auc"] - seed["auc"] for seed in slow])) > AIMED_AUC:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "join")
    arguments = parser.parse_args()
    console = Console()
    results = begun("join") | {"seeds": []}
    for pace in PACES:
        for seed in range(arguments.seeds):
            results["seeds"].append(measure(seed, pace, lambda text: console.print(text, highlight=False)))
    store(arguments.out.parent, arguments.out.name, results, page(results))
    console.print(page(results), highlight=False, markup=False)
    sys.exit(not passed(results))


if __name__ == "__main__":
    main()
