"""The dense network in training: forward, backward and its own optimizer in one compiled TensorFlow function.

It owns the network's weights and the optimizer's state; the rows that its input was pooled from are the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.dense.dense_graph import DenseGraph
from compiler.dense.fusion import fuse
from compiler.frameworks import tf
from models.config.train_section import TrainSettings
from models.training.dense_optimizer import dense_optimizer
from models.zoo.arch import Arch, resolve_arch
from models.zoo.dense_input import DenseInput
from processor.package.manifest import Manifest

Weights = Mapping[str, NDArray[np.float32]]


class DenseStep:
    """One optimizer step of the network, called with a batch. arch: the network. graph: the dense graph that it is
    scored and published as. optimizer: Keras' own."""

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        hidden: tuple[int, ...] = (),
        fusion: Mapping[str, str] | None = None,
    ) -> None:
        """See Trainer."""
        self._features, self._settings, self._fusion = manifest.features, settings, fusion or {}
        options: dict[str, Any] = {"seed": settings.seed}
        if hidden:
            options["hidden"] = hidden
        self.arch = Arch.of(resolve_arch(manifest.arch)(DenseInput.from_features(manifest.features), **options))
        self.graph = self.dense_graph()
        self.optimizer = dense_optimizer(settings)
        self.optimizer.build(self.arch.logits.trainable_variables)
        self._rate = settings.dense_learning_rate
        self._step = self._compiled(manifest.width)

    def __call__(self, x: NDArray[np.float32], label: NDArray[np.float32]) -> tuple[float, NDArray[np.float32]]:
        """One step on x [n, width] and label [n]: the mean log-loss before it, and its gradient by x."""
        loss, grad = self._step(tf.constant(x), tf.constant(label))
        return float(loss), grad.numpy()

    def scale_rate(self, factor: float) -> None:
        """The learning rate from now on, as a share of the configuration's."""
        rate = self._settings.dense_learning_rate * factor
        if rate != self._rate:
            self._rate = self.optimizer.learning_rate = rate

    def dense_graph(self) -> DenseGraph:
        """The dense graph that is published of the network, with its weights as they are."""
        graph = DenseGraph.from_keras(self.arch.scores)
        return fuse(graph, self._fusion, self._features) if self._fusion else graph

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The dense tensors by name, as copies."""
        variables = self.arch.scores.variables
        trained = {v.path: np.array(v.numpy(), np.float32) for v in variables if v.path in self.graph.weights}
        return {name: trained.get(name, value.copy()) for name, value in self.graph.weights.items()}

    def optimizer_state(self) -> dict[str, NDArray[Any]]:
        """The optimizer's variables by name, as copies."""
        return {f"{i:04d}": np.array(v.numpy()) for i, v in enumerate(self.optimizer.variables)}

    def restore(self, weights: Weights, optimizer: Mapping[str, NDArray[Any]]) -> None:
        """Puts back what weights() and optimizer_state() gave."""
        for variable in self.arch.scores.variables:
            if variable.path in weights:
                variable.assign(weights[variable.path])
        for i, variable in enumerate(self.optimizer.variables):
            variable.assign(optimizer[f"{i:04d}"].astype(variable.dtype))
        # The rate is one of the optimizer's variables, but it is the configuration's to say.
        self._rate = self.optimizer.learning_rate = self._settings.dense_learning_rate

    def assign(self, weights: Weights) -> None:
        """Takes dense tensors that somebody else made, by name; the optimizer's own state stays."""
        self.restore(weights, self.optimizer_state())

    def begin_with(self, weights: Weights) -> None:
        """Takes dense tensors by name, with an optimizer that begins anew."""
        self.restore(weights, {n: np.zeros_like(a) for n, a in self.optimizer_state().items()})

    def _compiled(self, width: int) -> Any:
        model, optimizer = self.arch.logits, self.optimizer
        specs = [tf.TensorSpec((None, width), tf.float32), tf.TensorSpec((None,), tf.float32)]

        def step(x: Any, label: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                logits = tf.reshape(model(x, training=True), (-1,))
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, logits))
            grads = tape.gradient(loss, [x, *model.trainable_variables])
            optimizer.apply(grads[1:], model.trainable_variables)
            return loss, grads[0]

        return tf.function(step, input_signature=specs, autograph=False)
