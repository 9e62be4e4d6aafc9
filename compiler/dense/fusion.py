"""Multi-target fusion: outputs that are expressions over a model's heads and float features.

    score = ctr * cvr ** 0.5 * price

An expression becomes part of the dense graph, and its constants become weights fusion/<output>, float32 [constants], so
all rules for weights apply to it: a delta with that one tensor changes exponents and factors at the next flip, together
with everything else in the delta, on every backend, and rollback undoes it; nothing is compiled or parsed while a
request is served. changes() makes the tensor from the new text.

A delta cannot change the structure: the names that are read and how they are combined. A number that may be tuned later
has to be present, if only as `ctr ** 1.0`. Rejected: an interpreter in the session for expressions in deltas. It would
add a second way to compute, under the GIL in every batch, a second thing to version, roll back and compact next to the
dense weights, and text from deltas on the serving side; a new structure is a new version, which takes seconds to
compile and costs requests nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.dense.expression import Constant, Expression, Name, ParsedExpression, parse
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import NAME, Feature, Output

PREFIX = "fusion/"
MAX_OUTPUTS = 64

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: tf.pow(a, b),
    "neg": lambda a: -a,
    "abs": lambda a: tf.abs(a),
    "exp": lambda a: tf.exp(a),
    "log": lambda a: tf.math.log(a),
    "sqrt": lambda a: tf.sqrt(a),
    "sigmoid": lambda a: tf.sigmoid(a),
    "min": lambda a, b: tf.minimum(a, b),
    "max": lambda a, b: tf.maximum(a, b),
}


def fuse(dense: DenseGraph, expressions: Mapping[str, str], features: Sequence[Feature] = ()) -> DenseGraph:
    """Return the graph with one more output [n, 1] for each expression, by output; its heads stay outputs.

    Names refer to heads (outputs of one column), float features as the request has them (before log1p and scaling; a
    missing value counts as its mean), and earlier expressions. Raise BadInput for an invalid expression.
    """
    if len(expressions) > MAX_OUTPUTS:
        raise BadInput(f"fusion: expected at most {MAX_OUTPUTS} outputs, got {len(expressions)}")
    heads = [o.name for o in dense.outputs if o.columns == 1]
    floats = {f.name: f for f in features if f.kind == "float" and f.scale}
    terms = {*heads, *floats}
    parsed: dict[str, ParsedExpression] = {}
    for output, text in expressions.items():
        where = f"fusion.{output[:64]}"
        if NAME.fullmatch(output) is None or output in ("x", *(o.name for o in dense.outputs)):
            raise BadInput(f"{where}: expected a plain name that is no output yet")
        parsed[output] = parse(text, where)
        for name in parsed[output].names:
            if name not in terms:
                raise BadInput(f"{where}: expected one of {', '.join(sorted(terms)) or 'no names'}, got {name[:64]!r}")
        terms.add(output)
    weights = {**dense.weights, **{PREFIX + o: _values(p) for o, p in parsed.items() if p.constants}}

    def fused(inputs: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        x = inputs[MATRIX]
        results = dict(dense.function(inputs, {name: values[name] for name in dense.weights}))
        named = {name: results[name] for name in heads}
        for name, feature in floats.items():
            if name not in named:
                named[name] = _as_sent(x, feature)
        for output, expression in parsed.items():
            results[output] = named[output] = _column(_compute(expression.tree, named, values.get(PREFIX + output)), x)
        return results

    function = tf.function(fused, input_signature=signature(dense.inputs, weights), autograph=False)
    function.get_concrete_function()
    outputs = [*dense.outputs, *(Output(name, 1) for name in parsed)]
    return DenseGraph(function, dense.inputs, sorted(outputs, key=lambda o: o.name), weights)


def changes(output: str, published: str, new: str) -> dict[str, NDArray[np.float32]]:
    """Return the dense tensor of a delta that changes an output's published expression into another.

    Raise BadInput if the structures differ, or there is no number to change.
    """
    where = f"fusion.{output[:64]}"
    before, after = parse(published, where), parse(new, where)
    if before.tree != after.tree:
        raise BadInput(f"{where}: expected an expression that differs in its numbers alone; publish a new version")
    if not after.constants:
        raise BadInput(f"{where}: expected an expression with a number in it")
    return {PREFIX + output: _values(after)}


def _values(parsed: ParsedExpression) -> NDArray[np.float32]:
    return np.array(parsed.constants, np.float32)


def _as_sent(x: Any, feature: Feature) -> Any:
    value = x[:, feature.offset : feature.offset + 1] / np.float32(feature.scale) + np.float32(feature.mean)
    return tf.sign(value) * (tf.exp(tf.abs(value)) - 1.0) if feature.log1p else value


def _compute(tree: Expression, named: Mapping[str, Any], constants: Any) -> Any:
    if isinstance(tree, Name):
        return named[tree.name]
    if isinstance(tree, Constant):
        return constants[tree.place]
    return _OPERATIONS[tree.what](*(_compute(operand, named, constants) for operand in tree.operands))


def _column(value: Any, x: Any) -> Any:
    return value if value.shape.rank == 2 else tf.fill((tf.shape(x)[0], 1), value)
