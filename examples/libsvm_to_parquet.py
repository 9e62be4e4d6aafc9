"""Convert a libsvm file to Parquet: `python libsvm_to_parquet.py a9a.svm a9a.parquet [INDEX ...]`.

A line is `label index:value index:value ...`; text after a `#` is ignored. The table has a column `label`, where -1 is
0, a list `features` of the indices that have the value 1, and a column of floats for each INDEX that is named. An index
of another value must be named, because a list of ids would lose its value.
"""

from __future__ import annotations

import io
import itertools
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 65_536


def schema_of(floats: list[int]) -> pa.Schema:
    """Return the columns of the table, of which those of `floats` are named by their index."""
    numbers = [(str(index), pa.float64()) for index in floats]
    return pa.schema([("label", pa.float64()), ("features", pa.list_(pa.int64())), *numbers])


def converted(lines: list[str], floats: list[int], first: int) -> pa.RecordBatch:
    """Return the rows of some lines, of which `first` is the first one's number; `floats` are columns."""
    labels, features = [], []
    values = {index: [0.0] * len(lines) for index in floats}
    for row, line in enumerate(lines):
        try:
            label, *pairs = line.partition("#")[0].split()
            labels.append(0.0 if float(label) == -1 else float(label))
            features.append([])
            for pair in pairs:
                index, value = pair.split(":")
                if int(index) in values:
                    values[int(index)][row] = float(value)
                elif float(value) == 1:
                    features[-1].append(int(index))
                else:
                    raise ValueError(f"{pair} has another value than 1; name the index to read it as a number")
        except ValueError as error:
            sys.exit(f"line {first + row}: expected label index:value ..., got {line.strip()[:40]!r}: {error}")
    columns = {"label": labels, "features": features} | {str(index): values[index] for index in floats}
    return pa.RecordBatch.from_pydict(columns, schema_of(floats))


def main(source: str, out: str, *indices: str) -> None:
    floats = [int(index) for index in indices]
    writer, first = pq.ParquetWriter(out, schema_of(floats)), 1
    # Packed files (.gz, .bz2, .zst) are unpacked by their suffix.
    with io.TextIOWrapper(pa.input_stream(source)) as stream, writer:
        while batch := list(itertools.islice(stream, ROWS)):
            writer.write_batch(converted(batch, floats, first))
            first += len(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
