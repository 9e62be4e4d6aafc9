"""Find embeddings: tensors that are a function of one key per entry, and so can be rows of a table.

A tensor T is such a function of an earlier tensor D if every entry of T follows from one entry of D, and D's values are
used only in ways for which finitely many of them matter: looked up in a table, used as the index of a gather, compared
with a constant. Then T's value at each of those keys is a row, and its value at any other key is the default row. Rows
are not derived from a pattern: they are what TensorFlow computes when D is fed with the keys. Whether an entry really
follows from one entry is checked on the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.foreign_graph import INPUT, TABLE, VARIABLE, ForeignNode, Ref
from freshet_serving.compiler.imports.ops import words
from freshet_serving.compiler.imports.package_draft import MAX_DIM
from freshet_serving.compiler.imports.shapes import Shapes
from freshet_serving.processor.errors import BadInput

Keys = NDArray[np.int64] | list[bytes]

ELEMENTWISE = words(
    """
    Abs Add AddV2 BroadcastTo Cast DenseBincount Equal ExpandDims Fill FloorDiv FloorMod GatherV2 Greater GreaterEqual
    Less LessEqual LogicalAnd LogicalNot LogicalOr LookupTableFindV2 Max Maximum Mean Min Minimum Mul Neg NotEqual
    OneHot OnesLike Pack RealDiv Reshape Rsqrt Select SelectV2 Shape Size Sqrt Square Squeeze StridedSlice Sub Sum
    ZerosLike
    """
)
PARTITIONED = words("ConcatV2 DynamicPartition DynamicStitch ParallelDynamicStitch Range Size")
STITCHES = ("DynamicStitch", "ParallelDynamicStitch")
PASSING = frozenset({"Cast", "Reshape", "ExpandDims", "Squeeze"})
SHAPING = frozenset({"Shape", "Size", "OnesLike", "ZerosLike"})
MASKS = ("Equal", "NotEqual", "LogicalNot")
MAX_ROWS = 2**31 - 1
# Limit on the numbers in rows that are computed (one-hot, masks) instead of read from a variable.
MAX_COMPUTED = 1 << 20
CHUNK = 65536
CLOSE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """T as rows of a table keyed by D.

    Attributes:
        keys: Distinct keys; ids are ascending.
        rows: float32 [keys, dim].
        default: float32 [dim], the row of any other key; None for zeros, if the model refuses other keys.
        variable: The variable that the rows are from; "" if they are computed.
    """

    target: Ref
    source: Ref
    keys: Keys
    rows: NDArray[np.float32]
    default: NDArray[np.float32] | None
    variable: str

    @property
    def dim(self) -> int:
        return int(self.rows.shape[1])

    def values(self, keys: Any) -> NDArray[np.float32]:
        """Return the rows of n keys, float32 [n, dim], by NumPy, for the checks to compare with."""
        asked = np.asarray(keys).ravel()
        if isinstance(self.keys, list):
            at = {key: i for i, key in enumerate(self.keys)}
            places = np.array([at.get(key, -1) for key in asked.tolist()], np.int64)
        else:
            places = np.searchsorted(self.keys, asked)
            is_key = places < len(self.keys)
            is_key[is_key] = self.keys[places[is_key]] == asked[is_key]
            places = np.where(is_key, places, -1)
        rows = np.zeros((len(asked), self.dim), np.float32)
        if self.default is not None:
            rows[:] = self.default
        rows[places >= 0] = self.rows[places[places >= 0]]
        return rows


class LookupFinder:
    """Finds the earliest tensor that a tensor is a function of, key by key."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes, self._graph, self._runner = shapes, shapes.graph, shapes.runner

    def find(self, target: Ref) -> Lookup | None:
        for source in self.sources(target):
            if self._shapes.rows(source) is None:
                continue
            lookup = self.lookup([(target, source)])
            if lookup is not None and self.holds(lookup):
                return lookup
        return None

    def sources(self, target: Ref) -> list[Ref]:
        """Return tensors of ids or strings that `target` depends on, the earliest first."""
        names = [n.name for n in self._graph.ancestors([target]) if n.name not in self._shapes.constant]
        refs = [ref for name in names for ref in self._runner.outputs(name) if ref != target]
        return [ref for ref in refs if self._runner.tensor(ref).dtype in (tf.string, tf.int64, tf.int32)]

    def lookup(self, steps: Sequence[tuple[Ref, Ref]]) -> Lookup | None:
        """Return the table of a chain of functions [(target, source), ...], the first of which comes last, or None.

        The source of each is fed with the values of the next one's target.
        """
        target, source = steps[0][0], steps[-1][1]
        met: list[Any] = []
        bounds: list[int] = []
        variables: set[str] = set()
        raw = True
        for goal, start in reversed(steps):
            touched = self._touched(goal, start)
            if touched is None:
                return None
            variables |= touched.variables
            if raw:
                met += touched.keys
                bounds += touched.bounds
                # If a step passes its keys on unchanged, the next step determines which of them matter.
                raw = touched.passing
        if raw or (not variables and self._graph.nodes[source[0]].op != INPUT):
            return None
        keys = self._keys(source, met, bounds)
        if keys is None:
            return None
        if not variables and len(keys) * max(1, self._width(target, source)) > MAX_COMPUTED:
            return None
        try:
            rows = self._evaluate(steps, keys)
        except BadInput:
            return None
        if rows.shape[1] > MAX_DIM or not np.isfinite(rows).all():
            return None
        default = None if bounds else self._default(steps, keys)
        return Lookup(target, source, keys, rows, default, sorted(variables)[0] if variables else "")

    def compared(self, target: Ref, source: Ref) -> set[int]:
        """Return the ids that the source's values are compared with on the way to the target."""
        ids: set[int] = set()
        for node in self._graph.ancestors([target], {source}):
            if node.op in ("Equal", "NotEqual") and node.name not in self._shapes.constant:
                others = [ref for ref in node.inputs if ref[0] in self._shapes.constant]
                ids |= {int(k) for ref in others for k in self._runner.constant(ref).ravel().tolist()}
        return ids

    def gathers(self, target: Ref, source: Ref) -> list[Ref]:
        """Return the rows that are gathered by the source's values on the way to the target."""
        nodes = self._graph.ancestors([target], {source})
        return [(n.name, 0) for n in nodes if n.op == "GatherV2" and n.name not in self._shapes.constant]

    def _default(self, steps: Sequence[tuple[Ref, Ref]], keys: Keys) -> NDArray[np.float32] | None:
        try:
            row: NDArray[np.float32] = self._evaluate(steps, self._other(keys))[0]
        except BadInput:
            return None
        return row

    def _width(self, target: Ref, source: Ref) -> int:
        values = self._shapes.values[0]
        return int(np.size(values[target]) // max(1, np.size(values[source])))

    def _touched(self, target: Ref, source: Ref) -> _KeyDependency | None:
        """Return the source's values that matter to the target; None if they are not finite, or not key by key."""
        if target == source:
            return _KeyDependency([], [], set(), True)
        nodes = self._graph.ancestors([target], {source})
        inner = [n for n in nodes if n.name not in self._shapes.constant]
        stitched = any(n.op in STITCHES for n in inner)
        allowed = ELEMENTWISE | PARTITIONED if stitched else ELEMENTWISE
        if any(n.op not in allowed or n.name == source[0] for n in inner):
            return None
        gathers = [n for n in inner if n.op == "GatherV2"]
        if not all(n.inputs[0][0] in self._shapes.constant and self._plain(n) for n in gathers):
            return None
        variables = {
            above.name
            for gather in gathers
            for above in self._graph.ancestors([gather.inputs[0]])
            if above.op == VARIABLE and self._runner.tensor((above.name, 0)).dtype == tf.float32
        }
        touched = _KeyDependency([], [], variables, False)
        if stitched:
            touched.bounds.append(sum(self._rows_of(g) for g in gathers))
            return touched
        raw = {source}
        wrapped: set[str] = set()
        for node in inner:
            places = [i for i, ref in enumerate(node.inputs) if ref in raw]
            if any(ref[0] in wrapped for ref in node.inputs) and node.op not in ("SelectV2", "Select"):
                return None
            if places and not self._meets(node, places, raw, wrapped, touched):
                return None
        if target in raw:
            touched.passing = True
        return touched

    def _meets(
        self, node: ForeignNode, places: list[int], raw: set[Ref], wrapped: set[str], touched: _KeyDependency
    ) -> bool:
        """Return whether a node uses raw keys in a way for which finitely many of them matter."""
        op, out = node.op, (node.name, 0)
        if op in PASSING and places == [0]:
            raw.add(out)
        elif op in SHAPING:
            pass
        elif op == "LookupTableFindV2" and places == [1]:
            if self._graph.nodes[node.inputs[0][0]].op != TABLE:
                return False
            touched.keys += self._runner.table(node.inputs[0])[0].ravel().tolist()
        elif op in ("Equal", "NotEqual"):
            other = node.inputs[1 - places[0]]
            if len(places) > 1 or other[0] not in self._shapes.constant:
                return False
            touched.keys += self._runner.constant(other).ravel().tolist()
        elif op == "GatherV2" and places == [1]:
            touched.bounds.append(self._rows_of(node))
        elif op == "OneHot" and places == [0]:
            touched.keys += range(int(self._runner.constant(node.inputs[1])))
        elif op in ("Less", "GreaterEqual", "AddV2", "Add") and self._zero_or_shift(node, places):
            # Keras counts negative ids from the end: x < 0 ? x + rows : x. As keys they stay unchanged.
            wrapped.add(node.name)
        elif op in ("SelectV2", "Select") and 0 not in places:
            others = [ref for i, ref in enumerate(node.inputs) if i not in places]
            settled = wrapped | self._shapes.constant
            if not all(ref[0] in settled or self._graph.nodes[ref[0]].op in MASKS for ref in others):
                return False
            raw.add(out)
        else:
            return False
        return True

    def _zero_or_shift(self, node: ForeignNode, places: list[int]) -> bool:
        if places != [0] or node.inputs[1][0] not in self._shapes.constant:
            return False
        return not node.op.startswith(("Less", "Greater")) or not self._runner.constant(node.inputs[1]).any()

    def _plain(self, gather: ForeignNode) -> bool:
        return (
            not gather.definition.attr["batch_dims"].i
            and gather.inputs[2][0] in self._shapes.constant
            and int(self._runner.constant(gather.inputs[2])) == 0
        )

    def _rows_of(self, gather: ForeignNode) -> int:
        return int(self._runner.tensor(gather.inputs[0]).shape[0] or 0)

    def _keys(self, source: Ref, met: list[Any], bounds: list[int]) -> Keys | None:
        if self._runner.tensor(source).dtype == tf.string:
            return None if bounds else list(dict.fromkeys(met))
        if bounds:
            # For ids beyond the bounds the model fails: they have no row.
            return np.arange(min(bounds), dtype=np.int64) if min(bounds) <= MAX_ROWS else None
        return np.array(sorted(set(met)), np.int64)

    def _other(self, keys: Keys) -> Keys:
        if isinstance(keys, list):
            word = b"\x00freshet"
            while word in keys:
                word += b"\x00"
            return [word]
        taken = set(keys.tolist())
        return np.array([next(k for k in range(len(taken) + 1, 2 * len(taken) + 3) if k not in taken)], np.int64)

    def _evaluate(self, steps: Sequence[tuple[Ref, Ref]], keys: Keys) -> NDArray[np.float32]:
        if not len(keys):
            target, source = steps[0][0], steps[-1][1]
            return np.empty((0, max(1, self._width(target, source))), np.float32)
        parts = [self._chunk(steps, keys[at : at + CHUNK]) for at in range(0, len(keys), CHUNK)]
        return np.concatenate(parts)

    def _chunk(self, steps: Sequence[tuple[Ref, Ref]], keys: Keys) -> NDArray[np.float32]:
        """Evaluate the chain at up to CHUNK keys, in the shape that the source expects."""
        values: Any = np.array(keys, object) if isinstance(keys, list) else keys
        count = len(keys)
        for goal, start in reversed(steps):
            if goal == start:
                continue
            like = self._shapes.values[0][start]
            entry = int(np.prod(like.shape[1:], dtype=np.int64)) if np.ndim(like) else 1
            padded = np.concatenate([values, np.repeat(values[-1:], -len(values) % entry)])
            if like.dtype.kind == "i":
                padded = padded.astype(like.dtype)
            (results,) = self._runner.run([goal], {}, {start: padded.reshape(-1, *like.shape[1:])})
            results = np.asarray(results)
            if results.size % len(padded):
                raise BadInput("graph: expected a result for each key, got one for several together")
            values = results.reshape(len(padded), -1)[:count]
            if values.shape[1] == 1 and goal != steps[0][0]:
                values = values[:, 0]
        return np.ascontiguousarray(values.reshape(count, -1).astype(np.float32))

    def holds(self, lookup: Lookup) -> bool:
        for values in self._shapes.values:
            expected, rows = np.asarray(values[lookup.target], np.float32), lookup.values(values[lookup.source])
            if rows.size != expected.size:
                return False
            if not np.allclose(rows, expected.reshape(rows.shape), rtol=CLOSE, atol=CLOSE):
                return False
        return True


@dataclass(slots=True)
class _KeyDependency:
    """The way in which a target depends on keys: the values that matter, and the variables that rows are read from.

    Attributes:
        bounds: Number of rows of each indexed tensor.
        passing: Whether the target is the keys themselves.
    """

    keys: list[Any]
    bounds: list[int]
    variables: set[str]
    passing: bool
