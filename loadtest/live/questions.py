"""Questions that users ask: a model's inputs filled with values, ids by a Zipf law as they come in life."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from loadtest.load.encoding import Column, InputTensor, Request, Signature, encode_kserve, encode_tfs

EXPONENT = 1.05
MEAN_LENGTH = 5.0
MAX_IDS = 1 << 31
# A prime above every allowed number of ids: multiplying by it permutes them, so that popular ids lie
# scattered over the table as they do in life, and not in its first rows.
SCATTER = 2654435761
COLUMN_SHIFT = 7919


def zipf_ids(random: np.random.Generator, ids: int, size: int, column: int = 0) -> NDArray[np.int64]:
    """int64 [size] of 0 .. ids - 1; the k-th most popular is drawn about in proportion to k ** -EXPONENT.

    Drawn by inverting a Pareto law cut off at `ids`: O(1) memory for any number of ids. Which ids are popular
    depends on the column. Raises ValueError for a number of ids outside 1 .. 2**31 - 1.
    """
    if not 1 <= ids < MAX_IDS:
        raise ValueError(f"ids: 1 to {MAX_IDS - 1} wanted, got {ids}")
    power = 1.0 - EXPONENT
    drawn: NDArray[np.float64] = (((ids + 1.0) ** power - 1.0) * random.random(size) + 1.0) ** (1.0 / power)
    ranks = np.clip(drawn.astype(np.int64) - 1, 0, ids - 1)
    return (ranks * SCATTER + column * COLUMN_SHIFT) % ids


def draw(signature: Signature, rows: int, ids: int, random: np.random.Generator) -> dict[str, Column]:
    """Values for every input: Zipf ids, strings of Zipf ids, standard normal floats; ragged rows of 5 values
    on average."""
    return {t.name: _column(t, rows, ids, random, at) for at, t in enumerate(signature.inputs)}


def requests(
    signature: Signature, rows: int, ids: int, count: int, json_share: float, seed: int = 0
) -> Iterator[Request]:
    """`count` different requests; json_share of them are TFS JSON, the others KServe binary."""
    random = np.random.default_rng(seed)
    for at in range(count):
        encode = encode_tfs if is_json(at, json_share) else encode_kserve
        yield encode(signature, draw(signature, rows, ids, random))


def is_json(at: int, json_share: float) -> bool:
    """Whether request `at` of a sequence is a JSON one: evenly spread, exactly json_share of them."""
    return int((at + 1) * json_share) > int(at * json_share)


def _column(tensor: InputTensor, rows: int, ids: int, random: np.random.Generator, at: int) -> Column:
    if tensor.ragged:
        return [_values(tensor, int(n), ids, random, at) for n in random.poisson(MEAN_LENGTH, rows)]
    if not tensor.columns:
        return _values(tensor, rows, ids, random, at)
    columns = [_values(tensor, rows, ids, random, at + c) for c in range(tensor.columns)]
    return [list(row) for row in zip(*columns)] if tensor.datatype == "BYTES" else np.stack(columns, axis=1)


def _values(tensor: InputTensor, size: int, ids: int, random: np.random.Generator, at: int) -> Column:
    if tensor.datatype == "FP32":
        return random.standard_normal(size, np.float32)
    drawn = zipf_ids(random, ids, size, at)
    return drawn if tensor.datatype == "INT64" else [str(value) for value in drawn.tolist()]
