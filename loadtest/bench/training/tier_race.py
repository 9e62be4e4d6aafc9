"""`make -C loadtest tiers`: tables four times as large as their memory, beside the same tables in memory;
loadtest/results/train-tiers.md.

Two trainers in one process learn the same rows in turn: DeepFM over 8 ids, each with a table of its own, drawn with a
chance of one over their number. Every row is there from the beginning, with its number of lookups. One trainer has
room for a share of the rows, and its logs are taken out of the page cache all the time, so that what it reads comes
from the disk. A lookup is the finding of all rows of one batch, insertion and pooling; those during which a log was
compacted count apart. A stall is the time between two batches, at the beginning of a stretch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.embedding.tiered_rows import TieredRows
from freshet_serving.models.embedding.variable import Changes
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from loadtest.bench.training.freshet_side import batches, race_config
from loadtest.bench.training.race_shape import DIM, FEATURES, RaceShape
from loadtest.reports.report import machine, opening, origin

RESULTS = Path(__file__).parents[2] / "results"
FILLED_ROWS = 1 << 18
FORGET_S = 0.2
ROW_NBYTES = 2 * DIM * 4 + 29
"""Of a row and its slots, with its books."""


class RaceTrainer:
    """A trainer with its batches. turns: seconds a step. lookups, compacting: seconds of each lookup, all and those
    beside a compaction. stalls: of each batch, until it came."""

    def __init__(self, shape: RaceShape, tables: dict[str, TableConfig], scratch: Path) -> None:
        config = race_config(shape)
        self.trainer = Trainer(draft(config, {}), config.train, config.network, tables=tables, scratch=scratch)
        for table in self.trainer.own.values():
            table.restore(_filled(shape.table_rows))
        self.works = self.trainer.with_prefetched_rows(PrefetchPipeline(batches(shape), self.trainer.transform))
        self.turns: list[float] = []
        self.lookups: list[float] = []
        self.compacting: list[float] = []
        self.stalls: list[float] = []

    def learn(self, steps: int, compacts: threading.Event) -> None:
        began_s = time.perf_counter()
        for _ in range(steps):
            asked_s = time.perf_counter()
            work = next(self.works)
            self.stalls.append(time.perf_counter() - asked_s)
            before_s, beside = self.trainer.profile.measured()["look up"].wall_s, compacts.is_set()
            self.trainer.learn(work)
            spent_s = self.trainer.profile.measured()["look up"].wall_s - before_s
            (self.compacting if beside or compacts.is_set() else self.lookups).append(spent_s)
        self.turns.append((time.perf_counter() - began_s) / steps)


def _filled(rows: int) -> Changes:
    """A table in which every id has its row, and has been read as often as its chance is."""
    keys, random = np.arange(rows), np.random.default_rng(1)
    values = random.uniform(-0.01, 0.01, (rows, DIM)).astype(np.float32)
    counts = (rows / (keys + 1)).astype(np.int64)
    slots, steps = np.full((rows, DIM), 0.1, np.float32), np.zeros(rows, np.int64)
    return Changes(keys, values, slots, steps, counts, np.empty(0, np.int64))


@contextmanager
def watched(compacts: threading.Event) -> Iterator[None]:
    """Sets the event while any log is compacted."""
    compact_log = TieredRows.compact_log

    def told(table: TieredRows) -> None:
        compacts.set()
        try:
            compact_log(table)
        finally:
            compacts.clear()

    TieredRows.compact_log = told  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        TieredRows.compact_log = compact_log  # type: ignore[method-assign]


@contextmanager
def without_page_cache(trainer: Trainer) -> Iterator[None]:
    """Has the page cache keep nothing of the logs."""
    ended = threading.Event()

    def forget() -> None:
        while not ended.wait(FORGET_S):
            for table in trainer.own.values():
                assert table.tiers is not None
                table.tiers.cold.forget()

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def race(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Turns of either side and what the tiers did meanwhile."""
    shape = RaceShape(arguments.batch_rows, arguments.table_rows)
    budget_mb = max(1, round(arguments.table_rows * ROW_NBYTES * arguments.share / 2**20))
    compacts = threading.Event()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch, watched(compacts):
        memory = RaceTrainer(shape, {}, Path(scratch))
        tables = {f"f{f}": TableConfig(memory_mb=budget_mb, cache=arguments.cache) for f in range(FEATURES)}
        tiers = RaceTrainer(shape, tables, Path(scratch))
        with memory.works, tiers.works, without_page_cache(tiers.trainer):
            for side in (memory, tiers):
                side.learn(arguments.steps, compacts)
                side.turns, side.lookups, side.compacting, side.stalls = [], [], [], []
            for number in range(arguments.rounds):
                for side in (memory, tiers) if number % 2 else (tiers, memory):
                    side.learn(arguments.steps, compacts)
                console.print(f"  round {number + 1}: {tiers.turns[-1] * 1e3:.1f} ms, {memory.turns[-1] * 1e3:.1f} ms")
            logs = [table.tiers for table in tiers.trainer.own.values() if table.tiers is not None]
            return {
                "machine": machine(),
                "origin": origin("-C loadtest tiers", "ARGS", sys.argv[1:]),
                "table_rows": arguments.table_rows,
                "batch_rows": arguments.batch_rows,
                "budget_mb": budget_mb,
                "cache": arguments.cache,
                "rows_in_memory": sum(one.hot for one in logs),
                "rows_on_disk": sum(len(one.cold) for one in logs),
                "log_nbytes": sum(one.cold.log_nbytes for one in logs),
                "compactions": sum(one.cold.compactions for one in logs),
                "turns": {"tiers": tiers.turns, "memory": memory.turns},
                "lookups": {"memory": memory.lookups, "tiers": tiers.lookups, "compacting": tiers.compacting},
                "stalls": {"tiers": tiers.stalls, "memory": memory.stalls},
            }


