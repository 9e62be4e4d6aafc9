"""Hashing a column of strings: the kernel against the xxhash library called string by string."""

from __future__ import annotations

import numpy as np
import xxhash

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.kernels.hashing import hash_strings
from loadtest.bench.pairs import Pair

STRINGS = 10_000


def pairs() -> list[Pair]:
    column = Strings.of([f"category-{i % 1000:05d}" for i in range(STRINGS)])
    digest = xxhash.xxh3_64_intdigest

    def library() -> None:
        np.array([digest(s, 7) for s in column.tolist()], np.uint64)

    return [
        Pair("hash a column of strings: kernel / library", lambda: hash_strings(column, 7), library, STRINGS, "string")
    ]
