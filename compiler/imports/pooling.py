"""Find pooled embeddings, sums and means over the ids of a row: features of many ids over a table.

tf.nn.embedding_lookup_sparse and reductions of ragged tensors become one of TensorFlow's segment operations over: rows
of a variable, an id for each entry, and the batch row of each entry. The ids are those that the client sends, if the
model uses them unchanged; otherwise the model's own ids (pruned, hashed, filled), from its stage.

A matrix of ids with any number of columns is pooled by a Sum or Mean along its second axis. What is reduced has to be a
function of each id alone. A mask over the padding is one, so a masked mean becomes a sum of rows, in which the
padding's row is zero, over a sum of ones, in which it is zero too. The ids are always those that the client sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.imports.embedding_lookups import Lookup, LookupFinder
from freshet_serving.compiler.imports.feeds import PADDED, RAGGED, SPARSE, FeedSpec
from freshet_serving.compiler.imports.foreign_graph import Ref
from freshet_serving.compiler.imports.shapes import SIZES, Shapes
from freshet_serving.processor.columns import Column, Ragged

# Operation -> combiner, and the numbers of its operands for indices (None: one datum per entry) and segments.
SEGMENTS: dict[str, tuple[str, int | None, int]] = {
    "SparseSegmentSum": ("sum", 1, 2),
    "SparseSegmentSumWithNumSegments": ("sum", 1, 2),
    "SparseSegmentMean": ("mean", 1, 2),
    "SparseSegmentMeanWithNumSegments": ("mean", 1, 2),
    "SparseSegmentSqrtN": ("sqrtn", 1, 2),
    "SparseSegmentSqrtNWithNumSegments": ("sqrtn", 1, 2),
    "SegmentSum": ("sum", None, 1),
    "SegmentMean": ("mean", None, 1),
    "UnsortedSegmentSum": ("sum", None, 1),
}
# Operation that reduces along an axis -> combiner.
REDUCTIONS = {"Sum": "sum", "Mean": "mean"}
POOLING = SEGMENTS.keys() | REDUCTIONS.keys()
CLOSE = 1e-5
MAX_MASKED = 16


@dataclass(frozen=True, slots=True, eq=False)
class PooledLookup:
    """A pooled tensor.

    Attributes:
        combiner: sum, mean or sqrtn.
        entries: The key of every entry: a vector, or a matrix whose rows are the batch's.
        segments: The batch row of every entry of a vector; None for a matrix.
        input: The client's input that both come from; "" if a stage has to compute them.
        dropped: Ids of the input that a mask leaves out of the sum.
    """

    lookup: Lookup
    combiner: str
    entries: Ref
    segments: Ref | None
    input: str
    dropped: tuple[int, ...] = ()


class PoolFinder:
    def __init__(
        self, shapes: Shapes, finder: LookupFinder, inputs: Sequence[FeedSpec], samples: Sequence[Mapping[str, Column]]
    ) -> None:
        self._shapes, self._finder, self._samples = shapes, finder, samples
        self._lists = {f"input/{f.name}/values": f.name for f in inputs if f.kind in (RAGGED, SPARSE)}
        self._matrices = {f"input/{f.name}": f.name for f in inputs if f.kind == PADDED}

    def find(self, target: Ref) -> PooledLookup | None:
        if self._shapes.graph.nodes[target[0]].op in REDUCTIONS:
            return self._reduced(target)
        return self._segmented(target)

    def _reduced(self, target: Ref) -> PooledLookup | None:
        """Return the pooling of a matrix of ids along its second axis."""
        node, shapes = self._shapes.graph.nodes[target[0]], self._shapes
        data, axis = node.inputs
        if axis[0] not in shapes.constant or shapes.rows(target) is None:
            return None
        axes, rank = shapes.runner.constant(axis).ravel().tolist(), np.ndim(shapes.values[0][data])
        if rank < 2 or [a % rank for a in axes] != [1]:
            return None
        for source in self._finder.sources(data):
            if source[0] not in self._matrices:
                continue
            lookup = self._finder.lookup([(data, source)])
            if lookup is not None and lookup.dim == shapes.size(target):
                pool = PooledLookup(lookup, REDUCTIONS[node.op], source, None, self._matrices[source[0]])
                if self._gives(pool, target):
                    return self._unmasked(pool)
        return None

    def _unmasked(self, pool: PooledLookup) -> PooledLookup:
        """Return the pool over the rows that are gathered, without the ids whose rows a mask makes zero.

        So its table is the one that other lookups of these rows read.
        """
        lookup = pool.lookup
        if pool.combiner != "sum" or not lookup.variable or isinstance(lookup.keys, list):
            return pool
        compared = self._finder.compared(lookup.target, pool.entries)
        masked = sorted(k for k in compared if not lookup.values([k]).any())
        if not 0 < len(masked) <= MAX_MASKED:
            return pool
        unmasked = ~np.isin(lookup.keys, masked)
        for gathered in self._finder.gathers(lookup.target, pool.entries):
            plain = self._finder.lookup([(gathered, pool.entries)])
            equal_keys = plain is not None and np.array_equal(plain.keys, lookup.keys)
            if plain is not None and equal_keys and np.array_equal(plain.rows[unmasked], lookup.rows[unmasked]):
                return replace(pool, lookup=plain, dropped=tuple(masked))
        return pool

    def _gives(self, pool: PooledLookup, target: Ref) -> bool:
        for rows, values in zip(SIZES, self._shapes.values):
            ids = values[pool.entries]
            segments = np.repeat(np.arange(rows), ids.shape[1])
            pooled, expected = self._pooled(pool, ids.ravel(), segments, rows), values[target].reshape(rows, -1)
            if not np.allclose(pooled, expected, rtol=CLOSE, atol=CLOSE):
                return False
        return True

    def _segmented(self, target: Ref) -> PooledLookup | None:
        node = self._shapes.graph.nodes[target[0]]
        shape = self._shapes.rows(target)
        if node.op not in SEGMENTS or shape is None or shape[0] != 1 or len(shape[1]) != 1:
            return None
        combiner, at, segments = SEGMENTS[node.op]
        indices = None if at is None else node.inputs[at]
        for entries, steps in self._entries(node.inputs[0], indices):
            lookup = self._finder.lookup(steps)
            if lookup is None or lookup.dim != shape[1][0]:
                continue
            pool = self._checked(PooledLookup(lookup, combiner, entries, node.inputs[segments], ""), target)
            if pool is not None and (pool.input or pool.lookup.variable):
                return pool
        return None

    def _entries(self, data: Ref, indices: Ref | None) -> list[tuple[Ref, list[tuple[Ref, Ref]]]]:
        """Return tensors that may hold the key of every entry, the earliest first, with the steps from them to data."""
        graph, finder = self._shapes.graph, self._finder
        if indices is None:
            return [(source, [(data, source)]) for source in finder.sources(data)]
        unique = graph.nodes[indices[0]]
        if unique.op not in ("Unique", "UniqueV2") or indices[1] != 1:
            return []
        whole = unique.inputs[0]
        entries = [(source, [(data, (unique.name, 0)), (whole, source)]) for source in finder.sources(whole)]
        return [*entries, (whole, [(data, (unique.name, 0)), (whole, whole)])]

    def _checked(self, pool: PooledLookup, target: Ref) -> PooledLookup | None:
        """Return the pool if it gives what the model does on every sample, by the client's input if that is enough."""
        name = self._lists.get(pool.entries[0], "")
        assert pool.segments is not None, "of a segment operation"
        for sample, rows, values in zip(self._samples, SIZES, self._shapes.values):
            if pool.entries not in values or pool.segments not in values:
                return None
            entries, segments = values[pool.entries], np.asarray(values[pool.segments], np.int64)
            if np.ndim(entries) != 1 or len(entries) != len(segments):
                return None
            if not np.allclose(self._pooled(pool, entries, segments, rows), values[target], rtol=CLOSE, atol=CLOSE):
                return None
            column = sample.get(name)
            lengths = np.diff(column.row_splits) if isinstance(column, Ragged) else None
            if lengths is None or not np.array_equal(segments, np.repeat(np.arange(rows), lengths)):
                name = ""
        return PooledLookup(pool.lookup, pool.combiner, pool.entries, pool.segments, name)

    def _pooled(self, pool: PooledLookup, entries: Any, segments: Any, rows: int) -> NDArray[np.float32]:
        total = np.zeros((rows, pool.lookup.dim), np.float32)
        counts = np.maximum(np.bincount(segments, minlength=rows)[:rows, None], 1).astype(np.float32)
        np.add.at(total, segments, pool.lookup.values(entries))
        if pool.combiner == "sum":
            return total
        divisor: NDArray[np.float32] = counts if pool.combiner == "mean" else np.sqrt(counts)
        return total / divisor
