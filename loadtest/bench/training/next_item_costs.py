"""`make -C loadtest next-item-costs`: what counts in the items' rows cost; loadtest/results/next-item-costs.md.

The default `sasrec_next` of 50 learned numbers, whose rows also hold popularity and 16 successors, and the same file
with `popularity = false`, over one log of events. Each ratio is of both sides in turn, by processor time, with
quartiles: a step of training on new events, a request with candidates, one for the best items, and the scan of a large
table that is part of one. Bytes are those of the files.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.columns import Column, Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.row_ranking import rank_rows
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.package import TableEntry
from freshet_serving.processor.package.item_rows import ItemRows
from freshet_serving.processor.tables.table import ServedTable
from loadtest.bench.event_logs import TASTES, event_log
from loadtest.bench.pairs import Pair, PairRatio, compare
from loadtest.reports.report import machine, opening, origin, table

RESULTS = Path(__file__).parents[2] / "results"
ROWS, DELTA_ROWS, DIM, LENGTH, CANDIDATES, TOP = 12_000, 2_000, 50, 50, 100, 10
HISTORIES, REQUESTS, SCANNED, ROUNDS = 64, 20, 100_000, 15
SIDES: dict[str, dict[str, Any]] = {"counts": {}, "alone": {"popularity": False}}


class Side(NamedTuple):
    """A model that was trained and is served."""

    run: NextItemRun
    processor: Processor
    width: int
    table_bytes: int
    delta_bytes: int


@contextmanager
def made(folder: Path, options: dict[str, Any], rows: int, log: Path) -> Iterator[Side]:
    """Yield a model of a log, trained in one pass, with one delta."""
    raw = {
        "model": {"name": "next", "arch": "sasrec_next", **options},
        "data": {"path": str(log), "label": "seen", "time": "time"},
        "features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item", "dim": DIM},
        },
        "sequences": {
            "history": {
                "columns": {"item": "item_id"},
                "tables": {"item": "item_id"},
                "from_events": "user_id",
                "ties": "file",
                "max_length": LENGTH,
            }
        },
        "train": {"epochs": 1, "seed": 1},
        "publish": {"repository": str(folder / "repository"), "full_rows": rows - DELTA_ROWS, "delta_rows": DELTA_ROWS},
    }
    run = NextItemRun(parse_config(raw), checkpoints=folder / "checkpoints")
    run.run()
    version = folder / "repository" / "next" / "1"
    table_bytes, delta_bytes = (
        sum(file.stat().st_size for file in (version / part).rglob("*") if file.is_file())
        for part in ("tables", "deltas")
    )
    with Processor.initialize(ProcessorConfig(str(folder / "repository"), sessions=1)) as processor:
        yield Side(run, processor, run.trainer.own["item_id"].dim, table_bytes, delta_bytes)


def histories(items: Any, count: int) -> Ragged:
    """Return histories of all events that training reads, drawn from a log's items."""
    drawn = np.random.default_rng(5).choice(items, count * (LENGTH + 1))
    return Ragged(drawn, np.arange(count + 1) * (LENGTH + 1))


def scanned(width: int, read: int, rows: int) -> Any:
    """Return a function that scans a table of rows of a width for the best items, of which a product reads some."""
    random = np.random.default_rng(3)
    keys = np.sort(random.choice(1 << 40, rows, replace=False)).astype(np.int64)
    index = hash_index.empty_index(hash_index.capacity_for(rows))
    hash_index.build(index.ctypes.data, len(index), keys)
    values = random.standard_normal((rows, width)).astype(np.float32)
    tensors = {"keys": keys, "index": index, "rows": values}
    items = ServedTable(TableEntry("items", width, rows), tensors)
    codes = RowCodes(items, tensors, read)
    while codes.refresh(0):
        pass
    users, none = random.standard_normal((1, read)).astype(np.float32), [np.empty(0, np.int64)]

    def scan() -> Any:
        # The table is held for as long as its descriptor is read.
        return rank_rows(np.array(items.descriptor()), 0, codes.arrays, users, none, TOP, lambda rows_read: True)

    return scan


