"""Read running counts as log-odds: what counting knows of an id, beside what a network learns of it.

A feature with `counts = true` reads a table of dim 2. A row is (n, k): the training rows that had the id so far, and
those of them with a positive label; a list of ids adds its rows up. The network reads two numbers in their place:

    log((k + a p) / (n - k + a (1 - p))) - log(p / (1 - p))   what the counts say, drawn to p as by `a` rows more
    log(1 + n)                                                how much they know

a and p are weights of each feature, so that the data say how far few rows are to be trusted. Both numbers are 0 for an
id that was never seen. Trees with such columns lead on small tables (Prokhorenkova et al., 2018: ordered target
statistics); a row counts after it was learned from, so it never sees its own label. Embeddings beside them have gates
(models.zoo.field_gates).

Of a cross with `equal`, whose few ids all rows have, the network reads the first number alone, times a gate that begins
as 0: how much is known of such an id only tells the time. A log in which users come back to items opens the gate by its
gradient; another has little to lose (with an open gate and both numbers AUC fell by 0.004 on 20,000 rows of one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import ColumnSpan, DenseInput
from freshet_serving.models.zoo.field_gates import gated

PRIOR_ROWS, PRIOR = 6.0, 0.3
"""First values of a and p."""
FASTER = 10.0
"""Adam moves each weight by its rate, which is too little for a and p: they move by as many times that."""
GATES_FASTER = 3.0
"""Likewise for gates."""
LOGS_SCALE = 0.3
"""Factor of log(1 + n), which is large beside the other inputs."""


def with_counted_odds(
    layout: DenseInput, counts: Collection[str], build: Callable[[DenseInput], Arch], equals: Collection[str] = ()
) -> Arch:
    """Build a network over the other features and the numbers that stand for the counts.

    Args:
        layout: The dense input; the features of counts are its last columns.
        build: Builds the network.
        equals: Those of `counts` that say how many events equal the candidate.
    """
    if not counts:
        return build(layout)
    from freshet_serving.compiler.frameworks import keras

    ops = keras.ops
    others = tuple(span for span in layout.embeddings if span.name not in counts)
    counted = [span for span in layout.embeddings if span.name in counts]
    width = layout.width - 2 * len(counted)
    gates = [n for n, span in enumerate(counted) if span.name in equals]
    known_of = [n for n in range(len(counted)) if n not in gates]
    spans = [ColumnSpan(f"{span.name}.odds", 0, 1, 0, span.side) for span in counted]
    spans += [ColumnSpan(f"{counted[n].name}.rows", 0, 1, 0, counted[n].side) for n in known_of]
    plain = replace(layout, width=width, embeddings=others)
    floats = tuple(replace(span, offset=width + i) for i, span in enumerate(spans))
    own = build(replace(plain, width=width + len(floats), floats=(*layout.floats, *floats)))
    x = keras.Input((layout.width,), name="x")
    histories = [keras.Input(tuple(i.shape[1:]), name=i.name) for i in own.logits.inputs[1:]]
    pairs = ops.reshape(x[:, width:], (-1, len(counted), 2))
    seen = ops.relu(pairs[:, :, 0])
    positive = ops.minimum(ops.relu(pairs[:, :, 1]), seen)

    class FeatureWeights(keras.layers.Layer):  # type: ignore[misc]
        """A weight of each feature, [1, features]: what is made of them alone is not computed row by row."""

        def __init__(self, name: str, features: int, first: float) -> None:
            super().__init__(name=name)
            self._features, self._first = features, first

        def build(self, input_shape: Any) -> None:
            initial = keras.initializers.Constant(self._first)
            self.kernel = self.add_weight(shape=(1, self._features), initializer=initial, name="kernel")

        def call(self, x: Any) -> Any:
            return ops.reshape(self.kernel, (1, self._features))

    first_rows, first_odds = math.log(math.expm1(PRIOR_ROWS)) / FASTER, math.log(PRIOR / (1 - PRIOR)) / FASTER
    rows, odds = (
        FASTER * FeatureWeights(name, len(counted), first)(x)
        for name, first in (("prior_rows", first_rows), ("prior_odds", first_odds))
    )
    prior_rows, prior = ops.softplus(rows), ops.sigmoid(odds)
    against = seen - positive + prior_rows * (1 - prior)
    said = ops.log((positive + prior_rows * prior + 1e-6) / (against + 1e-6)) - odds
    if gates:
        opened = GATES_FASTER * FeatureWeights("equal_gates", len(gates), 0.0)(x)
        columns = [gates.index(n) + 1 if n in gates else 0 for n in range(len(counted))]
        said = said * ops.take(ops.concatenate([ops.ones_like(opened[:, :1]), opened], 1), columns, axis=1)
    read = [gated(x[:, :width], plain), said]
    if known_of:
        read.append(LOGS_SCALE * ops.log(1 + _columns(seen, known_of)))
    read = ops.concatenate(read, 1)
    logits = own.logits([read, *histories] if histories else read)
    inputs = [x, *histories] if histories else x
    return Arch.of(keras.Model(inputs, logits, name=f"{own.logits.name}_counts"))


def _columns(x: Any, numbers: Sequence[int]) -> Any:
    """Return some columns, in ascending order: slices, which backends copy faster than they gather."""
    from freshet_serving.compiler.frameworks import keras

    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][1] == n:
            runs[-1][1] = n + 1
        else:
            runs.append([n, n + 1])
    parts = [x[:, start:stop] for start, stop in runs]
    return parts[0] if len(parts) == 1 else keras.ops.concatenate(parts, 1)
