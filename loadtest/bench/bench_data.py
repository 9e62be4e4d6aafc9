"""`make -C loadtest data`: Parquet into batches against CSV and against pyarrow alone; loadtest/results/train-data.md.

The data are made here: two ids and a list of ids by Zipf's law, strings, a list of strings, numbers and a label. All
sides read the same rows of the same columns in batches of 4,096, in turn, in one process, after one warm-up that fills
the page cache. Each side's threads are tried first, and of pyarrow its ways to read as well; the best of each are
compared. pyarrow alone gives numpy views of what it decoded; batches are checked besides (nulls, labels, infinities),
cast, and cut to size.

Stages: rows a second of each, on the clock while it works, in a training run of DeepFM over these columns (tables of
dim 16, batches of 4,096) that reads the Parquet file and learns every row once; the median of the runs. Reading and
transforming run ahead of the others, on the same cores. Of reading it is what its thread has to wait and do; decoding,
on threads of its own, is in the figures above alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
from numpy.typing import NDArray
from rich.console import Console

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.parquet_copy import GROUP_ROWS
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch, Field, Source
from freshet_serving.models.runs.step_profile import overlap
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.cores import available
from loadtest.bench.pairs import Pair, compare
from loadtest.reports.report import machine, opening, origin, spread, table, told

RESULTS = Path(__file__).parents[1] / "results"
ROWS, BATCH_ROWS, ROUNDS, TRIES = 2_000_000, 4096, 7, 3
MADE_ROWS = 1 << 17
FIELDS = [
    Field("user_id", "id"),
    Field("item_id", "id"),
    Field("seen", "ids"),
    Field("city", "string"),
    Field("tags", "strings"),
    Field("price", "float"),
    Field("dwell", "float"),
]
COLUMNS = [*(f.name for f in FIELDS), "clicked"]
LISTS = ("seen", "tags")


def made(rows: int, seed: int) -> pa.Table:
    """Rows of every column: the same ones for the same numbers."""
    random = np.random.default_rng(seed)

    def zipf(count: int, most: int) -> NDArray[np.int64]:
        return random.zipf(1.2, count) % most

    def lists(values: pa.Array, lengths: NDArray[np.int64]) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32()), values)

    seen, tags = random.poisson(8, rows), random.integers(0, 5, rows)
    cities, names = (pa.array([f"{what} {i:03d}" for i in range(n)]) for what, n in (("city", 500), ("tag", 200)))
    return pa.table({
        "user_id": zipf(rows, 1_000_000),
        "item_id": zipf(rows, 200_000),
        "seen": lists(pa.array(zipf(int(seen.sum()), 200_000)), seen),
        "city": cities.take(pa.array(random.integers(0, 500, rows))),
        "tags": lists(names.take(pa.array(zipf(int(tags.sum()), 200))), tags),
        "price": random.lognormal(2, 1, rows).astype(np.float32),
        "dwell": random.random(rows).astype(np.float32),
        "clicked": (random.random(rows) < 0.2).astype(np.float32),
    })  # fmt: skip


def write_tables(folder: Path, rows: int) -> tuple[Path, Path]:
    """The same rows as Parquet and as CSV."""
    parquet, text = folder / "clicks.parquet", folder / "clicks.csv"
    schema = made(1, 0).schema
    cells = pa.schema([f.with_type(pa.string()) if f.name in LISTS else f for f in schema])
    with pa.parquet.ParquetWriter(parquet, schema) as writer, pa.csv.CSVWriter(text, cells) as csv:
        for start in range(0, rows, MADE_ROWS):
            table = made(min(MADE_ROWS, rows - start), start)
            writer.write_table(table, GROUP_ROWS)
            for name in LISTS:
                joined = pa.compute.binary_join(table[name].cast(pa.list_(pa.string())), "|")
                table = table.set_column(table.column_names.index(name), name, joined)
            csv.write_table(table)
    return parquet, text


def read_batches(path: Path, threads: int = 0) -> int:
    """Reads all of it as the trainer does; returns the rows."""
    source = open_source(DataConfig(str(path), label="clicked"), FIELDS, threads)
    return sum(len(batch) for batch in source.batches(BATCH_ROWS))


def read_alone(path: Path, way: str, threads: int) -> int:
    """Reads all of it with pyarrow and nothing else, to the numpy arrays that hold the same; returns the rows."""
    pa.set_cpu_count(threads)
    rows = 0
    for batch in WAYS[way](path, threads > 1):
        for array in batch.columns:
            inner = array
            while pa.types.is_list(inner.type):
                np.frombuffer(inner.buffers()[1], np.int32)
                inner = inner.values
            if pa.types.is_string(inner.type):
                [np.frombuffer(buffer, np.uint8) for buffer in inner.buffers()[1:] if buffer]
            else:
                inner.to_numpy()
        rows += batch.num_rows
    return rows


def _iterated(path: Path, threaded: bool) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path) as file:
        yield from file.iter_batches(BATCH_ROWS, columns=COLUMNS, use_threads=threaded)


def _scanned(path: Path, threaded: bool) -> Iterator[pa.RecordBatch]:
    yield from pa.dataset.dataset(path).to_batches(columns=COLUMNS, batch_size=BATCH_ROWS, use_threads=threaded)


def _cut(path: Path, threaded: bool) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group, COLUMNS, use_threads=threaded).to_batches(BATCH_ROWS)


WAYS = {"iter_batches": _iterated, "a dataset's to_batches": _scanned, "row groups, cut": _cut}


def measure(rows: int, rounds: int, text_rows: int, console: Console) -> dict[str, Any]:
    """Rows a second of every way to read, ratios of the best ones, stages. text_rows: of the comparison with CSV."""
    with tempfile.TemporaryDirectory(prefix="freshet-data-") as name:
        folder = Path(name)
        (folder / "large").mkdir()
        short, text = write_tables(folder, text_rows)
        large, _ = write_tables(folder / "large", rows)
        counts = sorted({1, 2, min(4, len(available()))})
        ours = {_told(n): partial(read_batches, large, n) for n in counts}
        sides: dict[str, tuple[dict[str, partial[int]], int]] = {
            "Parquet into batches": (ours, rows),
            "CSV": ({_told(n): partial(read_batches, text, n) for n in counts}, text_rows),
            "pyarrow alone": (
                {f"{way}, {_told(n)}": partial(read_alone, large, way, n) for way in WAYS for n in counts},
                rows,
            ),
        }
        speeds = {side: rates(runs, count, TRIES) for side, (runs, count) in sides.items()}
        best = {side: max(found.items(), key=lambda way: way[1])[0] for side, found in speeds.items()}
        console.print(f"best: {best}")
        winners = {side: sides[side][0][way] for side, way in best.items()}
        parquet = winners["Parquet into batches"]
        # The rows of the CSV file, with as many threads as win on the long one.
        brief = partial(read_batches, short, *parquet.args[1:])
        pairs = [
            Pair("Parquet into batches / CSV", brief, winners["CSV"], text_rows, "row"),
            Pair("Parquet into batches / pyarrow alone", parquet, winners["pyarrow alone"], rows, "row"),
        ]
        found = [asdict(compare(pair, rounds)) for pair in pairs]
        staged = stages(large, rows, TRIES)
    return {"rows": rows, "rows_per_s": speeds, "best": best, "ratios": found} | staged


def _told(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def rates(runs: Mapping[str, Callable[[], int]], rows: int, rounds: int) -> dict[str, float]:
    """Median rows a second of each run, in turn, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if number:
                times[name].append(time.perf_counter() - started)
    return {name: rows / statistics.median(taken) for name, taken in times.items()}


