"""Functions that XLA compiles to train a network: pure, with the state (dense_state) as argument and result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.dense_optimizer import moved
from freshet_serving.models.training.history_division import call_part, divide
from freshet_serving.models.training.losses import RowLoss
from freshet_serving.models.zoo.arch import Arch
from freshet_serving.processor.package import MATRIX

TRIED_ROWS = 4

Tensors = list[Any]


class DenseFunctions:
    """The functions of one network with its loss; variables `other` and weights named `rest` are not trained."""

    def __init__(
        self,
        arch: Arch,
        graph: DenseGraph,
        labels: int,
        row_loss: RowLoss,
        settings: TrainSettings,
        rows_of: Sequence[str] = (MATRIX,),
        counts: Sequence[int] = (),
    ) -> None:
        """Create the functions; `rows_of` are inputs with rows of tables, `counts` the offsets in x of counted rows."""
        self._rows_of = [list(graph.inputs).index(name) for name in rows_of]
        self._arch, self._graph, self._labels = arch, graph, labels
        width = arch.logits.inputs[0].shape[1]
        # 1 where x has the number of rows, and where it has that of positive labels.
        self._counts = np.zeros((2, width), np.float32)
        for offset in counts:
            self._counts[[0, 1], [offset, offset + 1]] = 1
        self._row_loss, self._settings = row_loss, settings
        self.trained, self.other = arch.logits.trainable_variables, arch.logits.non_trainable_variables
        self._sizes = [int(np.prod(v.shape)) for v in self.trained]
        self._histories = [i for i in self._rows_of if list(graph.inputs)[i] != MATRIX]
        self.division = divide(arch.logits, self._histories) if self._histories else None
        paths = {v.path for v in self.trained}
        self.rest = [name for name in graph.weight_names if name not in paths]

    def rows_are_alone(self) -> bool:
        """Return whether each row's loss depends on that row only: no statistics, equal losses without other rows."""
        if any("float" in v.dtype for v in self.other):
            return False
        random = np.random.default_rng(0)
        shapes = self._graph.spec.input_shapes(TRIED_ROWS)
        inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
        label = np.resize(np.array([0, 1, 1], np.float32), self.label_shape(TRIED_ROWS))
        weights, other = [v.value for v in self.trained], [v.value for v in self.other]
        half = TRIED_ROWS // 2
        parts = slice(None), slice(half), slice(half, None)
        logits = [self._logits([i[p] for i in inputs], weights, other, False)[0] for p in parts]
        whole, *halves = (self._row_losses(label[p], part) for p, part in zip(parts, logits))
        return bool(np.allclose(whole, np.concatenate(halves), rtol=1e-3, atol=1e-5))

    def steps_score(self) -> bool:
        """Return whether a step has the scores of scores(): it draws and keeps nothing, and outputs probabilities."""
        if self.other or self.rest:
            return False
        random = np.random.default_rng(1)
        shapes = self._graph.spec.input_shapes(TRIED_ROWS)
        inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
        weights = [v.value for v in self.trained]
        logits, _ = self._logits(inputs, weights, [], True)
        outputs = self._graph.function(dict(zip(self._graph.inputs, inputs)), {v.path: v.value for v in self.trained})
        scores = np.concatenate([np.asarray(outputs[name]) for name in self._arch.outputs], axis=1)
        return bool(np.allclose(tf.sigmoid(logits), scores, rtol=1e-4, atol=1e-6))

    def label_shape(self, rows: int) -> tuple[int, ...]:
        return (rows,) if self._labels == 1 else (rows, self._labels)

    def gradients(self, *given: Any) -> Tensors:
        """Compute the gradients of a part of a batch.

        Args:
            *given: The graph's inputs, x first; then
                label: float32, the labels;
                share: float32 [rows], weights of the rows;
                number: float32 [1], number of the part, so that no two parts draw the same random numbers;
                vectors: float32 [3, n], weights and moments;
                and the other state.

        Returns:
            sum(share * loss), its gradients by x and by each sequence, its gradient by the weights [n], the
                probabilities of the labels [rows, labels], and the new values of the other state.
        """
        inputs, (label, share, number, vectors, *other) = self._divided(given)
        return self._gradients(inputs, label, share, vectors, self._drawn(number, other), None)

    def shared_gradients(self, *given: Any) -> Tensors:
        """Compute what gradients() does, with the first part of the division for each distinct history.

        Args:
            *given: As for gradients(), with one row for each distinct history, and after number
                own: float32 [rows], the number of each row's histories.
        """
        inputs, (label, share, number, own, vectors, *other) = self._divided(given)
        return self._gradients(inputs, label, share, vectors, self._drawn(number, other), own)

    def _drawn(self, number: Any, other: Tensors) -> Tensors:
        return [s + tf.cast(number[0], s.dtype) if "seed" in v.path else s for v, s in zip(self.other, other)]

    def _gradients(self, inputs: Tensors, label: Any, share: Any, vectors: Any, state: Tensors, own: Any) -> Tensors:
        weights = self._unpacked(vectors)
        with tf.GradientTape() as tape:
            learned = [inputs[i] for i in self._rows_of]
            tape.watch([*learned, *weights])
            if own is None:
                logits, after = self._logits(inputs, weights, state, True)
            else:
                assert self.division is not None
                logits, after = self.division.call(weights, state, inputs, tf.cast(own, tf.int32), True)
            loss = tf.reduce_sum(self._row_losses(label, logits) * share)
        grads = tape.gradient(loss, [*learned, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        by_inputs, grads = grads[: len(learned)], grads[len(learned) :]
        if self._counts.any():
            by_inputs[0] = self._counted(by_inputs[0], label, share)
        by_weights = tf.concat([tf.reshape(grad, (-1,)) for grad in grads], 0)
        return [loss, *by_inputs, by_weights, tf.sigmoid(tf.reshape(logits, (-1, self._labels))), *after]

    def _counted(self, by_x: Any, label: Any, share: Any) -> Any:
        """Return the gradient by x, in which counts fall by what each row adds to them: 1, and its label."""
        adds = tf.stack([tf.ones_like(share), label], 1) * tf.cast(share > 0, tf.float32)[:, None]
        return by_x * (1 - self._counts.sum(0)) - tf.matmul(adds, self._counts)

    def moves(self, rates: Any, vectors: Any, *gradients: Any) -> Tensors:
        """Return the vectors [3, n] after a step; `rates` are the learning rate, without and with correction()."""
        total = gradients[0]
        for gradient in gradients[1:]:
            total = total + gradient
        sizes = [(v.name, size) for v, size in zip(self.trained, self._sizes)]
        return [moved(self._settings, sizes, vectors, total, rates[0], rates[1])]

    def scores(self, *given: Any) -> Tensors:
        """Return the labels' probabilities of the graph's inputs, by the vectors and weights that are not trained."""
        inputs, (vectors, *rest) = self._divided(given)
        weights = dict(zip((v.path for v in self.trained), self._unpacked(vectors))) | dict(zip(self.rest, rest))
        outputs = self._graph.function(
            dict(zip(self._graph.inputs, inputs)), {name: weights[name] for name in self._graph.weight_names}
        )
        return [outputs[name] for name in self._arch.outputs]

    def _divided(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        count = len(self._graph.inputs)
        return list(arguments[:count]), list(arguments[count:])

    def _unpacked(self, vectors: Any) -> Tensors:
        pieces = tf.split(vectors[0], self._sizes)
        return [tf.reshape(piece, variable.shape) for piece, variable in zip(pieces, self.trained)]

    def _call(self, part: Any, inputs: Any, weights: Tensors, other: Tensors, training: bool) -> tuple[Any, Tensors]:
        """Call a model of some of the variables; return its outputs, and the whole other state after it."""
        state = dict(zip((v.path for v in self.other), other))
        outputs = call_part(part, inputs, dict(zip((v.path for v in self.trained), weights)), state, training)
        return outputs, list(state.values())

    def _unused_state(self) -> Tensors:
        # Dropout's.
        return [tf.zeros(v.shape, v.dtype) for v in self.other]

    def _logits(
        self, inputs: Sequence[Any], weights: Tensors, other: Tensors, training: bool
    ) -> tuple[Any, Sequence[Any]]:
        tensors = inputs[0] if len(inputs) == 1 else list(inputs)
        logits, after = self._arch.logits.stateless_call(weights, other, tensors, training=training)
        return logits, after

    def _row_losses(self, label: Any, logits: Any) -> Any:
        return self._row_loss(label, tf.reshape(logits, (-1,)) if self._labels == 1 else logits)
