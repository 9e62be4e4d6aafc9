"""Derive columns that a model computes from its inputs, as hash buckets and crosses, by the engine's own transforms.

What is derived (processor.package.transforms) needs no stage. A tensor is followed upwards, operation by operation, to
the inputs that clients send. One table here maps each operation to a transform; whether these give what the model gives
is verified by computing both, on the samples and on probes with edge values: empty strings, long ones, -1, 0, the
largest integers. If they differ, or an operation has no transform, the import report states the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.feeds import DENSE, PADDED, RAGGED, SPARSE, FeedSpec, feeds_of, plain
from freshet_serving.compiler.imports.foreign_graph import INPUT, ForeignNode, Ref
from freshet_serving.compiler.imports.ops import words
from freshet_serving.compiler.imports.package_draft import pieces_of, unused_name
from freshet_serving.compiler.imports.runner import Runner
from freshet_serving.compiler.imports.samples import probes
from freshet_serving.compiler.imports.shapes import SIZES, Shapes
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.package import FORMAT, Manifest, Transform, shape_of

# These move values and leave them unchanged.
MOVES = words("StridedSlice Slice Split SplitV Unpack GatherV2 Reshape Squeeze ExpandDims Transpose")
WHOLE = (tf.int32, tf.int64)
THROUGH = words("Reshape Squeeze Cast")
Same = Callable[[Column, Mapping[Ref, Any]], bool]
"""Reports whether a derived column equals the model's tensors."""


