"""What XLA compiles of a network in training: functions of tensors alone, state (models.dense.dense_state) in and
state out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.dense.dense_optimizer import moved
from freshet_serving.models.dense.losses import RowLoss
from freshet_serving.models.zoo.arch import Arch

TRIED_ROWS = 4

Tensors = list[Any]


class DenseFunctions:
    """Of one network with its loss. trained: the variables that move; other: those that do not. rest: the graph's
    weights that are not trained, by name."""

    def __init__(self, arch: Arch, graph: DenseGraph, labels: int, row_loss: RowLoss, settings: TrainSettings) -> None:
        self._arch, self._graph, self._labels = arch, graph, labels
        self._row_loss, self._settings = row_loss, settings
        self.trained, self.other = arch.logits.trainable_variables, arch.logits.non_trainable_variables
        self._sizes = [int(np.prod(v.shape)) for v in self.trained]
        paths = {v.path for v in self.trained}
        self.rest = [name for name in graph.weight_names if name not in paths]

    def rows_are_alone(self) -> bool:
        """Whether the loss of a row follows from that row: the network keeps no statistics, and a few rows have the
        same losses with and without the others."""
        if any("float" in v.dtype for v in self.other):
            return False
        random = np.random.default_rng(0)
        x = random.standard_normal((TRIED_ROWS, self._graph.width)).astype(np.float32)
        label = np.resize(np.array([0, 1, 1], np.float32), self.label_shape(TRIED_ROWS))
        weights, other = [v.value for v in self.trained], [v.value for v in self.other]
        half = TRIED_ROWS // 2
        whole = self._losses(x, label, weights, other, False)[0]
        halves = [self._losses(x[p], label[p], weights, other, False)[0] for p in (slice(half), slice(half, None))]
        return bool(np.allclose(whole, np.concatenate(halves), rtol=1e-3, atol=1e-5))

    def label_shape(self, rows: int) -> tuple[int, ...]:
        return (rows,) if self._labels == 1 else (rows, self._labels)

    def gradients(self, x: Any, label: Any, share: Any, number: Any, vectors: Any, *other: Any) -> Tensors:
        """Of a part of a batch: sum(share * loss) of its rows, its gradients by x and by the weights [n], and what
        becomes of the other state. number: of the part, [1], so that no two draw the same random numbers."""
        own = [s + tf.cast(number[0], s.dtype) if "seed" in v.path else s for v, s in zip(self.other, other)]
        weights = self._unpacked(vectors)
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            losses, after = self._losses(x, label, weights, own, True)
            loss = tf.reduce_sum(losses * share)
        by_x, *grads = tape.gradient(loss, [x, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [loss, by_x, tf.concat([tf.reshape(grad, (-1,)) for grad in grads], 0), *after]

    def moves(self, rates: Any, vectors: Any, *gradients: Any) -> Tensors:
        """The vectors after a step by the gradients [n] of all parts."""
        total = gradients[0]
        for gradient in gradients[1:]:
            total = total + gradient
        sizes = [(v.name, size) for v, size in zip(self.trained, self._sizes)]
        return [moved(self._settings, sizes, vectors, total, rates[0], rates[1])]

    def scores(self, x: Any, vectors: Any, *rest: Any) -> Tensors:
        """The labels' probabilities, as the dense graph gives them."""
        weights = dict(zip((v.path for v in self.trained), self._unpacked(vectors))) | dict(zip(self.rest, rest))
        outputs = self._graph.function(x, {name: weights[name] for name in self._graph.weight_names})
        return [outputs[name] for name in self._arch.outputs]

    def _unpacked(self, vectors: Any) -> Tensors:
        pieces = tf.split(vectors[0], self._sizes)
        return [tf.reshape(piece, variable.shape) for piece, variable in zip(pieces, self.trained)]

    def _losses(
        self, x: Any, label: Any, weights: Tensors, other: Tensors, training: bool
    ) -> tuple[Any, Sequence[Any]]:
        logits, after = self._arch.logits.stateless_call(weights, other, x, training=training)
        return self._row_loss(label, tf.reshape(logits, (-1,)) if self._labels == 1 else logits), after
