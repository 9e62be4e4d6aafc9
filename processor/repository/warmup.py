"""warmup.safetensors: recorded requests that a version is warmed up with before it serves.

Tensors, for request n and input X (`n/X` is the prefix):
    n/X                          int64 or float32, as the input is sent
    n/X/data, n/X/offsets        strings: uint8 bytes end to end, int64 starts
    n/X/row_splits               for ragged inputs, in addition: int64 starts of rows among the values
Metadata: format, requests (their number). The manifest names the file like any other, so it is verified.

Also here: names of the columns that recorded requests (serving.extensions.recorder) have besides their features, read
by models.streams.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError
from freshet_serving.processor.package import Input, parse_tensors, write_tensors
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.repository.version import WARMUP

if TYPE_CHECKING:
    from freshet_serving.processor.repository.version_writer import VersionWriter

FORMAT = "freshet-warmup/1"
MAX_REQUESTS = 1000

Inputs = Mapping[str, Column]


def dump_warmup(requests: Sequence[Inputs]) -> bytes:
    """Return the bytes of the file; raise BadInput for too many requests, or none."""
    if not 1 <= len(requests) <= MAX_REQUESTS:
        raise BadInput(f"warm-up: expected 1 to {MAX_REQUESTS} requests, got {len(requests)}")
    arrays: dict[str, NDArray[Any]] = {}
    for n, request in enumerate(requests):
        for name, column in request.items():
            prefix = f"{n}/{name}"
            if isinstance(column, Ragged):
                arrays[f"{prefix}/row_splits"] = np.asarray(column.row_splits, np.int64)
                column = column.values
            if isinstance(column, Strings):
                first, last = int(column.offsets[0]), int(column.offsets[-1])
                arrays[f"{prefix}/data"] = column.data[first:last]
                arrays[f"{prefix}/offsets"] = column.offsets - first
            else:
                arrays[prefix] = column
    file = io.BytesIO()
    write_tensors(file, arrays, {"format": FORMAT, "requests": str(len(requests))})
    return file.getvalue()


def parse_warmup(data: bytes, inputs: Sequence[Input]) -> list[dict[str, Column]]:
    """Parse the file's requests, with the model's inputs; raise Corrupt. Values are checked when requests are bound."""
    tensors = parse_tensors(np.frombuffer(data, np.uint8), WARMUP)
    count = tensors.metadata.get("requests", "")
    if tensors.metadata.get("format") != FORMAT or not count.isdigit() or not 1 <= int(count) <= MAX_REQUESTS:
        raise Corrupt(f"{WARMUP}: expected {FORMAT!r} with 1 to {MAX_REQUESTS} requests")
    return [
        {spec.name: _column(tensors.arrays, f"{n}/{spec.name}", spec) for spec in inputs} for n in range(int(count))
    ]


def carry_warmup(repository: Repository, model: str, inputs: Sequence[Input], writer: VersionWriter) -> None:
    """Copy the recorded requests of the newest version, unless it is damaged, into a new one if their inputs agree."""
    with contextlib.suppress(FreshetError):
        before = repository.version(model)
        if WARMUP in before.manifest.files and before.manifest.inputs == list(inputs):
            (writer.folder / WARMUP).write_bytes(before.file(WARMUP))


def _column(arrays: Mapping[str, NDArray[Any]], prefix: str, spec: Input) -> Column:
    try:
        values: Any = (
            Strings(arrays[f"{prefix}/data"], _starts(arrays[f"{prefix}/offsets"], arrays[f"{prefix}/data"].size))
            if spec.dtype == "string"
            else arrays[prefix]
        )
        return Ragged(values, arrays[f"{prefix}/row_splits"]) if spec.ragged else values
    except KeyError:
        raise Corrupt(f"{WARMUP}: input {spec.name!r} of a request is missing") from None


def _starts(offsets: NDArray[Any], nbytes: int) -> NDArray[np.int64]:
    """Return the offsets of strings after checking that they lie within the bytes: they are not checked again."""
    sound = offsets.dtype == np.int64 and offsets.ndim == 1 and offsets.size > 0
    if not sound or offsets[0] != 0 or offsets[-1] != nbytes or (offsets[1:] < offsets[:-1]).any():
        raise Corrupt(f"{WARMUP}: expected ascending offsets of strings from 0 to {nbytes}")
    return offsets


METADATA = b"freshet"
REQUEST, ROW, TIME, GENERATION, OUTPUT, INPUT = (
    "freshet.request", "freshet.row", "freshet.time", "freshet.generation", "freshet.output.", "freshet.input.",
)  # fmt: skip