class NotDerived(Exception):
    """Raised when a tensor cannot be derived; `reason` is in terms of the model's operations."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TransformDeriver:
    """Derives the columns of one model. What cannot be derived is called "".

    Attributes:
        transforms: All derived transforms, in order.
        reasons: By tensor that could not be derived, the reason.
    """

    def __init__(
        self, shapes: Shapes, runner: Runner, inputs: Sequence[FeedSpec], samples: Sequence[Mapping[str, Column]]
    ):
        self._shapes, self._runner, self._graph = shapes, runner, runner.graph
        self._inputs = {node: fed for fed in inputs for node in fed.nodes}
        self._fed = {fed.name: fed for fed in inputs}
        self._samples = [*zip(samples, SIZES)]
        self._probed = False
        self.transforms: list[Transform] = []
        self.reasons: dict[Ref, str] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def column(self, ref: Ref) -> str:
        """Return the name of a column [n] or [n, size] equal to the tensor."""
        return self._checked(ref, lambda: self._dense(ref), lambda got, values: _is_column(got, values[ref]))

    def places(self, ref: Ref) -> tuple[str, list[int]]:
        """Return the column that contains the tensor's columns, and their indices; none for a column [n]."""
        name = self.column(ref)
        last = next((t for t in self.transforms if t.name == name), None)
        if last is not None and last.op == "pick":
            (source,) = last.inputs
            return source, last.integers
        return name, list(range(self._draft().shapes[name].columns)) if name else []

    def needed(self, names: Iterable[str]) -> list[Transform]:
        names_needed = set(names)
        for transform in reversed(self.transforms):
            if transform.name in names_needed:
                names_needed |= set(transform.inputs)
        return [t for t in self.transforms if t.name in names_needed]

    def rows(self, entries: Ref, segments: Ref) -> str:
        """Return the name of ragged rows made of entries, each in the row that its segment gives."""

        def same(got: Column, values: Mapping[Ref, Any]) -> bool:
            order = np.argsort(values[segments], kind="stable")
            if not isinstance(got, Ragged) or len(got.values) != len(order):
                return False
            row = np.repeat(np.arange(len(got)), np.diff(got.row_splits))
            same_rows = np.array_equal(row, np.asarray(values[segments])[order])
            return bool(same_rows) and _listed(got.values) == _listed(np.asarray(values[entries])[order])

        return self._checked(entries, lambda: self._ragged(entries), same, segments)

    def values(self, ref: Ref) -> str:
        """Return the name of lists whose values are the tensor's, in its order."""

        def same(got: Column, values: Mapping[Ref, Any]) -> bool:
            return isinstance(got, Ragged) and _listed(got.values) == _listed(values[ref])

        return self._checked(ref, lambda: self._flat(ref), same)

    def without(self, name: str, ids: Iterable[int]) -> str:
        for each in ids:
            name = self._add("drop", [name], integers=[each])
        return name

    def floats(self, ref: Ref) -> str:
        """Return the name of a column of floats equal to the tensor's numbers or truth values."""

        def derive() -> str:
            node = self._graph.nodes[self._whole(ref)[0]]
            if node.op == "SparseFillEmptyRows" and ref[1] == 2:
                return self._add("empty", [self._ragged(node.inputs[1])])
            if node.op == "DenseBincount":
                return self._tallied(node)
            if node.op == "OneHot":
                return self._hot(node)
            name = self._dense(self._whole(ref))
            return self._add("float32", [name]) if self._draft().shapes[name].dtype == "int64" else name

        return self._checked(ref, derive, lambda got, values: _is_column(got, values[ref]))

    def pieces(self, ref: Ref) -> list[str]:
        """Return the names of columns of floats, one for each piece of the tensor's whole numbers, or none."""
        name = self.column(ref)
        return pieces_of(name, lambda op, source, **numbers: self._add(op, [source], **numbers)) if name else []

    def is_matrix(self, name: str) -> bool:
        return self._draft().shapes[name].columns > 0

    def _checked(self, ref: Ref, derive: Callable[[], str], same: Same, *more: Ref) -> str:
        """Return a derived column if it equals the model's on all samples and probes; otherwise undo the derivation."""
        before, names = len(self.transforms), dict(self._names)
        try:
            name = derive()
            if name not in self._fed and not self._holds(name, [ref, *more], same):
                raise NotDerived("the engine's transforms compute something else")
            return name
        except NotDerived as error:
            self.reasons[ref] = error.reason
        except BadInput:
            self.reasons[ref] = "the engine's transforms do not support it"
        del self.transforms[before:]
        self._names = names
        return ""

    def _holds(self, name: str, refs: Sequence[Ref], same: Same) -> bool:
        if not self._probed:
            self._samples += probes(self._runner, list(self._fed.values()))
            self._probed = True
        transforms = Transforms(replace(self._draft(), transforms=self.needed([name])))
        checked = 0
        for i, (sample, rows) in enumerate(self._samples):
            try:
                expected = self._runner.run(refs, feeds_of(self._fed, sample, rows))
            except BadInput:
                continue
            checked += i < len(SIZES)
            try:
                got = transforms.run(sample)[name]
            except BadInput:
                return False
            if not same(got, dict(zip(refs, expected))):
                return False
        return checked > 0

    def _add(self, op: str, inputs: list[str], **numbers: Any) -> str:
        key = (op, *inputs, repr(sorted(numbers.items())))
        if key not in self._names:
            label = plain(f"{op}.{inputs[0].rpartition('.')[2]}")[:100]
            name = unused_name(label, {*self._fed, *(t.name for t in self.transforms)})
            self._names[key] = name
            self.transforms.append(Transform(name, op, inputs, **numbers))
            shape_of(self.transforms[-1], [self._draft(-1).shapes[name] for name in inputs])
        return self._names[key]

    def _draft(self, end: int | None = None) -> Manifest:
        inputs = [fed.input for fed in self._fed.values()]
        return Manifest("derived", 1, "", 0.0, inputs, [], [], [], 1, {}, {}, transforms=self.transforms[:end])

    def _dense(self, ref: Ref) -> str:
        node = self._graph.nodes[ref[0]]
        if self._shapes.rows(ref) is None:
            raise NotDerived(f"{_op(node)} has no fixed number of values per row")
        if node.op == INPUT:
            fed = self._inputs[node.name]
            if fed.kind != DENSE:
                raise NotDerived(f"input {fed.name!r} is not a plain column")
            return fed.name
        if node.op in MOVES:
            return self._moved(ref, node)
        if node.op in ("ConcatV2", "Pack"):
            operands = node.inputs if node.op == "Pack" else node.inputs[:-1]
            return self._add("side_by_side", [self._dense(operand) for operand in operands])
        if node.op == "SparseToDense":
            return self._flat(node.inputs[2])
        return self._valued(node, ref, self._dense)

    def _flat(self, ref: Ref) -> str:
        """Derive the values of a sparse or ragged tensor as ragged rows or a column."""
        node = self._graph.nodes[ref[0]]
        if node.op == INPUT:
            fed = self._inputs[node.name]
            if fed.kind == PADDED or (fed.kind in (RAGGED, SPARSE) and node.name.endswith("/values")):
                return fed.name
            raise NotDerived(f"input {fed.name!r} has no values of rows")
        if node.op == "SparseCross" and ref[1] == 1:
            return self._crossed(node)
        if node.op == "SparseFillEmptyRows" and ref[1] == 1:
            return self._add("fill", [self._ragged(node.inputs[1])], integers=[self._number(node.inputs[3])])
        if node.op == "SparseReorder" and ref[1] == 1:
            return self._flat(node.inputs[1])
        if node.op in ("GatherV2", "GatherNd") and self._up(node.inputs[1]).op == "Where":
            return self._kept(node)
        if node.op in VALUES:
            return self._valued(node, ref, self._flat)
        return self._dense(ref)

    def _ragged(self, ref: Ref) -> str:
        name = self._flat(ref)
        return name if self._draft().shapes[name].ragged else self._add("rows", [name])

    def _valued(self, node: ForeignNode, ref: Ref, operand: Callable[[Ref], str]) -> str:
        if node.op in VALUES:
            return VALUES[node.op](self, node, operand)
        raise NotDerived(f"{_op(node)} is not one of the engine's transforms")

    def _moved(self, ref: Ref, node: ForeignNode) -> str:
        """Derive a reordering of another column's columns, found by running the model with distinct values."""
        source, op = ref, _op(node)
        while (above := self._graph.nodes[source[0]]).op in MOVES:
            source = above.inputs[1 if above.op == "Split" else 0]
            if source[0] in self._shapes.constant or source[0] in self._shapes.free:
                raise NotDerived(f"{_op(above)} looks up constants")
        if self._shapes.rows(source) is None:
            raise NotDerived(f"{op} rearranges values without a fixed number per row")
        name, (sample, rows) = self._dense(source), self._samples[0]
        like, width = self._shapes.values[0][source], self._shapes.size(source)
        numbers = np.arange(rows * width).reshape(np.shape(like))
        numbered: Any = numbers.astype(str).astype(object) if like.dtype == object else numbers.astype(like.dtype)
        (moved,) = self._runner.run([ref], feeds_of(self._fed, sample, rows), {source: numbered})
        places = np.array(moved, dtype=np.int64 if like.dtype != object else object).astype(np.int64).reshape(rows, -1)
        first = places[0]
        if not np.array_equal(places, first + width * np.arange(rows)[:, None]):
            raise NotDerived(f"{op} mixes rows")
        return name if np.array_equal(first, np.arange(width)) else self._add("pick", [name], integers=first.tolist())

    def _crossed(self, node: ForeignNode) -> str:
        sparse, dense = _attr(node, "N", 0), len(_attr(node, "dense_types", []))
        if not _attr(node, "hashed_output", False):
            raise NotDerived("SparseCross outputs strings")
        columns = [self._flat(ref) for ref in node.inputs[sparse : 2 * sparse]]
        columns += [self._dense(ref) for ref in node.inputs[3 * sparse : 3 * sparse + dense]]
        key = _attr(node, "hash_key", 0) % 2**64
        return self._add("cross", columns, integers=[_attr(node, "num_buckets", 0) or 2**63 - 1, key])

    def _kept(self, node: ForeignNode) -> str:
        """Derive the selection of values by a condition on themselves."""
        place = self._up(node.inputs[1])
        condition = self._graph.nodes[self._up_ref(place.inputs[0])[0]]
        if condition.op not in ("NotEqual", "GreaterEqual", "Greater") or len(condition.inputs) != 2:
            raise NotDerived(f"{_op(condition)} chooses among values")
        tested, limit = condition.inputs
        derive = self._dense if node.op == "GatherNd" else self._flat
        name = derive(node.inputs[0])
        if derive(tested) != name or not self._known(limit):
            raise NotDerived(f"{_op(condition)} chooses values by other values")
        word = self._same_value(condition, limit)
        if condition.op == "NotEqual":
            if isinstance(word, bytes):
                return self._add("drop", [name], texts=[_text(word)])
            return self._add("drop", [name], integers=[_integer(word)])
        name = name if self._draft().shapes[name].ragged else self._add("rows", [name])
        return self._add("drop_below", [name], integers=[_integer(word) + (condition.op == "Greater")])

    def _hot(self, node: ForeignNode) -> str:
        ends = [float(np.max(self._runner.constant(ref))) for ref in node.inputs[2:] if ref[0] in self._shapes.constant]
        if ends != [1.0, 0.0] or _attr(node, "axis", -1) != -1:
            raise NotDerived("OneHot with numbers other than 1 and 0")
        return self._add("one_hot", [self._dense(node.inputs[0])], integers=[self._number(node.inputs[1])])

    def _tallied(self, node: ForeignNode) -> str:
        sizes = {int(np.max(values[node.inputs[1]])) for values in self._shapes.values if node.inputs[1] in values}
        if node.inputs[1][0] in self._shapes.constant:
            sizes = {self._number(node.inputs[1])}
        if len(sizes) != 1 or node.inputs[2][0] not in self._shapes.constant:
            raise NotDerived("DenseBincount with weights, or with a size that depends on the values")
        once = int(_attr(node, "binary_output", False))
        return self._add("tally", [self._dense(node.inputs[0])], integers=[*sizes, once])

    def _whole(self, ref: Ref) -> Ref:
        node = self._graph.nodes[ref[0]]
        cast = node.op == "Cast" and self._runner.tensor(node.inputs[0]).dtype in WHOLE
        return node.inputs[0] if cast and self._runner.tensor(ref).dtype == tf.float32 else ref

    def _up_ref(self, ref: Ref) -> Ref:
        while self._graph.nodes[ref[0]].op in THROUGH:
            ref = self._graph.nodes[ref[0]].inputs[0]
        return ref

    def _up(self, ref: Ref) -> ForeignNode:
        return self._graph.nodes[self._up_ref(ref)[0]]

    def _known(self, ref: Ref) -> bool:
        """Return whether a tensor's numbers are independent of the request."""
        fixed = ref[0] in self._shapes.constant or ref[0] in self._shapes.free
        return fixed or self._graph.nodes[ref[0]].op in ("OnesLike", "ZerosLike")

    def _number(self, ref: Ref) -> int:
        if ref[0] not in self._shapes.constant:
            raise NotDerived("a number that is not constant")
        return _integer(self._runner.constant(ref).reshape(-1)[0])

    def masked(self, node: ForeignNode, operand: Callable[[Ref], str]) -> str:
        """Derive a constant where a column has one value, and another column elsewhere."""
        condition, first, second = self._graph.nodes[node.inputs[0][0]], node.inputs[1], node.inputs[2]
        if condition.op == "LogicalOr":
            return self._limited(node, condition, operand)
        if condition.op == "NotEqual":
            first, second = second, first
        if condition.op not in ("Equal", "NotEqual") or condition.inputs[1][0] not in self._shapes.constant:
            raise NotDerived(f"{_op(condition)} chooses among values")
        number = _integer(self._same_value(node, first))
        word = self._runner.constant(condition.inputs[1]).reshape(-1)[0]
        names = [operand(condition.inputs[0]), operand(second)]
        if isinstance(word, bytes):
            return self._add("mask", names, texts=[_text(word)], integers=[number])
        return self._add("mask", names, integers=[_integer(word), number])

    def _limited(self, node: ForeignNode, condition: ForeignNode, operand: Callable[[Ref], str]) -> str:
        parts = {self._graph.nodes[ref[0]].op: self._graph.nodes[ref[0]] for ref in condition.inputs}
        if parts.keys() != {"Less", "GreaterEqual"}:
            raise NotDerived("LogicalOr chooses among values")
        low, high = (self._number(parts[op].inputs[1]) for op in ("Less", "GreaterEqual"))
        number = _integer(self._same_value(node, node.inputs[1]))
        return self._add("within", [operand(node.inputs[2])], integers=[low, high, number])

    def _same_value(self, node: ForeignNode, ref: Ref) -> Any:
        arrays = [values[ref] for values in self._shapes.values if ref in values] or [self._runner.constant(ref)]
        distinct = {value for values in arrays for value in _listed(np.asarray(values))}
        if len(distinct) != 1:
            raise NotDerived(f"{_op(node)} compares with or chooses among several values")
        return distinct.pop()

    def hashed(self, node: ForeignNode, operand: Callable[[Ref], str]) -> str:
        op = {"StringToHashBucketFast": "farm", "StringToHashBucket": "murmur"}.get(node.op, "sip")
        key = [n % 2**64 for n in _attr(node, "key", [])] if op == "sip" else []
        return self._add(op, [operand(node.inputs[0])], integers=[_attr(node, "num_buckets", 0), *key])

    def written(self, node: ForeignNode, operand: Callable[[Ref], str]) -> str:
        dtype = self._runner.tensor(node.inputs[0]).dtype
        fill, width, precision = (
            _attr(node, "fill", b"").decode(),
            _attr(node, "width", -1),
            _attr(node, "precision", -1),
        )
        if dtype in WHOLE:
            form = f"%{fill}{width if width > 0 else ''}d"
        elif dtype == tf.float32 and not fill:
            letter = "e" if _attr(node, "scientific", False) else "g" if _attr(node, "shortest", False) else "f"
            form = f"%{width if width > 0 else ''}{f'.{precision}' if precision >= 0 else ''}{letter}"
        else:
            raise NotDerived(f"AsString writes {dtype.name}")
        if FORMAT.fullmatch(form) is None:
            raise NotDerived("AsString with its own format")
        return self._add("text", [operand(node.inputs[0])], texts=[form])

    def joined(self, node: ForeignNode, operand: Callable[[Ref], str]) -> str:
        """Derive StringJoin: constants and separators become the text between the columns."""
        separator = _text(_attr(node, "separator", b""))
        pieces, columns = [""], []
        for i, ref in enumerate(node.inputs):
            pieces[-1] += separator if i else ""
            if ref[0] in self._shapes.constant:
                (word,) = self._runner.constant(ref).reshape(-1).tolist() or [b""]
                pieces[-1] += _text(word)
            else:
                columns.append(operand(ref))
                pieces.append("")
        return self._add("join", columns, texts=pieces)

    def changed(self, node: ForeignNode, operand: Callable[[Ref], str]) -> str:
        if node.op != "StringStrip" and _attr(node, "encoding", b""):
            raise NotDerived(f"{node.op} of non-ASCII letters")
        return self._add(node.op.removeprefix("String").lower(), [operand(node.inputs[0])])

    def bucketized(self, node: ForeignNode, operand: Callable[[Ref], str]) -> str:
        if self._runner.tensor(self._up_ref(node.inputs[0])).dtype not in (tf.float32, tf.float64):
            raise NotDerived("Bucketize of integers")
        boundaries = [float(b) for b in _attr(node, "boundaries", [])]
        return self._add("bucketize", [operand(node.inputs[0])], floats=boundaries)

    def cast(self, node: ForeignNode, operand: Callable[[Ref], str]) -> str:
        source, target = (tf.as_dtype(_attr(node, key, 0)) for key in ("SrcT", "DstT"))
        name = operand(node.inputs[0])
        if source.is_floating and target.is_floating and source.size >= target.size >= 4:
            return name
        if target == tf.int64 and source in (tf.bool, tf.int32, tf.int64):
            return name
        if target == tf.int32 and source in (tf.bool, tf.int32, tf.int64):
            return self._add("int32", [name]) if source == tf.int64 else name
        if source in WHOLE and target == tf.float32:
            return self._add("float32", [name])
        if source == tf.float32 and target in WHOLE:
            return self._add("whole", [name], integers=[8 * target.size])
        raise NotDerived(f"Cast of {source.name} to {target.name}")

    def computed(self, node: ForeignNode, operand: Callable[[Ref], str]) -> str:
        """Derive integer arithmetic, with constants or between two columns, and string concatenation."""
        op, sign = ARITHMETIC[node.op]
        if self._runner.tensor((node.name, 0)).dtype == tf.string:
            return self.joined(node, operand)
        if self._runner.tensor((node.name, 0)).dtype not in WHOLE:
            raise NotDerived(f"{node.op} of numbers that are not integers")
        a, b = node.inputs
        if self._known(a) and op in ("add", "multiply") and sign > 0:
            a, b = b, a
        if self._known(b):
            constant = b[0] in self._shapes.constant
            numbers = self._runner.constant(b) if constant else np.array(self._same_value(node, b))
            numbers = (sign * numbers.astype(np.int64)).reshape(-1)
            size = self._shapes.size(a) if self._shapes.rows(a) is not None and operand == self._dense else 1
            numbers = numbers if len(numbers) in (1, size) else np.resize(numbers, size)
            name = self._add(op, [operand(a)], integers=numbers.tolist())
        elif sign > 0 and not self._known(a):
            name = self._add(op, [operand(a), operand(b)])
        else:
            raise NotDerived(f"{node.op} of a constant and a column")
        return name if self._runner.tensor((node.name, 0)).dtype == tf.int64 else self._add("int32", [name])


