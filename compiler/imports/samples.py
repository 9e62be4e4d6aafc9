"""Generate inputs to try a model on, from the model itself.

The possible values of an input follow from its use: keys of the tables it is looked up in, rows of the variables it
indexes, features parsed from it. A guess that the model refuses is made smaller until it is accepted; for models that
accept none, users can provide inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.feeds import DENSE, PADDED, FeedSpec, feeds_of
from freshet_serving.compiler.imports.foreign_graph import TABLE, Ref
from freshet_serving.compiler.imports.ops import words
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.compiler.imports.sample_rows import MAX_LENGTH, SCALES, SamplesRequired, given_samples
from freshet_serving.compiler.imports.shapes import SIZES
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput

MAX_VOCABULARY = 100_000
PROBES, PROBE_ROWS = 6, 24
WHOLE_EDGES = (-1, 0, 1, -7, 2**31 - 1, -(2**31), 2**62 + 1, 2**63 - 1, -(2**63))
TEXT_EDGES = (
    b"",
    b" ",
    b"-1",
    b"0",
    b"A b\tC ",
    "\u00c4\u00e9\u4e2d".encode(),
    bytes(range(1, 256)),
    b"x" * 63,
    b"y" * 1000,
)
FLOAT_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -1e30, 1e10, 123456.789)
# By operation: the inputs whose values come out unchanged, each with the output.
THROUGH = {
    **{op: {0: 0} for op in words("AddV2 Cast DynamicPartition ExpandDims GatherV2 Reshape Squeeze StridedSlice")},
    **{op: {0: 0} for op in words("StringLower StringStrip Transpose Unique")},
    **{op: {1: 0, 2: 0} for op in words("Select SelectV2")},
    **{op: {1: 1} for op in words("RaggedTensorToSparse SparseFillEmptyRows SparseReorder")},
    "RaggedTensorToTensor": {1: 0},
    "SparseToDense": {2: 0},
}


@dataclass(slots=True)
class InputHints:
    """Hints about the use of an input.

    Attributes:
        keys: Keys of tables that it is looked up in.
        below: Fewest rows of what it indexes; None if it indexes nothing.
        number: Whether it is text that is parsed as a number.
        parsed: ParseExample nodes that read it.
    """

    keys: list[Any] = field(default_factory=list)
    below: int | None = None
    number: bool = False
    parsed: list[str] = field(default_factory=list)

    def bound(self, rows: int) -> None:
        self.below = rows if self.below is None else min(self.below, rows)


def make_samples(
    runner: Runner,
    inputs: Sequence[FeedSpec],
    outputs: Sequence[Ref],
    given: Mapping[str, Any] | None = None,
    empty_lists: bool = True,
) -> list[dict[str, Column]]:
    """Return columns that the model accepts for each of SIZES, as a client would send them.

    Given rows of every input, as in a JSON request, are repeated. Raise BadInput if no accepted inputs were found.
    """
    by_name = {f.name: f for f in inputs}

    def tried(samples: list[dict[str, Column]]) -> list[dict[str, Column]]:
        for sample, rows in zip(samples, SIZES):
            runner.run(list(outputs), feeds_of(by_name, sample, rows))
        return samples

    if given is not None:
        return tried(given_samples(inputs, given, SIZES))
    for scale in SCALES:
        maker = SampleGenerator(runner, scale, empty_lists=empty_lists)
        samples = [maker.columns(inputs, rows) for rows in SIZES]
        with suppress(BadInput):
            return tried(samples)
    raise SamplesRequired("source: the model accepts no generated inputs: give some with --samples")


def probes(runner: Runner, inputs: Sequence[FeedSpec]) -> list[tuple[dict[str, Column], int]]:
    """Return columns with edge values of what clients send, each with the number of rows; the model may refuse them."""
    requests = []
    for i in range(PROBES):
        maker = SampleGenerator(runner, SCALES[0] + i, edges=True)
        requests.append((maker.columns(inputs, PROBE_ROWS), PROBE_ROWS))
    return requests


class SampleGenerator:
    def __init__(self, runner: Runner, scale: int, edges: bool = False, empty_lists: bool = True) -> None:
        """Prepare the generator.

        `scale` is the limit of unbounded integers and the seed; with `edges`, one value in three is an edge value.
        """
        self._runner, self._scale, self._edges, self._empty_lists = runner, scale, edges, empty_lists
        self._random = np.random.default_rng(scale)
        self._consumers: dict[Ref, list[tuple[str, int]]] = {}
        for node in runner.graph.nodes.values():
            for i, ref in enumerate(node.inputs):
                self._consumers.setdefault(ref, []).append((node.name, i))

    def columns(self, inputs: Sequence[FeedSpec], rows: int) -> dict[str, Column]:
        """Return one request. The longest ragged row grows with the number of rows; the last is never empty."""
        columns: dict[str, Column] = {}
        for fed in inputs:
            hints = self.hints((fed.nodes[-1 if fed.kind in (DENSE, PADDED) else -2 if len(fed.nodes) == 3 else 0], 0))
            if fed.kind == DENSE:
                columns[fed.name] = self._column(fed, hints, rows)
                continue
            lengths = self._random.integers(0, MAX_LENGTH, rows) + 1
            if fed.kind == PADDED:
                lengths[:] = rows % MAX_LENGTH + 2
            else:
                lengths[: rows // 2] -= self._empty_lists
                lengths[-1] = MAX_LENGTH + rows % 5
            splits = np.concatenate([[0], np.cumsum(lengths)])
            values = self._edged(fed, hints, self._values(fed.dtype.kind, hints, int(splits[-1])))
            columns[fed.name] = Ragged(
                Strings.of(values) if isinstance(values, list) else values.astype(np.int64), splits
            )
        return columns

    def hints(self, ref: Ref) -> InputHints:
        hints, stack, seen = InputHints(), [ref], {ref}
        while stack:
            tensor = stack.pop()
            for name, i in self._consumers.get(tensor, ()):
                self._meet(hints, name, i)
                node = self._runner.graph.nodes[name]
                for output in [THROUGH[node.op][i]] if i in THROUGH.get(node.op, {}) else []:
                    for ahead in self._runner.outputs(name) if node.op == "DynamicPartition" else [(name, output)]:
                        if ahead not in seen:
                            seen.add(ahead)
                            stack.append(ahead)
        return hints

    def _meet(self, hints: InputHints, name: str, i: int) -> None:
        node = self._runner.graph.nodes[name]
        if node.op in ("LookupTableFindV2", "LookupTableFind") and i == 1:
            if self._runner.graph.nodes[node.inputs[0][0]].op == TABLE and len(hints.keys) < MAX_VOCABULARY:
                hints.keys += self._runner.table(node.inputs[0])[0].ravel()[:MAX_VOCABULARY].tolist()
        elif node.op in ("GatherV2", "Gather") and i == 1:
            rows = self._runner.tensor(node.inputs[0]).shape
            if rows.rank and rows[0]:
                hints.bound(int(rows[0]))
        elif node.op == "OneHot" and i == 0:
            hints.bound(int(self._runner.constant(node.inputs[1])))
        elif node.op == "StringToNumber":
            hints.number = True
        elif node.op in ("ParseExampleV2", "ParseExample", "ParseSingleExample") and i == 0:
            hints.parsed.append(name)

    def _column(self, fed: FeedSpec, hints: InputHints, rows: int) -> Column:
        count = rows * int(np.prod(fed.dims, dtype=np.int64))
        values = self._edged(fed, hints, self._values(fed.dtype.kind, hints, count))
        if isinstance(values, list):
            return Strings.of(values)
        dtype: np.dtype[Any] = np.dtype(np.float32 if fed.floats else np.int64)
        columns = fed.input.columns
        return values.astype(dtype).reshape((rows, columns) if columns else (rows,))

    def _edged(
        self, fed: FeedSpec, hints: InputHints, values: NDArray[Any] | list[bytes]
    ) -> NDArray[Any] | list[bytes]:
        if not self._edges or fed.dtype.kind == "b" or hints.parsed or hints.number:
            return values
        edges: list[Any] = list(FLOAT_EDGES if fed.floats else TEXT_EDGES)
        if fed.dtype.kind in "iu":
            below = np.iinfo(fed.dtype).max if hints.below is None else hints.below - 1
            least = np.iinfo(fed.dtype).min if hints.below is None else 0
            if fed.dtype == np.uint64 and hints.below is None:
                # As int64 carries their bits.
                least, below = -(2**63), 2**63 - 1
            edges = [edge for edge in WHOLE_EDGES if least <= edge <= below]
        chosen = self._random.random(len(values)) < 1 / 3
        for i in np.flatnonzero(chosen).tolist() if edges else ():
            values[i] = edges[int(self._random.integers(len(edges)))]
        return values

    def _values(self, kind: str, hints: InputHints, count: int) -> NDArray[Any] | list[bytes]:
        random = self._random
        if kind == "f":
            return random.standard_normal(count, np.float32)
        if kind == "b":
            return random.integers(0, 2, count)
        if kind != "O":
            below = hints.below if hints.below is not None else self._scale
            drawn = random.integers(0, max(1, below), count)
            keys = [k for k in hints.keys if hints.below is None or 0 <= k < hints.below]
            if keys:
                chosen = random.choice(np.array(keys, np.int64), count)
                drawn = np.where(random.random(count) < 0.8, chosen, drawn)
            return drawn
        if hints.parsed:
            return [self._example(hints.parsed[0]) for _ in range(count)]
        if hints.number:
            return [b"%d" % n for n in random.integers(0, self._scale, count)]
        words = [b"w%d" % n for n in random.integers(0, self._scale, count)]
        return [
            hints.keys[int(random.integers(len(hints.keys)))] if hints.keys and random.random() < 0.8 else word
            for word in words
        ]

    def _example(self, name: str) -> bytes:
        features = {}
        for key, dtype, length, ref in self._parsed(name):
            values = self._values({tf.string: "O", tf.float32: "f"}.get(dtype, "i"), self.hints(ref), length)
            if isinstance(values, list):
                features[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
            elif dtype == tf.float32:
                features[key] = tf.train.Feature(float_list=tf.train.FloatList(value=values.tolist()))
            else:
                features[key] = tf.train.Feature(int64_list=tf.train.Int64List(value=values.tolist()))
        return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    def _parsed(self, name: str) -> Iterator[tuple[str, Any, int, Ref]]:
        """Iterate over (key, dtype, length, output tensor) of every feature that a node parses."""
        runner, node = self._runner, self._runner.graph.nodes[name]
        # Reading a missing attribute of a message would add it, so work on a copy.
        attr = type(node.definition).FromString(node.definition.SerializeToString()).attr

        def keys(ref: Ref) -> list[str]:
            return [k.decode() for k in np.asarray(runner.constant(ref)).ravel().tolist()]

        def length() -> int:
            return int(self._random.integers(1, MAX_LENGTH))

        sparse = list(map(tf.as_dtype, attr["sparse_types"].list.type or attr["Tsparse"].list.type))
        dense = list(map(tf.as_dtype, attr["Tdense"].list.type))
        shapes = [[d.size for d in s.dim] for s in attr["dense_shapes"].list.shape]
        if node.op == "ParseExampleV2":
            sparse_keys, dense_keys, ragged_keys = (keys(node.inputs[i]) for i in (2, 3, 4))
        elif node.op == "ParseExample":
            split = 2 + len(sparse)
            sparse_keys = [k for ref in node.inputs[2:split] for k in keys(ref)]
            dense_keys = [k for ref in node.inputs[split : split + len(dense)] for k in keys(ref)]
            ragged_keys = []
        else:
            sparse_keys = [k.decode() for k in attr["sparse_keys"].list.s]
            dense_keys = [k.decode() for k in attr["dense_keys"].list.s]
            ragged_keys = []
        ragged = list(map(tf.as_dtype, attr["ragged_value_types"].list.type))
        n, m = len(sparse_keys), len(dense_keys)
        for i, (key, dtype) in enumerate(zip(sparse_keys, sparse)):
            yield key, dtype, length(), (name, n + i)
        for i, (key, dtype, shape) in enumerate(zip(dense_keys, dense, shapes)):
            size = int(np.prod([abs(d) for d in shape], dtype=np.int64))
            yield key, dtype, size, (name, 3 * n + i)
        for i, (key, dtype) in enumerate(zip(ragged_keys, ragged)):
            yield key, dtype, length(), (name, 3 * n + m + i)
