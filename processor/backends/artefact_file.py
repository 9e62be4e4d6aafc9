"""The file that machine code travels in: a safetensors file of one tensor of bytes, and what it was compiled from.

Deserialising an executable runs code of the library over its bytes, and running it runs the bytes themselves. So before
any native parser sees one: the file's size and CRC-32 are those of the manifest (processor.repository.version), its
SHA-256 is that of the manifest's entry, the bounds of the file hold, and backend, bucket and source inside are the
entry's. A capsule that was left behind by another compile, cut, or changed by hand is refused by one of these.

This guards against damage and mix-ups. Whoever can write the manifest too can have any code run: a model repository is
trusted as a folder of programs is.
"""

from __future__ import annotations

import hashlib
import io

import numpy as np

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package.tensors import parse_tensors, write_tensors

FORMAT = "freshet/executable/1"
CODE = "executable"


def pack(code: bytes, backend: str, bucket: int, source: str) -> bytes:
    """The capsule's bytes. source: hash of what the code was compiled from."""
    file = io.BytesIO()
    metadata = {"format": FORMAT, "backend": backend, "bucket": str(bucket), "source": source}
    write_tensors(file, {CODE: np.frombuffer(code, np.uint8)}, metadata)
    return file.getvalue()


def unpack(data: bytes, backend: str, bucket: int, source: str) -> bytes:
    """The code inside; raises Corrupt unless it is that of this backend, bucket and source."""
    what = f"executable b{bucket}"
    tensors = parse_tensors(np.frombuffer(data, np.uint8), what)
    wanted = {"format": FORMAT, "backend": backend, "bucket": str(bucket)}
    for key, value in wanted.items():
        if tensors.metadata.get(key) != value:
            raise Corrupt(f"{what}: {key} {value!r} wanted, got {tensors.metadata.get(key, 'none')[:64]!r}")
    if tensors.metadata.get("source") != source:
        raise Corrupt(f"{what}: stale: it was compiled from another graph than the manifest says")
    if tensors.arrays.keys() != {CODE} or tensors.arrays[CODE].dtype != np.uint8:
        raise Corrupt(f"{what}: one tensor of bytes wanted")
    return tensors.arrays[CODE].tobytes()


def sha256(data: bytes) -> str:
    """The digest of a whole capsule, as its entry in the manifest holds it; 64 hex digits."""
    return hashlib.sha256(data).hexdigest()