ARITHMETIC = {
    "Add": ("add", 1),
    "AddV2": ("add", 1),
    "Sub": ("add", -1),
    "Mul": ("multiply", 1),
    "FloorMod": ("floor_modulo", 1),
    "FloorDiv": ("floor_divide", 1),
}
VALUES: dict[str, Callable[[TransformDeriver, ForeignNode, Callable[[Ref], str]], str]] = {
    **dict.fromkeys(
        ("StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket"), TransformDeriver.hashed
    ),
    "AsString": TransformDeriver.written,
    "StringJoin": TransformDeriver.joined,
    **dict.fromkeys(("StringLower", "StringUpper", "StringStrip"), TransformDeriver.changed),
    "Bucketize": TransformDeriver.bucketized,
    "Cast": TransformDeriver.cast,
    **dict.fromkeys(("Select", "SelectV2"), TransformDeriver.masked),
    **dict.fromkeys(ARITHMETIC, TransformDeriver.computed),
}


def _attr(node: ForeignNode, name: str, default: Any) -> Any:
    """Return an attribute, or its default if the exporter left it out: reading it from a NodeDef would add it."""
    if name not in node.definition.attr:
        return default
    value = node.definition.attr[name]
    kind = value.WhichOneof("value")
    if kind == "list":
        return next((list(items) for _, items in value.list.ListFields()), [])
    return getattr(value, kind)


def _op(node: ForeignNode) -> str:
    return node.op.lstrip("@")


def _text(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise NotDerived("a constant string that is not UTF-8") from None


def _is_column(got: Column, value: Any) -> bool:
    return not isinstance(got, Ragged) and _listed(got) == _listed(value)


def _listed(values: Any) -> list[Any]:
    items: list[Any] = values.tolist() if isinstance(values, Strings) else np.ravel(values).tolist()
    return items


def _integer(value: Any) -> int:
    """Return a constant as transforms have it: an integer, neither a fraction, infinite nor a string."""
    if isinstance(value, bytes) or not float(value).is_integer():
        raise NotDerived(f"{value!r} is not an integer")
    return int(value)
