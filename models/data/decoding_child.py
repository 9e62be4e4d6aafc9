"""Main program of the process that decodes Parquet files: `python -m freshet_serving.models.data.decoding_child`.

It reads requests, one line of JSON each, and answers each with frames: a kind, a length of eight bytes, and that many
bytes. BATCH is an Arrow stream of one batch, DONE ends an answer, REFUSED ends it with the reason. The parent sets the
memory limit (models.data.decoding). Dictionaries and views, which expand when copied, become plain types here, where
memory is limited.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.types as pt

from freshet_serving.models.data.files import ParquetFile
from freshet_serving.processor.errors import BadInput

BATCH, DONE, REFUSED = b"B", b"D", b"R"
HEAD = struct.Struct("<cQ")
FRAME_NBYTES = 32 << 20
"""Maximum bytes of a frame, and therefore of a row."""


def answer(request: dict[str, Any], opened: dict[tuple[str, int, int], ParquetFile]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a request names; raise BadInput if they cannot be decoded.

    Args:
        request: path; names, the columns, None for all; rows, ascending numbers, or else the piece of the file.
        opened: The most recently opened file, by path, size and mtime.
    """
    path = Path(request["path"])
    status = path.stat()
    identity = str(path), status.st_size, status.st_mtime_ns
    if identity not in opened:
        opened.clear()
        opened[identity] = ParquetFile(path)
    file = opened[identity]
    if request["rows"] is not None:
        yield from file.rows(request["rows"])
        return
    pieces = list(file.pieces(dict.fromkeys(request["names"]), 0))
    yield from pieces[request["piece"]].read()


def frames(batch: pa.RecordBatch, name: str) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts that each fit a frame; raise BadInput, with the file's name, if a row does not."""
    nbytes = sum(map(_weight, batch.columns))
    if nbytes <= FRAME_NBYTES or not batch.num_rows:
        yield batch
    elif batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from frames(batch.slice(0, half), name)
        yield from frames(batch.slice(half), name)
    else:
        raise BadInput(f"{name}: expected at most {FRAME_NBYTES:,} bytes in a row, got {nbytes:,}")


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    fields = [field.with_type(_plain_type(field.type)) for field in batch.schema]
    schema = pa.schema(fields, batch.schema.metadata)
    return batch if schema.equals(batch.schema) else batch.cast(schema)


def _plain_type(t: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(t):
        return _plain_type(t.value_type)
    if pt.is_string_view(t) or pt.is_binary_view(t):
        return pa.large_string() if pt.is_string_view(t) else pa.large_binary()
    if pt.is_fixed_size_list(t):
        return pa.list_(_plain_type(t.value_type), t.list_size)
    if pt.is_list(t):
        return pa.list_(t.value_field.with_type(_plain_type(t.value_type)))
    if pt.is_large_list(t) or pt.is_list_view(t) or pt.is_large_list_view(t):
        return pa.large_list(t.value_field.with_type(_plain_type(t.value_type)))
    return t


def _weight(array: pa.Array) -> int:
    """Return the bytes of an array once its values, those of lists included, take eight more bytes each."""
    nested = 8 * len(array.flatten()) if hasattr(array, "flatten") and pt.is_nested(array.type) else 0
    return int(array.nbytes) + 8 * len(array) + nested


def main(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests with frames until the input ends."""
    # The limit applies to memory in use, and this pool allocates exactly and returns memory to the system.
    pa.set_memory_pool(pa.system_memory_pool())
    opened: dict[tuple[str, int, int], ParquetFile] = {}
    for line in requests:
        request = json.loads(line)
        try:
            for batch in answer(request, opened):
                for part in frames(plain(batch), Path(request["path"]).name):
                    _reply(replies, BATCH, _stream(part))
            _reply(replies, DONE, b"")
        except BadInput as error:
            _reply(replies, REFUSED, str(error).encode())
        except (pa.ArrowException, MemoryError, OSError) as error:
            limit = f" within {resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20:,} MiB of memory"
            reason = limit if isinstance(error, MemoryError) else f": {type(error).__name__}"
            _reply(replies, REFUSED, f"{Path(request['path']).name}: cannot be decoded{reason}".encode())


def _stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _reply(replies: BinaryIO, kind: bytes, payload: pa.Buffer | bytes) -> None:
    replies.write(HEAD.pack(kind, len(memoryview(payload))))
    replies.write(payload)
    replies.flush()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    main(sys.stdin.buffer, sys.stdout.buffer)
