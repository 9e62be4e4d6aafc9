"""Read TFRecord files of tf.train.Example, plain or gzipped: a record is a row, its features are columns.

Frames (length, its checksum, bytes, their checksum) are read here, not by TensorFlow: a length is bounded before memory
is allocated, a damaged record is reported by its number, and rows before a position are skipped unparsed. TensorFlow
parses the content. The first FIRST_RECORDS records say a feature's type.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

import numba as nb
import numpy as np
import pyarrow as pa

from freshet_serving.models.data.files import FileChunk, nbytes_of
from freshet_serving.models.data.object_files import DataPath, open_bytes
from freshet_serving.models.data.source import ONE_OF
from freshet_serving.processor.errors import BadInput, nearest
from freshet_serving.processor.kernels.kernel import kernel

MAX_RECORD_NBYTES = 64 << 20
BATCH_ROWS, BATCH_NBYTES = 1024, 8 << 20
FIRST_RECORDS = 100
_HEAD = struct.Struct("<QI")
_TYPES = {"int64_list": pa.int64(), "float_list": pa.float32(), "bytes_list": pa.large_binary()}
_FAULT = re.compile(r"(?:Key|Feature): ([^ ,]{1,64}),? ?([^\n]*?)(?: \[Op|$)")
"""Matches the feature, and the fault, in TensorFlow's message."""
_GZIP = b"\x1f\x8b"


class TfRecordFile:
    """A DataFile of Examples."""

    def __init__(self, path: DataPath, kinds: Mapping[str, str]) -> None:
        """Open a file and infer types from its first records; `kinds` decide between lists and single values.

        Raises BadInput for another file, or if its first records are not Examples.
        """
        self._path, self._kinds, self.name, self.nbytes = path, kinds, path.name, nbytes_of(path)
        self._packed = self._is_packed()
        self._types = self._first_types()
        self.names = sorted(self._types)
        self.empty = next(self._records(0), None) is None

    def _is_packed(self) -> bool:
        """Return True for gzip; a plain file that begins with gzip's two bytes has a checksum that matches."""
        try:
            with open_bytes(self._path, ahead=False) as file:
                head = file.read(_HEAD.size)
        except OSError as error:
            raise BadInput(f"{self.name}: cannot be read as a TFRecord file: {error.strerror}") from None
        return head[:2] == _GZIP and not (len(head) == _HEAD.size and _fits(head[:8], _HEAD.unpack(head)[1]))

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        try:
            with open_bytes(self._path) as plain:
                yield gzip.GzipFile(fileobj=plain) if self._packed else plain  # type: ignore[misc]
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or "damaged gzip"
            raise BadInput(f"{self.name}: cannot be read as a TFRecord file: {reason}") from None

    def _records(self, start: int) -> Generator[bytes]:
        row = 0
        with self._open() as file:
            while head := file.read(_HEAD.size):
                if len(head) < _HEAD.size:
                    raise BadInput(f"{self.name}: truncated in record {row}")
                nbytes, checksum = _HEAD.unpack(head)
                if not _fits(head[:8], checksum):
                    raise BadInput(f"{self.name}: the length of record {row} does not match its checksum")
                if nbytes > MAX_RECORD_NBYTES:
                    most = f"expected records of at most {MAX_RECORD_NBYTES} bytes"
                    raise BadInput(f"{self.name}: {most}, got {nbytes} in record {row}")
                data = file.read(nbytes + 4)
                if len(data) < nbytes + 4:
                    raise BadInput(f"{self.name}: truncated in record {row}")
                if row >= start:
                    if not _fits(data[:-4], int.from_bytes(data[-4:], "little")):
                        raise BadInput(f"{self.name}: record {row} does not match its checksum")
                    yield data[:-4]
                row += 1

    def _first_types(self) -> dict[str, tuple[pa.DataType, bool]]:
        """Return each feature's value type, and True if it is a list."""
        from freshet_serving.compiler.frameworks import tf

        types: dict[str, tuple[pa.DataType, bool]] = {}
        for row, data in enumerate(self._records(0)):
            if row == FIRST_RECORDS:
                break
            try:
                example = tf.train.Example.FromString(data)
            except Exception:  # protobuf's own, of whichever implementation
                raise BadInput(f"{self.name}: record {row} is not a tf.train.Example") from None
            for name, feature in example.features.feature.items():
                if (form := feature.WhichOneof("kind")) is not None:
                    several = len(getattr(feature, form).value) != 1
                    types[name] = (_TYPES[form], several or types.get(name, (None, False))[1])
        return types

    def types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        types = {}
        for name in names:
            if name not in self._types:
                hint = nearest(name, self.names)
                raise BadInput(f"column {name!r}: expected exactly one in {self.name}, got 0{hint}")
            inner, several = self._types[name]
            kind = self._kinds.get(name)
            is_list = kind in ONE_OF if kind else several
            types[name] = pa.large_list(inner) if is_list else inner
        return types

    def count_rows(self) -> int:
        rows = 0
        with self._open() as file:
            while head := file.read(_HEAD.size):
                nbytes, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
                if not _fits(head[:8], checksum) or nbytes > MAX_RECORD_NBYTES:
                    # Reading on raises the specific error.
                    return rows + sum(1 for _ in self._records(rows))
                file.seek(nbytes + 4, 1)
                rows += 1
        return rows

    def pieces(self, types: dict[str, pa.DataType], start: int) -> Iterator[FileChunk]:
        yield FileChunk(start, partial(self._read, types, start))

    def _read(self, types: dict[str, pa.DataType], start: int) -> Generator[pa.RecordBatch]:
        held: list[bytes] = []
        nbytes = 0
        for data in self._records(start):
            held.append(data)
            nbytes += len(data)
            if len(held) == BATCH_ROWS or nbytes >= BATCH_NBYTES:
                yield self._parsed(held, types, start)
                start, held, nbytes = start + len(held), [], 0
        if held:
            yield self._parsed(held, types, start)

    def _parsed(self, held: list[bytes], types: dict[str, pa.DataType], start: int) -> pa.RecordBatch:
        from freshet_serving.compiler.frameworks import tf

        spec = {name: _spec(tf, t) for name, t in types.items()}
        try:
            columns = tf.io.parse_example(held, spec)
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:
            # UnicodeDecodeError: TensorFlow's own message contains the faulty bytes.
            for row, data in enumerate(held) if len(held) > 1 else ():
                self._parsed([data], types, start + row)
            match = _FAULT.search(str(error))
            fault = f"column {match[1]!r}: {match[2]}" if match else "not an Example"
            raise BadInput(f"{self.name}: record {start} cannot be read: {fault[:160]}") from None
        return pa.RecordBatch.from_pydict({name: _array(columns[name], t) for name, t in types.items()})