def page(result: dict[str, Any]) -> str:
    """train-tiers.md."""
    turns, rows = result["turns"], result["rows_in_memory"] + result["rows_on_disk"]
    speeds = [memory / tiers for memory, tiers in zip(turns["memory"], turns["tiers"])]
    lines = opening("Tables larger than memory", __doc__, result)
    lines += [
        f"{FEATURES} tables, {rows:,} rows of {DIM} floats with as many slots; batches of {result['batch_rows']:,};"
        f" {result['budget_mb']} MiB a table ({result['cache']}): {result['rows_in_memory']:,} rows in memory,"
        f" {result['rows_on_disk']:,} in logs of {result['log_nbytes'] >> 20:,} MiB, of which {result['compactions']:,}"
        " segments were emptied.",
        "",
        f"**Speed beside all rows in memory: {statistics.median(speeds):.2f}** ({min(speeds):.2f} to"
        f" {max(speeds):.2f}), {len(speeds)} rounds; a step takes {statistics.median(turns['tiers']) * 1e3:.1f} ms and"
        f" {statistics.median(turns['memory']) * 1e3:.1f} ms.",
        "",
        "| what | times | median ms | p99 ms | longest ms |",
        "|---|---:|---:|---:|---:|",
    ]
    names = {
        "lookup, all rows in memory": result["lookups"]["memory"],
        "lookup, tiers": result["lookups"]["tiers"],
        "lookup, tiers, a log being compacted": result["lookups"]["compacting"],
        "until the next batch, tiers": result["stalls"]["tiers"],
    }
    for name, seconds in names.items():
        if seconds:
            median, p99, longest = (float(value) * 1e3 for value in np.quantile(seconds, [0.5, 0.99, 1.0]))
            lines.append(f"| {name} | {len(seconds):,} | {median:.2f} | {p99:.2f} | {longest:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest tiers", description=__doc__)
    add = parser.add_argument
    add("--table-rows", type=int, default=500_000, help="of each of the tables")
    add("--batch-rows", type=int, default=4096)
    add("--share", type=float, default=0.25, help="of a table that its memory has room for")
    add("--cache", default="lfu")
    add("--rounds", type=int, default=7)
    add("--steps", type=int, default=200, help="of a turn")
    add("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="a folder on the disk that is measured")
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    result = race(arguments, Console(stderr=True, highlight=False))
    text = page(result)
    (arguments.out / "train-tiers.md").write_text(text)
    for kind in ("lookups", "stalls"):
        result[kind] = {name: np.quantile(s, [0.5, 0.99, 1.0]).tolist() for name, s in result[kind].items() if s}
    (arguments.out / "train-tiers.json").write_text(json.dumps(result, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
