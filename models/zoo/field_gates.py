"""Multiply each embedding by a gate of its feature, a learned number that begins as 1: a network of counts reads them.

What counts say of an id needs no embedding, and where embeddings learn nothing more, their products are noise: a
factorisation machine adds them to the logit with no weight that could tell. A training row is new when it is learned
from, so the gradient of a gate says what its embeddings are worth on unseen rows. So embeddings learn at the rates of a
file without counts, and cost little where they know nothing.

Rejected: gates that learn faster, which close before embeddings have learned anything (AUC -0.009 where tastes are
long), and one for each number of an embedding, which do not close (-0.005 where embeddings are noise).
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from freshet_serving.models.zoo.dense_input import DenseInput

Tensor = Any  # keras.KerasTensor
FASTER = 3.0
"""Adam moves each weight by its rate, too little for a gate: they move by as many times that."""


def gated(x: Tensor, layout: DenseInput) -> Tensor:
    """Multiply the embeddings of the dense input by their gates; those of several rows with their mask have none."""
    from freshet_serving.compiler.frameworks import keras

    ops = keras.ops
    numbers = {span.name: n for n, span in enumerate(span for span in layout.embeddings if not span.length)}
    if not numbers:
        return x
    # A part for each run of one side, so that the user's columns can still be computed once for all candidates.
    parts = [list(spans) for _, spans in groupby(layout.spans, lambda span: (span.side, span.name in numbers))]

    class FieldGates(keras.layers.Layer):  # type: ignore[misc]
        def build(self, input_shape: Any) -> None:
            initial = keras.initializers.Constant(1 / FASTER)
            self.gates = self.add_weight(shape=(len(numbers),), initializer=initial, name="gates")

        def call(self, x: Tensor) -> Tensor:
            gates, read = FASTER * self.gates, []
            for spans in parts:
                part = x[:, spans[0].offset : spans[-1].offset + spans[-1].width]
                if spans[0].name in numbers:
                    columns = [numbers[span.name] for span in spans for _ in range(span.width)]
                    part = part * ops.expand_dims(ops.take(gates, columns), 0)
                read.append(part)
            return read[0] if len(read) == 1 else ops.concatenate(read, axis=1)

    return FieldGates(name="field_gates")(x)