def compared(counts: Side, alone: Side, items: Any, rows: int, rounds: int) -> dict[str, PairRatio]:
    """Return the ratios of both sides' times."""
    several, one = histories(items, HISTORIES), histories(items, 1)
    batch = Batch({"history.item": several}, np.full(HISTORIES, LENGTH, np.float32), None, 0)
    candidates: dict[str, Column] = {"item_id": np.unique(items)[:CANDIDATES].astype(np.int64), "history.item": one}

    def learn(side: Side) -> Any:
        return lambda: side.run.trainer.learn(batch)

    def score(side: Side) -> Any:
        return lambda: [side.processor.process(PredictRequest("next", candidates)) for _ in range(REQUESTS)]

    def best(side: Side) -> Any:
        request = PredictRequest("next", {"history.item": one}, top_items=TOP)
        return lambda: [side.processor.process(request) for _ in range(REQUESTS)]

    layout = ItemRows.around(DIM, {})
    pairs = {
        "learn": Pair(
            "training, 1,000 events", learn(counts), learn(alone), HISTORIES * LENGTH // 1000, "1,000 events"
        ),
        "score": Pair(f"{CANDIDATES} candidates", score(counts), score(alone), REQUESTS, "request"),
        "best": Pair(f"the best {TOP} of the log's items", best(counts), best(alone), REQUESTS, "request"),
        "scan": Pair(
            f"scan of {rows:,} items", scanned(layout.width, layout.dense, rows), scanned(DIM, DIM, rows), 1, "scan"
        ),
    }
    return {name: compare(pair, rounds, time.process_time_ns) for name, pair in pairs.items()}


def measure(rows: int, scan_rows: int, rounds: int) -> dict[str, Any]:
    """Return the figures of both sides."""
    columns = event_log(TASTES, 1, rows).columns
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        events = zip(columns["user_id"].tolist(), columns["item_id"].tolist(), columns["time"].tolist())
        lines = [f"{user},{item},1,{at}" for user, item, at in events]
        (folder / "log.csv").write_text("\n".join(["user_id,item_id,seen,time", *lines]) + "\n")
        sides = {
            name: stack.enter_context(made(folder / name, options, rows, folder / "log.csv"))
            for name, options in SIDES.items()
        }
        ratios = compared(sides["counts"], sides["alone"], columns["item_id"], scan_rows, rounds)
        bytes_of = {
            name: {"numbers": side.width, "table": side.table_bytes, "delta": side.delta_bytes}
            for name, side in sides.items()
        }
    return {"bytes": bytes_of, "times": {name: asdict(ratio) for name, ratio in ratios.items()}}


def page(results: dict[str, Any]) -> str:
    """Return the report."""
    lines = opening("The cost of counts in items' rows", __doc__ or "", results)
    rows = [
        [
            t["name"],
            f"{t['a_ns'] / 1e6:.2f}",
            f"{t['b_ns'] / 1e6:.2f}",
            f"{t['median']:.2f} ({t['low']:.2f} to {t['high']:.2f})",
        ]
        for t in results["times"].values()
    ]
    lines += [table(["processor time, ms", "with counts", "alone", "ratio (quartiles)"], rows), ""]
    counts, alone = (results["bytes"][name] for name in SIDES)
    names = {"numbers": "numbers of a row", "table": "table, bytes", "delta": f"delta of {DELTA_ROWS:,} events, bytes"}
    rows = [[text, f"{counts[n]:,}", f"{alone[n]:,}", f"{counts[n] / alone[n]:.2f}"] for n, text in names.items()]
    lines += [table(["", "with counts", "alone", "ratio"], rows), ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--scanned", type=int, default=SCANNED)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    about = {"machine": machine(), "origin": origin("-C loadtest next-item-costs", "ARGS", arguments)}
    results = about | measure(options.rows, options.scanned, options.rounds)
    (options.out / "next-item-costs.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "next-item-costs.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main(sys.argv[1:])