def _spec(tf: Any, t: pa.DataType) -> Any:
    """Return TensorFlow's spec of a feature: missing floats are NaN, strings and lists empty, integers refused."""
    is_list = pa.types.is_large_list(t)
    dtype = {pa.int64(): tf.int64, pa.float32(): tf.float32}.get(t.value_type if is_list else t, tf.string)
    if is_list:
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    return tf.io.FixedLenFeature([], dtype, {tf.float32: np.nan, tf.string: ""}.get(dtype))


def _array(column: Any, t: pa.DataType) -> pa.Array:
    if pa.types.is_large_list(t):
        return pa.LargeListArray.from_arrays(pa.array(column.row_splits.numpy()), _array(column.values, t.value_type))
    values = column.numpy()
    return pa.array(values.tolist() if values.dtype == object else values, t)


def _fits(data: bytes, checksum: int) -> bool:
    """Compare a masked CRC-32C, as TFRecord uses it."""
    crc = int(_crc32c(np.frombuffer(data, np.uint8), _TABLE))
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF == checksum


def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_TABLE = _table()


@kernel(nb.uint32(nb.types.Array(nb.uint8, 1, "C", readonly=True), nb.types.Array(nb.uint32, 1, "C", readonly=True)))
def _crc32c(data: Any, table: Any) -> Any:
    crc = np.uint32(0xFFFFFFFF)
    for byte in data:
        crc = np.uint32(table[np.uint8(crc) ^ byte] ^ crc >> np.uint32(8))
    return np.uint32(crc ^ np.uint32(0xFFFFFFFF))
