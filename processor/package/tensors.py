"""Safetensors files, read as views over an mmap and written as a stream, both without copying a tensor.

The format is that of the safetensors library (8 bytes of header length, a JSON header, the tensors end to end), which
loads files written here. The library copies every tensor into Python bytes when writing and gives numpy no mmap views
when reading: a table of 20 million rows must load without being read.

Invariants of reading: header and offsets are checked before any view exists; tensors tile the data section without hole
or overlap; no view reaches outside the file. Writing pads the header so that the data section, and with it every tensor
whose predecessors are multiples of 64 bytes, is aligned to a cache line.

numpy has no bfloat16: in memory it is uint16, the upper halves of float32; the file's tag is BF16.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Corrupt, unreadable
from freshet_serving.processor.memory import SharedMap, pieces, place_in_file
from freshet_serving.processor.package.whole_files import open_regular

CHECK_ROWS = 1 << 16
SCALED = 128
FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class RowType:
    """A type that a table's rows may be stored as; its name is `tag` in a safetensors file.

    Attributes:
        code: Its code in kernels; from SCALED on a row has a float32 scale, max |x| / 127.
        dtype: Its type in memory, unique to the tag.
        below: Magnitudes from here on would round to infinity.
        carried: The type of such a table's rows in deltas.
    """

    code: int
    tag: str
    dtype: np.dtype[Any]
    below: float
    carried: np.dtype[Any] = FLOAT32

    @property
    def scaled(self) -> bool:
        return self.code >= SCALED


ROW_TYPES = {
    "float32": RowType(0, "F32", np.dtype("<f4"), np.inf),
    "float16": RowType(1, "F16", np.dtype("<f2"), 65520.0),
    "bfloat16": RowType(2, "BF16", np.dtype("<u2"), float.fromhex("0x1.ffp127")),
    "int8": RowType(SCALED, "I8", np.dtype("i1"), np.inf),
}
"""All properties of row types outside of the kernel that converts them (processor.kernels.conversion)."""
RECORD = "record"
STORED_TYPES = {**ROW_TYPES, RECORD: RowType(0, "I32", np.dtype("<i4"), np.inf, np.dtype(np.int32))}
"""The row types, and that of tables of records (processor.package.entities): words, which are copied and never read."""


def all_below(array: NDArray[np.float32], limit: float) -> bool:
    """Report whether every element is a number with a magnitude below `limit`; in blocks, so that no copy is needed."""
    flat = array.reshape(-1)
    return all(bool((np.abs(flat[at : at + CHECK_ROWS]) < limit).all()) for at in range(0, flat.size, CHECK_ROWS))


# Row types, and the other types that a package holds.
DTYPES: dict[str, np.dtype[Any]] = {
    **{kind.tag: kind.dtype for kind in ROW_TYPES.values()},
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "U8": np.dtype("u1"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_HEADER_NBYTES = 100_000_000
MAX_RANK = 8
MAX_ELEMENTS = 1 << 48
ALIGNMENT = 64
CHUNK_NBYTES = 16 << 20
# A block read from a file stays in a core's cache until its checksum is computed.
READ_NBYTES = 1 << 20
PARALLEL_NBYTES = 64 << 20
MAX_WORKERS = 8
# First bytes of files that are often mistaken for safetensors.
MAGIC = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "a zip archive", b"PAR1": "Parquet", b"{": "JSON", b"\x80": "a pickle"}
POLYNOMIAL = 0xEDB88320


@dataclass(frozen=True, slots=True)
class Tensors:
    """The content of one safetensors file; the arrays are read-only views."""

    metadata: dict[str, str]
    arrays: dict[str, NDArray[Any]]


def crc32(data: Any) -> str:
    """Return the checksum of a buffer as 8 hex digits.

    It runs outside the GIL, in chunks that keep the writer interruptible; a large buffer is divided among all cores.
    """
    view = memoryview(data).cast("B")
    return _in_parts(len(view), MAX_WORKERS, lambda start, stop: _crc32(view[start:stop]))


def file_crc32(fd: int, nbytes: int, max_workers: int = MAX_WORKERS) -> str:
    """Return the checksum of the first bytes of an open file, read by system calls; raise Corrupt if it is shorter."""
    return _in_parts(nbytes, max_workers, lambda start, stop: _read_crc32(fd, start, stop))


def _in_parts(nbytes: int, max_workers: int, crc_of: Callable[[int, int], int]) -> str:
    """Combine the checksum of `nbytes` bytes from those of parts; `crc_of` returns that of bytes [start, stop)."""
    workers = min(max_workers, nbytes // PARALLEL_NBYTES)
    if workers < 2 or (workers := min(workers, os.cpu_count() or 1)) < 2:
        return f"{crc_of(0, nbytes):08x}"
    size = -(-nbytes // workers)
    starts = range(0, nbytes, size)
    stops = [min(start + size, nbytes) for start in starts]
    value = 0
    with ThreadPoolExecutor(workers, "freshet-checksum") as pool:
        for start, stop, crc in zip(starts, stops, pool.map(crc_of, starts, stops)):
            value = _times(value, _power(8 * (stop - start))) ^ crc
    return f"{value:08x}"


def _crc32(view: memoryview) -> int:
    value = 0
    for at in range(0, len(view), CHUNK_NBYTES):
        value = zlib.crc32(view[at : at + CHUNK_NBYTES], value)
    return value


def _read_crc32(fd: int, start: int, stop: int) -> int:
    value, at, buffer = 0, start, memoryview(bytearray(READ_NBYTES))
    while at < stop:
        count = os.preadv(fd, [buffer[: min(READ_NBYTES, stop - at)]], at)
        if not count:
            raise Corrupt(f"expected {stop} bytes, got {at}")
        value = zlib.crc32(buffer[:count], value)
        at += count
    return value


# A CRC is a polynomial over GF(2), bits reversed: 1 << 31 is 1, 1 << 30 is x. Bytes appended to a text multiply its CRC
# by x ** bits, so the CRC of a whole is combined from those of its parts (zlib's crc32_combine).
def _times(a: int, b: int) -> int:
    """Return a * b modulo the polynomial of CRC-32."""
    product = 0
    while b:
        if b & 1 << 31:
            product ^= a
        b = b << 1 & 0xFFFFFFFF
        a = a >> 1 ^ (POLYNOMIAL if a & 1 else 0)
    return product


def _power(n: int) -> int:
    """Return x ** n modulo the polynomial of CRC-32."""
    result, square = 1 << 31, 1 << 30
    while n:
        if n & 1:
            result = _times(result, square)
        square = _times(square, square)
        n >>= 1
    return result


def array_crc32(array: NDArray[Any]) -> str:
    """Return the checksum of an array's bytes in C order; those of a mapped file are read by system calls."""
    if not array.size:
        return crc32(b"")
    mapped = place_in_file(array)
    if mapped is None:
        return crc32(np.ascontiguousarray(array).data)
    fd, first = mapped
    return _in_parts(array.nbytes, MAX_WORKERS, lambda start, stop: _read_crc32(fd, first + start, first + stop))