def stages(path: Path, rows: int, rounds: int) -> dict[str, Any]:
    """Rows a second of the whole and of each stage, processor seconds of a million rows by stage, and the overlap;
    medians of training runs over all rows."""
    runs = [_trained(path, rows) for _ in range(rounds)]
    return {
        "trained_rows_per_s": statistics.median(run["rows_per_s"] for run in runs),
        "overlap": statistics.median(run["overlap"] for run in runs),
        "stages": {
            stage: {
                key: statistics.median(run["stages"][stage][key] for run in runs) for key in ("rows_per_s", "cpu_s")
            }
            for stage in runs[0]["stages"]
        },
    }


def _trained(path: Path, rows: int) -> dict[str, Any]:
    config = parse_config(
        {
            "model": {"name": "data"},
            "data": {"path": str(path), "label": "clicked"},
            "features": {f.name: {"kind": f.kind} for f in FIELDS},
            "train": {"batch_rows": BATCH_ROWS, "optimizer": "adagrad", "learning_rate": 0.05},
        }
    )
    trainer = Trainer(draft(config, {}), config.train, config.network)
    source = open_source(config.data, config.features)
    started_s = time.perf_counter()
    with PrefetchPipeline(_read(source, trainer), trainer.transform) as works:
        for work in trainer.profile.waited(works):
            trainer.learn(work)
    taken_s, stage_times = time.perf_counter() - started_s, trainer.profile.measured()
    return {
        "rows_per_s": rows / taken_s,
        "overlap": overlap(stage_times, len(available())),
        "stages": {
            stage: {"rows_per_s": rows / one.wall_s, "cpu_s": one.cpu_s / rows * 1e6}
            for stage, one in stage_times.items()
            if stage != "wait"
        },
    }


def _read(source: Source, trainer: Trainer) -> Iterator[Batch]:
    batches = source.batches(BATCH_ROWS)
    while True:
        with trainer.profile.timed("read"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def page(document: Mapping[str, Any]) -> str:
    """train-data.md."""
    lines = opening("Reading data", __doc__, document)
    faster = [r | {"median": 1 / r["median"], "low": 1 / r["high"], "high": 1 / r["low"]} for r in document["ratios"]]
    cells = (
        [r["name"], told(r["median"]), spread(r), f"{1e9 / r['a_ns']:,.0f}", f"{1e9 / r['b_ns']:,.0f}"] for r in faster
    )
    lines += [table(["throughput", "ratio", "from, to", "rows a second", "of the other"], cells), ""]
    for side, found in document["rows_per_s"].items():
        lines += [
            table([side, "rows a second"], ([w, _marked(w == document["best"][side], r)] for w, r in found.items())),
            "",
        ]
    whole = f"{document['trained_rows_per_s']:,.0f}"
    lines += [
        f"The training run: {whole} rows a second; its steps take {document['overlap']:.2f} times as long as with every"
    ]
    lines += ["core at work all the time.", ""]
    each = ([stage, f"{s['rows_per_s']:,.0f}", f"{s['cpu_s']:.2f}"] for stage, s in document["stages"].items())
    return "\n".join([*lines, table(["stage", "rows a second", "processor seconds a million rows"], each)]) + "\n"


def _marked(best: bool, rate: float) -> str:
    return f"**{rate:,.0f}**" if best else f"{rate:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest data", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--text-rows", type=int, default=ROWS // 8, help="of the comparison with CSV")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    document = {"machine": machine(), "origin": origin("-C loadtest data", "ARGS", sys.argv[1:])}
    document |= measure(arguments.rows, arguments.rounds, arguments.text_rows, console)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "train-data.json").write_text(json.dumps(document, indent=1) + "\n")
    (arguments.out / "train-data.md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main()
