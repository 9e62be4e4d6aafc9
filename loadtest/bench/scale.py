"""Scale: one table of 20 million rows of dim 16, its memory, time until it is ready, cost of a lookup as tables grow.

    python -m loadtest.bench.scale FOLDER [--rows N] [--rounds N]      FOLDER: room for the table's file, removed after

memory      resident bytes that the loaded table adds, once all of it was read, over its keys and rows (8 + 64 a row)
ready       seconds from the file in the page cache to a table that answers, by part: checksum, then loading; and
            seconds of all cores together, which a busy machine does not stretch
lookup      random keys by the fused kernel over numpy.take of the same rows without hashing
growth      nanoseconds a lookup by the number of rows
"""

from __future__ import annotations

import argparse
import mmap
import tempfile
import time
from pathlib import Path

import numpy as np

from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.package.manifest_entries import TableEntry
from freshet_serving.processor.package.tensors import crc32, map_file, parse_tensors, write_tensors
from freshet_serving.processor.tables.table import ServedTable, packed
from loadtest.bench.lookup import kernel_call
from loadtest.bench.pairs import Pair, compare

DIM, BATCH = 16, 4096
SIZES = (100_000, 1_000_000, 20_000_000)


def measure(folder: Path, rows: int, rounds: int) -> dict[str, float]:
    """All figures by name; nothing of the table is left in the folder."""
    report: dict[str, float] = {}
    for size in sorted({min(size, rows) for size in SIZES} | {rows}):
        with tempfile.TemporaryDirectory(dir=folder, prefix="freshet-scale-") as scratch:
            path = Path(scratch) / "table.safetensors"
            _write(path, size)
            report |= _measure(path, size, rounds, largest=size == rows)
    return report


def _write(path: Path, rows: int) -> None:
    keys = _keys(rows)
    values = np.empty((rows, DIM), np.float32)
    init_rows(keys, np.uint64(1), np.float32(0.1), values)
    with open(path, "wb") as file:
        write_tensors(file, packed(keys, values), {})


def _keys(rows: int) -> np.ndarray:
    """Distinct ids all over int64, made without a permutation in memory."""
    return (np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def _measure(path: Path, rows: int, rounds: int, largest: bool) -> dict[str, float]:
    report: dict[str, float] = {}
    _warm(path)
    before = resident_nbytes()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    crc32(map_file(path))
    verified_s = time.perf_counter()
    arrays = parse_tensors(map_file(path), "table").arrays
    table = ServedTable(TableEntry("t", DIM, rows), arrays)
    ready_s = time.perf_counter()
    if largest:
        report["ready from a warm page cache: checksum, s"] = verified_s - started_s
        report["ready from a warm page cache: loading, s"] = ready_s - verified_s
        report["ready from a warm page cache, s"] = ready_s - started_s
        report["ready: processor time of all cores, s"] = time.process_time() - cpu_s
        arrays["rows"].sum(), table.arrays["index"].sum()
        report["resident memory over keys and rows"] = (resident_nbytes() - before) / (rows * (8 + 4 * DIM))
    random = np.random.default_rng(2)
    wanted = random.integers(0, rows, BATCH * 16)
    ids = np.ascontiguousarray(_keys(rows)[wanted])
    out = np.empty((len(ids), DIM), np.float32)
    by_key = kernel_call(table, 0, ids)
    take = Pair("", lambda: by_key(out), lambda: np.take(arrays["rows"], wanted, 0, out=out), len(ids), "row")
    ratio = compare(take, rounds)
    report[f"lookup among {rows:,} rows, ns"], report[f"numpy.take of {rows:,} rows, ns"] = ratio.a_ns, ratio.b_ns
    if largest:
        report["lookup over numpy.take"] = ratio.median
        report["lookup over numpy.take, lower quartile"] = ratio.low
        report["lookup over numpy.take, upper quartile"] = ratio.high
    return report


def _warm(path: Path) -> None:
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass


def resident_nbytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.scale", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=SIZES[-1])
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    for name, value in measure(arguments.folder, arguments.rows, arguments.rounds).items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
