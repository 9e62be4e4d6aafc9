"""Reading data: Parquet into batches against CSV, and against pyarrow alone; rows a second by reading threads.

The data are made here: two ids and a list of ids by Zipf's law, strings, a list of strings, numbers and a label. All
sides read the same rows of the same columns in batches of BATCH_ROWS, in turn, in one process, after one warm-up that
fills the page cache. pyarrow alone gives numpy views of what it decoded, on as many threads as it likes; batches are
checked besides (nulls, labels, infinities), cast, and cut to size.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from loadtest.bench.pairs import Pair, compare
from models.data.formats import DataConfig
from models.data.open_data import open_source
from models.data.parquet_copy import GROUP_ROWS
from models.data.source import Field
from processor.cores import available

ROWS, BATCH_ROWS, ROUNDS = 2_000_000, 4096, 7
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


def read_alone(path: Path) -> int:
    """Reads all of it with pyarrow and nothing else, to the numpy arrays that hold the same; returns the rows."""
    rows = 0
    with pa.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=COLUMNS, use_threads=True):
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


def measure(rows: int, rounds: int, text_rows: int) -> dict[str, Any]:
    """Ratios, as loadtest.bench.pairs has them, and rows a second by threads; text_rows: of the comparison with CSV."""
    with tempfile.TemporaryDirectory(prefix="freshet-data-") as name:
        folder = Path(name)
        (folder / "large").mkdir()
        parquet, text = write_tables(folder, text_rows)
        large, _ = write_tables(folder / "large", rows)
        pairs = {
            "Parquet into batches / CSV": (read_batches, parquet, read_batches, text, text_rows),
            "Parquet into batches / pyarrow alone": (read_batches, large, read_alone, large, rows),
        }
        against = [Pair(name, partial(a, x), partial(b, y), n, "row") for name, (a, x, b, y, n) in pairs.items()]
        found = [asdict(compare(pair, rounds)) for pair in against]
        counts = sorted({1, 2, min(4, len(available()))})
        speeds = rates({threads: partial(read_batches, large, threads) for threads in counts}, rows, rounds)
    return {"rows": rows, "cores": len(available()), "ratios": found, "rows_per_s": speeds}


def rates(runs: dict[int, Callable[[], int]], rows: int, rounds: int) -> dict[str, float]:
    """Median rows a second of each run, in turn."""
    times: dict[int, list[float]] = {threads: [] for threads in runs}
    for _ in range(rounds):
        for threads, run in runs.items():
            started = time.perf_counter()
            run()
            times[threads].append(time.perf_counter() - started)
    return {str(threads): rows / float(np.median(taken)) for threads, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.bench_data", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--text-rows", type=int, default=ROWS // 8, help="of the comparison with CSV")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.rows, arguments.rounds, arguments.text_rows), indent=1))


if __name__ == "__main__":
    main()
