"""`make -C loadtest growth`: steps of training while a table grows to 50M rows; loadtest/results/train-growth.md.

8 features read one table of dim 16 by adagrad, 4,096 rows a step, so 32,768 ids, of which one in 50 is new. A second
trainer, whose table begins each size anew with a million rows, takes turns with it in the same process. Ids are drawn
with a chance of one over their rank, of a million that lie all over the large table, the same batches for both (the
same ids), or of all the rows that it has (its own ids), so that steps meet more different rows the larger it is. A
ratio is of one round's turns, given with its quartiles; the aim is 1.2. Table: of a step, looking up and updating.

Between sizes the table is filled by insertions of 4,096 new ids, each timed: the longest is what a step waits for when
columns are copied to twice their length or the index is built anew. Longest step: of all of the large table's, the
first ones after filling among them. Bytes a row: what is resident more than before the first row; optimizer, books and
index are in it. Peak: the most that the process has had so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch
from freshet_serving.models.embedding.variable import EmbeddingVariable
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from loadtest.bench.scale import resident_nbytes
from loadtest.bench.training.race_shape import DENSE_RATE, DIM, FEATURES, HIDDEN, RATE
from loadtest.reports.report import machine, opening, origin, table

RESULTS = Path(__file__).parents[2] / "results"
MILLION = 1_000_000
SIZES = (1, 2, 5, 10, 20, 50)
BATCH_ROWS, FILLED_IDS, NEW = 4096, 4096, 0.02
SMALL, SAME, OWN = "a million", "the same ids", "its own ids"
SCATTER = 982_451_653
"""A prime, so that ranks times it, modulo the rows, are all rows."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class GrowingTrainer:
    """A trainer of one table."""

    def __init__(self, batch_rows: int) -> None:
        config = parse_config(
            {
                "model": {"name": "growth", "hidden": list(HIDDEN)},
                "data": {"path": "rows.parquet", "label": "label"},
                "features": {f"f{f}": {"kind": "id", "dim": DIM, "table": "ids"} for f in range(FEATURES)},
                "train": {
                    "batch_rows": batch_rows,
                    "optimizer": "adagrad",
                    "learning_rate": RATE,
                    "initial_accumulator": 0.1,
                    "dense_learning_rate": DENSE_RATE,
                },
            }
        )
        self._trainer = Trainer(draft(config, {}), config.train, config.network)

    @property
    def table(self) -> EmbeddingVariable:
        return self._trainer.own["ids"]

    def turn(self, batches: Sequence[Batch]) -> tuple[list[float], float]:
        """(seconds of each step, those of all steps spent on the table). Learns batches that were transformed."""
        works, before, steps = [self._trainer.transform(batch) for batch in batches], self._table_s(), []
        for work in works:
            started_s = time.perf_counter()
            self._trainer.learn(work)
            steps.append(time.perf_counter() - started_s)
        return steps, self._table_s() - before

    def fill(self, pieces: Iterable[Int64s]) -> list[float]:
        """Gives ids their rows, a piece at a time; seconds of each insertion."""
        taken = []
        for ids in pieces:
            started_s = time.perf_counter()
            self.table.insert(ids)
            taken.append(time.perf_counter() - started_s)
        self.table.clear_changed()
        return taken

    def _table_s(self) -> float:
        stage_times = self._trainer.profile.measured()
        return stage_times["look up"].wall_s + stage_times["update"].wall_s


