"""Find pooled embeddings, sums and means over the ids of a row, at TensorFlow's segment operations.

tf.nn.embedding_lookup_sparse and reductions of ragged tensors become one of a few operations over: rows of a variable,
an id for each entry, and the batch row of each entry. Such a tensor is a feature of many ids over a table. The ids are
those that the client sends, if the model uses them unchanged; otherwise the model's own ids (pruned, hashed, filled),
from its stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.imports.embedding_lookups import Lookup, LookupFinder
from freshet_serving.compiler.imports.feeds import RAGGED, SPARSE, FeedSpec
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
CLOSE = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class PooledLookup:
    """A pooled tensor.

    Attributes:
        lookup: The table.
        combiner: sum, mean or sqrtn.
        entries: The key of every entry.
        segments: The batch row of every entry.
        input: The client's input that both come from; "" if a stage has to compute them.
    """

    lookup: Lookup
    combiner: str
    entries: Ref
    segments: Ref
    input: str


class PoolFinder:
    """Finds the pooling behind a tensor [rows, dim]."""

    def __init__(
        self, shapes: Shapes, finder: LookupFinder, inputs: Sequence[FeedSpec], samples: Sequence[Mapping[str, Column]]
    ) -> None:
        self._shapes, self._finder, self._samples = shapes, finder, samples
        self._lists = {f"input/{f.name}/values": f.name for f in inputs if f.kind in (RAGGED, SPARSE)}

    def find(self, target: Ref) -> PooledLookup | None:
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
        """Return tensors that may hold the key of every entry, the earliest first.

        Each comes with the steps that compute data from it.
        """
        graph, finder = self._shapes.graph, self._finder
        if indices is None:
            return [(source, [(data, source)]) for source in finder.sources(data)]
        unique = graph.nodes[indices[0]]
        if unique.op not in ("Unique", "UniqueV2") or indices[1] != 1:
            return []
        whole = unique.inputs[0]
        found = [(source, [(data, (unique.name, 0)), (whole, source)]) for source in finder.sources(whole)]
        return [*found, (whole, [(data, (unique.name, 0)), (whole, whole)])]

    def _checked(self, pool: PooledLookup, target: Ref) -> PooledLookup | None:
        """Return the pool if it gives what the model does on every sample.

        It reads the client's input if that is enough.
        """
        name = self._lists.get(pool.entries[0], "")
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
        shares: dict[str, NDArray[np.float32]] = {
            "sum": np.ones_like(counts),
            "mean": counts,
            "sqrtn": np.sqrt(counts),
        }
        return total / shares[pool.combiner]
