"""Prepared requests on disk: made once with a fixed seed, sent byte for byte by every client.

A payload is a folder: request.json (path, headers, number of bodies) and the bodies 0.body, 1.body, ...: wrk's script
reads the same files as the open-loop generator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadtest.load.encoding import InputTensor, Request, Signature, encode_kserve

IDS, FLOATS = 26, 13
BENCH = Signature("bench", (InputTensor("ids", "INT64", IDS), InputTensor("floats", "FP32", FLOATS)), ("score",))
DESCRIPTION = "request.json"
BATCH_ROWS, FEWEST = 256, 16


@dataclass(frozen=True, slots=True)
class Payload:
    """POST requests to one path that differ in their bodies only."""

    path: str
    bodies: tuple[bytes, ...]
    headers: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        about = {"path": self.path, "headers": dict(self.headers), "bodies": len(self.bodies)}
        (folder / DESCRIPTION).write_text(json.dumps(about))
        for number, body in enumerate(self.bodies):
            (folder / f"{number}.body").write_bytes(body)
        return folder

    @classmethod
    def load(cls, folder: Path) -> Payload:
        about = json.loads((folder / DESCRIPTION).read_bytes())
        bodies = tuple((folder / f"{n}.body").read_bytes() for n in range(about["bodies"]))
        return cls(about["path"], bodies, about["headers"])

    def messages(self, host: str, headers: Mapping[str, str]) -> list[bytes]:
        """Whole HTTP/1.1 requests, with more headers than the payload's own where wanted."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in {**self.headers, **headers}.items()]
        head = "\r\n".join(lines)
        return [f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body for body in self.bodies]


def of_requests(requests: list[Request]) -> Payload:
    """Requests of equal path and headers as a payload; raises ValueError for others."""
    first = requests[0]
    if any((r.path, r.headers) != (first.path, first.headers) for r in requests):
        raise ValueError("requests: one path and one set of headers wanted")
    return Payload(first.path, tuple(r.body for r in requests), first.headers)


def bench_count(candidates: int) -> int:
    """Number of different requests that a payload holds: enough to fill a full batch, and never few."""
    return max(FEWEST, BATCH_ROWS // candidates)


def bench_inputs(candidates: int, count: int, table_rows: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Inputs of `count` requests to the benchmark's model; ids uniform over the tables' rows, so that caches are of as
    little help as they can be."""
    random = np.random.default_rng([seed, candidates])
    return [
        {
            "ids": random.integers(0, table_rows, (candidates, IDS)),
            "floats": random.random((candidates, FLOATS), np.float32),
        }
        for _ in range(count)
    ]


def bench_payload(candidates: int, count: int, table_rows: int, seed: int = 0, model: str = "bench") -> Payload:
    """KServe v2 requests with binary tensors, both ways, for the benchmark's model."""
    signature = Signature(model, BENCH.inputs, BENCH.outputs)
    return of_requests([encode_kserve(signature, i) for i in bench_inputs(candidates, count, table_rows, seed)])