def write_tensors(file: BinaryIO, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Stream a safetensors file in the order given; BadInput, before a byte is written, for a dtype not in DTYPES."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, array in arrays.items():
        if array.dtype not in NAMES:
            raise BadInput(f"tensor {name[:64]!r}: dtype: expected one of {', '.join(DTYPES)}, got {array.dtype.str}")
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    for array in arrays.values():
        for piece in pieces(array):
            file.write(piece.data)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Return the file's bytes as a read-only mmap; raise Corrupt if it is empty, unreadable or not a regular file."""
    try:
        with open_regular(path) as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes == 0:
                raise Corrupt(f"{path.name}: the file is empty")
            mapped = SharedMap.of(file.fileno(), nbytes, writable=False)
    except OSError as error:
        raise unreadable(path.name, error) from None
    return np.frombuffer(mapped, np.uint8)


def parse_tensors(data: NDArray[np.uint8], what: str) -> Tensors:
    """Return views over a whole safetensors file in memory, named `what`; raise Corrupt if anything is malformed."""
    nbytes, begins = data.nbytes, data[:9].tobytes()
    if nbytes < 8:
        raise Corrupt(f"{what}: not a safetensors file: expected at least 8 bytes, got {nbytes}")
    (length,) = struct.unpack("<Q", begins[:8])
    if length > min(MAX_HEADER_NBYTES, nbytes - 8):
        # A header begins with a brace: a file that has one is a truncated safetensors file.
        fits = f"a header of {length} bytes does not fit the file of {nbytes}"
        raise Corrupt(
            f"{what}: {fits}" if begins[8:] == b"{" else f"{what}: not a safetensors file{_kind(begins)}: {fits}"
        )
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except (ValueError, RecursionError):
        raise Corrupt(f"{what}: not a safetensors file: the header is not valid JSON") from None
    if not isinstance(header, dict):
        raise Corrupt(f"{what}: not a safetensors file: the header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise Corrupt(f"{what}: the metadata is not an object of strings")
    body = data[8 + length :]
    body.flags.writeable = False
    address = body.ctypes.data
    arrays, spans = {}, []
    for name, entry in header.items():
        start, stop, array = _view(body, address, entry, f"{what}: tensor {name[:64]!r}")
        arrays[name] = array
        spans.append((start, stop))
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            raise Corrupt(f"{what}: tensors overlap or leave a hole at byte {min(start, end)}")
        end = stop
    if end != body.nbytes:
        raise Corrupt(f"{what}: tensors fill {end} bytes, the file holds {body.nbytes}")
    return Tensors(metadata, arrays)


def _kind(begins: bytes) -> str:
    """Return the kind of another file by its first bytes; "" if they are unknown."""
    named = next((name for magic, name in MAGIC.items() if begins.startswith(magic)), "")
    return f", but {named}" if named else ""


def _view(body: NDArray[np.uint8], address: int, entry: Any, where: str) -> tuple[int, int, NDArray[Any]]:
    """Return (first byte, byte after the last, tensor) of an entry, for a read-only body at an address."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Corrupt(f"{where}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise Corrupt(f"{where}: dtype: expected one of {', '.join(DTYPES)}, got {str(dtype)[:16]!r}")
    # With a size of 0 other dimensions need no bytes and could be huge: numpy fails beyond 64 bits, so they are bounded
    # here.
    if not _naturals(shape) or len(shape) > MAX_RANK or math.prod(d or 1 for d in shape) > MAX_ELEMENTS:
        raise Corrupt(f"{where}: expected a shape of at most {MAX_RANK} dimensions and {MAX_ELEMENTS} elements")
    if not _naturals(offsets) or len(offsets) != 2:
        raise Corrupt(f"{where}: expected two data_offsets")
    start, stop = offsets
    kind, count = DTYPES[dtype], math.prod(shape)
    nbytes = count * kind.itemsize
    if not start <= stop <= body.nbytes:
        raise Corrupt(f"{where}: bytes {start} to {stop} lie outside the file")
    if stop - start != nbytes:
        raise Corrupt(f"{where}: expected {nbytes} bytes for shape {shape} of {dtype}, got {stop - start}")
    if (address + start) % kind.itemsize:
        array = body[start:stop].copy().view(kind).reshape(shape)
        array.flags.writeable = False
    else:
        array = body[start:stop].view(kind).reshape(shape)
    return start, stop, array


def header_checksum(metadata: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a file's own `checksum`: of the rest of its metadata, and of every tensor's name, dtype and shape."""
    rest = {k: v for k, v in metadata.items() if k != "checksum"}
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    return crc32(json.dumps([rest, shapes], sort_keys=True).encode())


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)
