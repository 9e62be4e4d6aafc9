"""Generate inputs to try an ONNX file on that ONNX Runtime runs as it is.

Integers are drawn below the number of rows of the tables that they are looked up in, or among the values that encoders
of the file list; where neither is known, below smaller and smaller limits until the file accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.feeds import DENSE, RAGGED, FeedSpec, feeds_of
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import every_node
from freshet_serving.compiler.imports.onnx_native.native_reader import NativeModel
from freshet_serving.compiler.imports.onnx_native.onnx_stage import text_of
from freshet_serving.compiler.imports.onnx_native.served_lookups import ServedLookup
from freshet_serving.compiler.imports.onnx_native.staged_lookups import StagedLookup
from freshet_serving.compiler.imports.onnx_native.trial import run_bounded
from freshet_serving.compiler.imports.sample_rows import MAX_LENGTH, SCALES, given_samples
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput

SIZES = (200, 7)
"""Rows of the samples: enough for parity, and another number to see what follows the rows."""
MAX_LISTED = 10_000
NUMBER_LISTS = ("cats_int64s", "keys_int64s", "int64_vocabulary")
STRING_LISTS = ("cats_strings", "keys_strings", "string_vocabulary")

Outputs = dict[str, NDArray[Any]]


class NativeSamples:
    """Samples, a request for each of SIZES, and what the file gives for them, by its own names."""

    def __init__(
        self,
        model: NativeModel,
        inputs: Mapping[str, FeedSpec],
        lookups: Sequence[ServedLookup | StagedLookup],
        given: Mapping[str, Any] | None,
    ) -> None:
        """Find inputs that the file accepts, or repeat given rows as in a JSON request; BadInput if it accepts none."""
        self._model, self._inputs = model, {fed.name: fed for fed in inputs.values()}
        self._names = {fed.name: name for name, fed in inputs.items()}
        self._offsets = {pair.ids: pair for pair in model.offsets}
        self._kinds = {info.name: info.dtype for info in model.inputs}
        refused: Exception | None = None
        for scale in SCALES if given is None else SCALES[:1]:
            if given is None:
                self.columns = [self._made(lookups, scale, rows) for rows in SIZES]
            else:
                self.columns = given_samples(inputs.values(), given, SIZES)
            try:
                self.outputs = [self.run(columns, rows) for columns, rows in zip(self.columns, SIZES)]
                return
            except BadInput:
                raise
            except Exception as error:
                refused = error
        assert refused is not None
        advice = "give some with --samples" if given is None else "expected --samples that it accepts"
        raise BadInput(f"source: ONNX Runtime runs the model on no inputs tried: {advice}: {reason_of(refused)}")

    def run(self, columns: Mapping[str, Column], rows: int) -> Outputs:
        feeds = feeds_of(self._inputs, columns, rows)
        fed: dict[str, Any] = {}
        for name, spec in self._inputs.items():
            file_name = self._names[name]
            if spec.kind == RAGGED:
                pair, splits = self._offsets[file_name], feeds[f"input/{name}/row_splits"]
                fed[file_name] = feeds[f"input/{name}/values"]
                fed[pair.offsets] = (splits if pair.ends else splits[:-1]).astype(self._kinds[pair.offsets])
            else:
                fed[file_name] = text_of(feeds[f"input/{name}"])
        names = list(self._model.outputs)
        return dict(zip(names, run_bounded(self._model.session, names, fed)))

    def _made(self, lookups: Sequence[ServedLookup | StagedLookup], scale: int, rows: int) -> dict[str, Column]:
        random = np.random.default_rng(scale)
        limits: dict[str, int] = {}
        places: dict[str, set[int]] = {}
        for lookup in lookups:
            for name, column in lookup.columns:
                limits[name] = min(limits.get(name, scale), len(self._model.weights[lookup.table]) - lookup.most_added)
                places.setdefault(name, set()).add(column)
        numbers, words = _listed(self._model)
        columns_of: dict[str, Column] = {}
        for name, fed in self._inputs.items():
            count = rows * int(np.prod(fed.dims, dtype=np.int64))
            columns = fed.input.columns
            shape = (rows, columns) if columns else (rows,)
            if fed.kind != DENSE:
                # No bag is empty: of those, only PyTorch says what they give.
                length = rows % MAX_LENGTH + 2
                lengths = random.integers(1, length + 1, rows) if fed.kind == RAGGED else np.full(rows, length)
                splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
                count = int(splits[-1])
            if fed.dtype.kind == "O":
                text = Strings.of([words[i] for i in random.integers(0, len(words), count)])
                columns_of[name] = Ragged(text, splits) if fed.kind != DENSE else text
            elif fed.floats:
                floats = random.standard_normal(count, np.float32).reshape(rows, -1)
                ids = sorted(places.get(self._names[name], ()))
                floats[:, ids] = random.integers(0, max(1, limits.get(self._names[name], 1)), (rows, len(ids)))
                columns_of[name] = floats.reshape(shape)
            else:
                least, most = (0, 1) if fed.dtype.kind == "b" else (np.iinfo(fed.dtype).min, np.iinfo(fed.dtype).max)
                drawn = random.integers(0, min(limits.get(self._names[name], scale), most + 1), count)
                fitting = [n for n in numbers if least <= n <= most]
                if fitting and self._names[name] not in limits and fed.dtype.kind != "b":
                    drawn = np.array(fitting, np.int64)[random.integers(0, len(fitting), count)]
                columns_of[name] = Ragged(drawn, splits) if fed.kind != DENSE else drawn.reshape(shape)
        return columns_of


def _listed(model: NativeModel) -> tuple[list[int], list[bytes]]:
    """Return the integers and the strings that encoders list; a few words at least."""
    numbers: list[int] = []
    words: list[bytes] = []
    for node in every_node(model.proto.graph):
        for attribute in node.attribute:
            if attribute.name in NUMBER_LISTS:
                numbers += attribute.ints[:MAX_LISTED]
            elif attribute.name in STRING_LISTS:
                words += attribute.strings[:MAX_LISTED]
    return numbers, words or [b"a", b"b", b"c"]
