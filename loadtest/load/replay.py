"""Recorded requests as a payload: `python -m loadtest.load.replay RECORDINGS OUT` makes what the generators send.

Reads the Parquet files that a server with --record writes, by their own description: a row a candidate, "freshet.row" 0
begins a request, and the schema's metadata says which column belongs to which input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.load.encoding import DTYPES, HEADER_LENGTH, InputTensor, Signature, encode_kserve
from loadtest.load.payload import Payload, of_requests

ROW = "freshet.row"
METADATA = b"freshet"
DATATYPES = {"int64": "INT64", "float32": "FP32", "string": "BYTES"}
MAX_REQUESTS = 4096


def recorded_payload(recordings: Path, most: int = MAX_REQUESTS) -> Payload:
    """At most so many requests of a folder of recordings, or one file, of one model; raises ValueError when there is
    none, or several models' are there."""
    import pyarrow.parquet as pq

    files = sorted(recordings.glob("*.parquet")) if recordings.is_dir() else [recordings]
    columns: list[dict[str, Any]] = []
    signatures = set()
    for path in files:
        table = pq.read_table(path)
        about = json.loads((table.schema.metadata or {})[METADATA])
        signatures.add(_signature(about))
        if len(signatures) > 1:
            raise ValueError(f"{path.name}: recordings of one model with one set of inputs wanted")
        columns += _requests(table, about, most - len(columns))
    if not columns:
        raise ValueError("recordings: at least one request wanted")
    (signature,) = signatures
    plain = [encode_kserve(signature, request) for request in columns]
    longest = max(int(request.headers[HEADER_LENGTH]) for request in plain)
    return of_requests([encode_kserve(signature, request, header_nbytes=longest) for request in columns])


def _signature(about: dict[str, Any]) -> Signature:
    tensors = tuple(InputTensor(i["name"], DATATYPES[i["dtype"]], i["columns"], i["ragged"]) for i in about["inputs"])
    return Signature(about["model"], tensors, tuple(o["name"] for o in about["outputs"]))


def _requests(table: Any, about: dict[str, Any], most: int) -> Iterator[dict[str, Any]]:
    starts = np.flatnonzero(table[ROW].to_numpy() == 0).tolist()[: max(0, most) + 1]
    ends = [*starts[1:], len(table)]
    for first, last in list(zip(starts, ends))[: max(0, most)]:
        rows = table.slice(first, last - first)
        yield {i["name"]: _input(rows, i, about["features"]) for i in about["inputs"]}


def _input(table: Any, spec: dict[str, Any], features: list[dict[str, Any]]) -> Any:
    """One input of a request's rows as loadtest.load.encoding takes it: one row of what was sent once, whose other rows
    are null."""
    mine = [(max(f["column"], 0), table[f["name"]]) for f in features if f["input"] == spec["name"]]
    mine = [(at, column.slice(0, 1) if column.null_count else column) for at, column in mine]
    width, datatype = spec["columns"], DATATYPES[spec["dtype"]]
    n = len(mine[0][1]) if mine else len(table)
    if spec["ragged"]:
        rows = mine[0][1].to_pylist() if mine else [[] for _ in range(n)]
        return [[v.decode(errors="replace") for v in row] for row in rows] if datatype == "BYTES" else rows
    if datatype == "BYTES":
        lists = [[""] * (width or 1) for _ in range(n)]
        for at, column in mine:
            for row, value in zip(lists, column.to_pylist()):
                row[at] = value.decode(errors="replace")
        return lists if width else [row[0] for row in lists]
    values = np.zeros((n, width or 1), DTYPES[datatype])
    for at, column in mine:
        values[:, at] = column.to_numpy()
    return values if width else values[:, 0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.load.replay", description=__doc__)
    parser.add_argument("recordings", type=Path, help="folder that the server recorded to, or one file of it")
    parser.add_argument("out", type=Path, help="folder of the payload")
    options = parser.parse_args()
    payload = recorded_payload(options.recordings)
    payload.save(options.out)
    print(f"{len(payload.bodies)} requests to {payload.path} in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
