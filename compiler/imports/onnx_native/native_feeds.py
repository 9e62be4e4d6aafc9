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

    Raises:
        BadInput: An input has rows of no fixed size, or too many numbers in a row.
    """
    bags, offsets = {pair.ids for pair in model.offsets}, {pair.offsets for pair in model.offsets}
    return {
        one.name: FeedSpec(plain(one.name), RAGGED, one.dtype, (), _own(one.name)) if one.name in bags else _fed(one)
        for one in model.inputs
        if one.name not in offsets
    }


def _fed(given: OnnxInput) -> FeedSpec:
    """Return one input of the file as an input of the package."""
    what = f"input {given.name[:64]!r}"
    dims = tuple(n for n in given.dims[1:] if n is not None)
    if len(dims) < len(given.dims) - 1:
        if given.dims == (None, None) and given.dtype.kind != "f":
            return FeedSpec(plain(given.name), PADDED, given.dtype, (), _own(given.name))
        shape = ["rows", *("any" if n is None else n for n in given.dims[1:])]
        raise BadInput(f"{what}: expected a fixed size of each row, got {shape}")
    if any(n < 1 for n in dims) or np.prod(dims, dtype=np.int64) > MAX_COLUMNS:
        raise BadInput(f"{what}: expected 1 to {MAX_COLUMNS} numbers a row, got shape {list(dims)}")
    return FeedSpec(plain(given.name), DENSE, given.dtype, dims, _own(given.name))


def _own(name: str) -> str:
    """Return the name that the file gives an input; "" if the package's is the same."""
    return "" if plain(name) == name else name
