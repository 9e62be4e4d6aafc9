"""Find a recorded request by its id in the files that this server's recorders have written, the newest file first.

Cost: it reads the ids of at most FILES files, a row group at a time, and the rows of the row group that holds the
request. Row groups whose range of ids excludes the id are skipped. A search ends after MOST_S, even if it has not seen
all files.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Input
from freshet_serving.processor.repository import GENERATION, METADATA, OUTPUT, REQUEST, ROW, TIME
from freshet_serving.serving.extensions.recorder.recorded_columns import request_of

FILES = 256
MOST_S = 5.0


class RecordedRequest(NamedTuple):
    """A recorded request: its outputs are float32 [rows, columns] by name, the time of the reply is in ISO 8601."""

    generation: Generation
    time: str
    inputs: dict[str, Column]
    outputs: dict[str, NDArray[np.float32]]
    inputs_of: list[Input]


def find_recorded(folder: str, model: str, request_id: str) -> RecordedRequest | None:
    """Return the newest request of a model with this id; None if there is none."""
    give_up_s = time.monotonic() + MOST_S
    for path in _newest(Path(folder), model):
        if time.monotonic() > give_up_s:
            return None
        try:
            # Files may disappear during the search: the recorder removes old ones.
            request = _find(path, model, request_id)
        except (OSError, KeyError, ValueError, TypeError, pa.ArrowException, FreshetError):
            continue
        if request is not None:
            return request
    return None


def _newest(folder: Path, model: str) -> list[Path]:
    stamped = []
    for path in folder.glob("*.parquet"):
        if path.name.startswith(f"{model}-"):
            try:
                stamped.append((path.stat().st_mtime_ns, path))
            except OSError:
                continue
    return [path for _, path in sorted(stamped, reverse=True)[:FILES]]


def _find(path: Path, model: str, request_id: str) -> RecordedRequest | None:
    with pq.ParquetFile(path) as file:
        about = json.loads((file.schema_arrow.metadata or {})[METADATA])
        if about["model"] != model:
            return None
        column = file.schema_arrow.names.index(REQUEST)
        for group in reversed(range(file.num_row_groups)):
            statistics = file.metadata.row_group(group).column(column).statistics
            has_range = statistics is not None and statistics.has_min_max
            if has_range and not statistics.min <= request_id <= statistics.max:
                continue
            ids = file.read_row_group(group, [REQUEST, ROW], use_threads=False)
            hits = np.flatnonzero(pc.equal(ids[REQUEST], request_id).to_numpy())
            if len(hits):
                last = int(hits[-1])
                first = last - int(ids[ROW][last].as_py())
                whole = file.read_row_group(group, use_threads=False)
                return _request(whole.slice(first, last + 1 - first).combine_chunks(), about)
    return None


def _request(table: pa.Table, about: dict[str, Any]) -> RecordedRequest:
    inputs_of = [Input(**spec) for spec in about["inputs"]]
    # An input without a column was left out, and is looked up again.
    recorded = {column["input"] for column in about["features"]}
    recorded_inputs = [spec for spec in inputs_of if spec.name in recorded]
    outputs = {
        output["name"]: np.array(table[OUTPUT + output["name"]].to_pylist(), np.float32).reshape(len(table), -1)
        for output in about["outputs"]
    }
    return RecordedRequest(
        Generation.parse(table[GENERATION][0].as_py()),
        table[TIME][0].as_py().isoformat(),
        request_of(table, about["features"], recorded_inputs),
        outputs,
        inputs_of,
    )
