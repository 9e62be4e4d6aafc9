"""Write and read capsules, the file format for machine code: one tensor of bytes, and what it was compiled from.

A capsule is a safetensors file. One that was left over from another compilation, truncated, or edited by hand is
refused before any native parser sees it (processor.running.opening).
"""

from __future__ import annotations

import io

import numpy as np

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package import parse_tensors, write_tensors

FORMAT = "freshet/executable/1"
CODE = "executable"


def pack(code: bytes, backend: str, bucket: int, source: str) -> bytes:
    """Return the bytes of a capsule; `source` is the hash of what the code was compiled from."""
    file = io.BytesIO()
    metadata = {"format": FORMAT, "backend": backend, "bucket": str(bucket), "source": source}
    write_tensors(file, {CODE: np.frombuffer(code, np.uint8)}, metadata)
    return file.getvalue()


def unpack(data: bytes, backend: str, bucket: int, source: str) -> bytes:
    """Return the code in a capsule; raise Corrupt if it is of another backend, bucket or source, or damaged."""
    name = f"executable b{bucket}"
    tensors = parse_tensors(np.frombuffer(data, np.uint8), name)
    expected = {"format": FORMAT, "backend": backend, "bucket": str(bucket)}
    for key, value in expected.items():
        if tensors.metadata.get(key) != value:
            raise Corrupt(f"{name}: expected {key} {value!r}, got {tensors.metadata.get(key, 'none')[:64]!r}")
    if tensors.metadata.get("source") != source:
        raise Corrupt(f"{name}: stale: compiled from another graph than the manifest's")
    if tensors.arrays.keys() != {CODE} or tensors.arrays[CODE].dtype != np.uint8:
        raise Corrupt(f"{name}: expected one tensor of bytes")
    return tensors.arrays[CODE].tobytes()
