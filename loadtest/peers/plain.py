"""Requests as plain bytes, for servers without a protocol for tensors, and the options that all peers have.

The bytes of a request are its ids (int64 [n, 26]) followed by its floats (float32 [n, 13]), little-endian: 260 bytes a
candidate; a reply is its scores, float32 [n].
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

IDS, FLOATS = 26, 13
ROW_NBYTES = 8 * IDS + 4 * FLOATS

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


def split(body: bytes) -> tuple[Ids, Floats]:
    rows = len(body) // ROW_NBYTES
    ids = np.frombuffer(body, np.int64, rows * IDS).reshape(rows, IDS)
    return ids, np.frombuffer(body, np.float32, rows * FLOATS, 8 * IDS * rows).reshape(rows, FLOATS)


def arguments(description: str | None, other_ports: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", required=True, help="<repository>/bench/<version>")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1, help="processes that compute")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of each")
    parser.add_argument("--batch", type=int, default=1, help="most requests computed together")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="longest wait for a batch to fill")
    if other_ports:
        parser.add_argument("--other-ports", type=int, nargs=2, required=True, help="for gRPC and metrics")
    return parser
