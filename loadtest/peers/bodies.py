"""The same inputs as each peer wants them, and scores read from each peer's reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from loadtest.load.encoding import DTYPES, HEADER_LENGTH, decode_kserve
from loadtest.load.payload import BENCH, Payload, bench_count, bench_inputs, bench_payload

KINDS = ("raw", "kserve", "json")


def payload(kind: str, path: str, candidates: int, table_rows: int) -> Payload:
    count = bench_count(candidates)
    if kind == "kserve":
        return bench_payload(candidates, count, table_rows)
    inputs = bench_inputs(candidates, count, table_rows)
    if kind == "raw":
        bodies = tuple(i["ids"].astype("<i8").tobytes() + i["floats"].astype("<f4").tobytes() for i in inputs)
        return Payload(path, bodies, {"Content-Type": "application/octet-stream"})
    if kind == "json":
        return Payload(path, tuple(map(_json, inputs)), {"Content-Type": "application/json"})
    raise ValueError(f"body: one of {', '.join(KINDS)} wanted, got {kind!r}")


def scores(kind: str, body: bytes, headers: Mapping[str, str]) -> NDArray[np.float32]:
    """float32 [n] from a reply, header names in lower case; raises ValueError when it is none."""
    if kind == "raw":
        return np.frombuffer(body, "<f4")
    return decode_kserve(body, headers.get(HEADER_LENGTH.lower()), "score")


def _json(inputs: Mapping[str, NDArray[Any]]) -> bytes:
    tensors = [
        {
            "name": t.name,
            "shape": list(inputs[t.name].shape),
            "datatype": t.datatype,
            "data": inputs[t.name].astype(DTYPES[t.datatype]).reshape(-1).tolist(),
        }
        for t in BENCH.inputs
    ]
    return orjson.dumps({"inputs": tensors})