class Growth:
    """The two trainers. common: rows that the small table begins with."""

    def __init__(self, common: int, batch_rows: int, seed: int = 0) -> None:
        self._common, self._batch_rows = common, batch_rows
        self._random = np.random.default_rng(seed)
        self._made = 0
        self.large, self.small = GrowingTrainer(batch_rows), GrowingTrainer(batch_rows)
        for trainer in (self.large, self.small):
            trainer.turn([self._batch(self._ids(1, common)[0], self._fresh(1)[0])])
            trainer.fill(map(ids_of, numbered(0, common)))
        # Without the large table's rows, with the small one's.
        self.large.table.clear()
        self._made, self._empty_nbytes = 0, resident_nbytes()

    def measure(self, rows: int, rounds: int, steps: int) -> dict[str, Any]:
        """Fills the large table up to so many rows and takes turns, each of so many steps."""
        inserts = self.large.fill(map(ids_of, numbered(self._made, rows)))
        self._made = max(self._made, rows)
        self.small.table.clear()
        self.small.fill(ids_of(scattered(ranks, rows)) for ranks in numbered(0, self._common))
        turns: dict[str, list[list[float]]] = {SMALL: [], SAME: [], OWN: []}
        tables: dict[str, list[float]] = {SMALL: [], SAME: [], OWN: []}
        for number in range(rounds):
            same = self._batches(steps, self._common, rows)
            sides = [(SMALL, self.small, same), (SAME, self.large, same)]
            sides += [(OWN, self.large, self._batches(steps, rows, rows))]
            for name, trainer, batches in sides if number % 2 else sides[::-1]:
                taken, table_s = trainer.turn(batches)
                turns[name].append(taken)
                tables[name].append(table_s)
        held = len(self.large.table)
        return {
            "rows": rows,
            "steps_s": turns,
            "tables_s": tables,
            "different_ids": {name: _different(batches) for name, _, batches in sides},
            "insert_s": [statistics.median(inserts), max(inserts)] if inserts else [],
            "row_nbytes": (resident_nbytes() - self._empty_nbytes) / held,
            "peak_nbytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def _batches(self, steps: int, ranks: int, rows: int) -> list[Batch]:
        known, fresh = ids_of(scattered(self._ids(steps, ranks), rows)), self._fresh(steps)
        return [self._batch(some, new) for some, new in zip(known, fresh)]

    def _batch(self, known: Int64s, fresh: Int64s) -> Batch:
        """A batch of known ids, some of them replaced by fresh ones."""
        ids = known.copy()
        ids[self._random.permutation(len(ids))[: len(fresh)]] = fresh
        columns = ids.reshape(FEATURES, -1)
        labels = (self._random.random(columns.shape[1]) < 0.3).astype(np.float32)
        return Batch({f"f{f}": columns[f] for f in range(FEATURES)}, labels, None, 0)

    def _ids(self, steps: int, ranks: int) -> Int64s:
        """Ranks [steps, ids of a batch] by a power law, as race_shape draws them."""
        uniform = self._random.random((steps, FEATURES * self._batch_rows))
        drawn: Int64s = np.exp(uniform * np.log(ranks + 1.0)).astype(np.int64) - 1
        return drawn

    def _fresh(self, steps: int) -> Int64s:
        """Ids [steps, _] that no table has."""
        count = round(FEATURES * self._batch_rows * NEW)
        numbers = np.arange(self._made, self._made + steps * count).reshape(steps, count)
        self._made += steps * count
        return ids_of(numbers)


def numbered(first: int, last: int) -> Iterator[Int64s]:
    """The numbers from first to before last, so many at a time as an insertion takes."""
    for at in range(first, last, FILLED_IDS):
        yield np.arange(at, min(at + FILLED_IDS, last))


def scattered(ranks: Int64s, rows: int) -> Int64s:
    """Where ranks lie among rows: all over them, each somewhere else."""
    places: Int64s = ranks * SCATTER % rows
    return places


def ids_of(numbers: Int64s) -> Int64s:
    """The ids of rows by number, all over int64."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def _different(batches: Sequence[Batch]) -> float:
    """Ids that a batch has, repeats not counted; the mean."""
    return statistics.mean(len(np.unique([np.asarray(c) for c in batch.columns.values()])) for batch in batches)


def page(results: dict[str, Any]) -> str:
    """train-growth.md."""
    lines = opening("Growing tables", __doc__, results)
    header = ["rows", f"ms a step, {SMALL}", f"{SAME}, times", "of it the table", f"{OWN}, times", "of it the table"]
    header += ["different ids a step", "longest step, ms", "insertion, ms: median, longest", "bytes a row", "peak, GB"]
    return "\n".join([*lines, table(header, map(_cells, results["sizes"]))]) + "\n"


def _cells(size: dict[str, Any]) -> list[str]:
    steps = {name: [sum(turn) for turn in turns] for name, turns in size["steps_s"].items()}
    longest = max(step for name in (SAME, OWN) for turn in size["steps_s"][name] for step in turn)
    ms = 1e3 * statistics.median(step for turn in size["steps_s"][SMALL] for step in turn)
    ratios = []
    for name in (SAME, OWN):
        ratios += [_ratio(steps[name], steps[SMALL]), _ratio(size["tables_s"][name], size["tables_s"][SMALL])]
    inserts = ", ".join(f"{1e3 * taken:,.1f}" for taken in size["insert_s"])
    return [
        f"{size['rows']:,}",
        f"{ms:.1f}",
        *ratios,
        ", ".join(f"{size['different_ids'][name]:,.0f}" for name in (SAME, OWN)),
        f"{1e3 * longest:,.0f}",
        inserts,
        f"{size['row_nbytes']:.0f}",
        f"{size['peak_nbytes'] / 1e9:.1f}",
    ]


def _ratio(large: Sequence[float], small: Sequence[float]) -> str:
    found = [a / b for a, b in zip(large, small)]
    low, _, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
    return f"**{statistics.median(found):.2f}** ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest growth", description=__doc__)
    add = parser.add_argument
    add("--sizes", type=float, nargs="+", default=list(SIZES), help="millions of rows, ascending")
    add("--rounds", type=int, default=15)
    add("--steps", type=int, default=10, help="of a turn")
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    results: dict[str, Any] = {"machine": machine(), "origin": origin("-C loadtest growth", "ARGS", sys.argv[1:])}
    results["sizes"] = []
    arguments.out.mkdir(parents=True, exist_ok=True)
    growth = Growth(MILLION, BATCH_ROWS)
    for size in arguments.sizes:
        results["sizes"].append(growth.measure(round(size * MILLION), arguments.rounds, arguments.steps))
        console.print(" | ".join(_cells(results["sizes"][-1])))
        # After each: a size too large for the machine ends the process.
        (arguments.out / "train-growth.json").write_text(json.dumps(results, indent=1) + "\n")
        (arguments.out / "train-growth.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
