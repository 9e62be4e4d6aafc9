"""Say what feeds the package of an ONNX file: its inputs, by the names that the file gives them."""

from __future__ import annotations

import numpy as np

from freshet_serving.compiler.imports.feeds import DENSE, PADDED, RAGGED, FeedSpec, plain
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import OnnxInput
from freshet_serving.compiler.imports.onnx_native.native_reader import NativeModel
from freshet_serving.processor.errors import BadInput

MAX_COLUMNS = 65536
"""Most numbers of an input or an output in a row."""


def feeds_by_name(model: NativeModel) -> dict[str, FeedSpec]:
    """Return the package's inputs by their names in the file; ids and offsets of bags are one, named after the ids.

    Raise BadInput for rows of no fixed size, or of too many numbers.
    """
    bags, offsets = {pair.ids for pair in model.offsets}, {pair.offsets for pair in model.offsets}
    return {
        each.name: FeedSpec(plain(each.name), RAGGED, each.dtype, (), _own(each.name))
        if each.name in bags
        else _fed(each)
        for each in model.inputs
        if each.name not in offsets
    }


def _fed(info: OnnxInput) -> FeedSpec:
    where = f"input {info.name[:64]!r}"
    dims = tuple(n for n in info.dims[1:] if n is not None)
    if len(dims) < len(info.dims) - 1:
        if info.dims == (None, None) and info.dtype.kind != "f":
            return FeedSpec(plain(info.name), PADDED, info.dtype, (), _own(info.name))
        shape = ["rows", *("any" if n is None else n for n in info.dims[1:])]
        raise BadInput(f"{where}: expected a fixed size of each row, got {shape}")
    if any(n < 1 for n in dims) or np.prod(dims, dtype=np.int64) > MAX_COLUMNS:
        raise BadInput(f"{where}: expected 1 to {MAX_COLUMNS} numbers a row, got shape {list(dims)}")
    return FeedSpec(plain(info.name), DENSE, info.dtype, dims, _own(info.name))


def _own(name: str) -> str:
    """Return the name that the file gives an input; "" if the package's is the same."""
    return "" if plain(name) == name else name
