"""Read libsvm files: `label index:value index:value ...` a line, plain or compressed; text after a `#` is ignored.

    label      0 to 1; -1 is 0, as in the data sets of libsvm
    features   ids: the indices of a row that have the value 1
    <index>    float: the value of that index, 0 where a row has none; selected by a feature or column of its name
An index with a value other than 1 must be selected as a float, or its row is refused, because an id would lose the
value. libffm's field:index:value and svm-rank's qid are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_serving.models.data.files import CsvFile, FileChunk, RowNames, find_files
from freshet_serving.models.data.formats import LIBSVM_SUFFIXES
from freshet_serving.models.data.object_files import DataPath
from freshet_serving.models.data.source import Field, Schema
from freshet_serving.models.data.tabular import TableSource
from freshet_serving.processor.errors import BadInput

IDS = Field("features", "ids")
_NEVER = "\x1f"
"""A delimiter that occurs in no line, so that each line is one column."""


def open_libsvm(path: str, wanted: Sequence[Field] = (), threads: int = 0) -> TableSource:
    """Open libsvm files.

    Args:
        path: File, folder or glob.
        wanted: Columns to read; the ids if empty.
        threads: As for TableSource.

    Raises:
        BadInput: There are no such files, or they cannot be read.
    """
    schema = Schema(tuple(wanted) or (IDS,), "label")
    files = [LibsvmFile(p) for p in find_files(path, LIBSVM_SUFFIXES)]
    return TableSource(files, schema, csv=False, threads=threads)


class LibsvmFile:
    """A DataFile of libsvm lines."""

    def __init__(self, path: DataPath) -> None:
        self._lines = CsvFile(path, _NEVER, ["line"], quoted=False)
        self.name, self.empty, self.nbytes = path.name, self._lines.empty, self._lines.nbytes
        self.names = ["label", IDS.name]

    def types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        known = {"label": pa.float64(), IDS.name: pa.list_(pa.int64())}
        for name in names:
            if name not in known and not name.isdecimal():
                known_are = f"{IDS.name!r}, or an index whose value is a float"
                raise BadInput(f"features.{name}: expected {known_are}, in {self.name}")
        return {name: known.get(name, pa.float64()) for name in names}

    def count_rows(self) -> int:
        return self._lines.count_rows()

    def pieces(self, types: dict[str, pa.DataType], start: int) -> Iterator[FileChunk]:
        yield FileChunk(start, partial(self._read, list(types), start))

    def _read(self, names: list[str], start: int) -> Generator[pa.RecordBatch]:
        for batch in self._lines.read({"line": pa.string()}, start):
            columns = _columns(batch.column(0), [int(n) for n in names if n.isdecimal()], RowNames(self.name, start))
            yield pa.RecordBatch.from_pydict({name: columns[name] for name in names})
            start += batch.num_rows


def _columns(lines: pa.Array, floats: list[int], where: RowNames) -> dict[str, pa.Array]:
    """Return label, features, and a column for each index of `floats`."""
    tokens = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(pc.replace_substring_regex(lines, "#.*", "")))
    # An empty line is one empty token.
    flat, splits = tokens.flatten(), np.zeros(len(lines) + 1, np.int64)
    np.cumsum(pc.list_value_length(tokens).to_numpy(), out=splits[1:])

    def row_of(entry: int) -> str:
        return where(int(np.searchsorted(splits, entry, side="right")) - 1)

    first = splits[:-1]
    words = pc.replace_substring_regex(flat.take(pa.array(first)), r"^\+", "")
    label = _numbers(words, pa.float64(), "a label", where).to_numpy()
    rest = np.ones(len(flat), np.bool_)
    rest[first] = False
    places = np.flatnonzero(rest)
    pairs = pc.split_pattern(flat.filter(pa.array(rest)), ":")
    odd = pc.list_value_length(pairs).to_numpy() != 2
    if odd.any():
        at = int(places[odd.argmax()])
        raise BadInput(f"expected index:value, got {flat[at].as_py()[:40]!r} at {row_of(at)}")
    parts = pairs.flatten()
    even = pa.array(np.arange(0, len(parts), 2))
    index = _numbers(parts.take(even), pa.int64(), "an index", lambda i: row_of(int(places[i]))).to_numpy()
    odds = pa.array(np.arange(1, len(parts), 2))
    value = _numbers(parts.take(odds), pa.float64(), "a value", lambda i: row_of(int(places[i]))).to_numpy()
    row = np.searchsorted(splits, places, side="right") - 1
    columns = {"label": pa.array(np.where(label == -1, 0.0, label))}
    for number in floats:
        dense, named = np.zeros(len(lines)), index == number
        dense[row[named]] = value[named]
        columns[str(number)] = pa.array(dense)
    kept = ~np.isin(index, floats)
    other = kept & (value != 1)
    if other.any():
        i = int(other.argmax())
        raise BadInput(
            f"expected the value 1 for an id, got {index[i]}:{value[i]:g} at {row_of(int(places[i]))};"
            f' a [features.{index[i]}] with kind = "float" reads it as a number'
        )
    ends = np.zeros(len(lines) + 1, np.int64)
    np.cumsum(np.bincount(row[kept], minlength=len(lines)), out=ends[1:])
    columns[IDS.name] = pa.LargeListArray.from_arrays(pa.array(ends), pa.array(index[kept]))
    return columns


def _numbers(words: pa.Array, wanted: pa.DataType, what: str, where: Callable[[int], str]) -> pa.Array:
    """Cast words to numbers; raise BadInput that names the first word which is not one."""
    try:
        return words.cast(wanted)
    except pa.ArrowInvalid:
        for i, word in enumerate(words):
            try:
                word.cast(wanted)
            except pa.ArrowInvalid:
                raise BadInput(f"expected {what}, got {word.as_py()[:40]!r} at {where(i)}") from None
        raise
