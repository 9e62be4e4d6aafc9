"""The dense network in training: forward, backward and its own optimizer in one compiled TensorFlow function.

It owns the network's weights and the optimizer's state; the rows that its input was pooled from are the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.dense.dense_graph import DenseGraph
from compiler.dense.fusion import fuse
from compiler.frameworks import tf
from models.config.arch_options import read_options
from models.config.model_section import ONE_LABEL, NetworkConfig
from models.config.train_section import TrainSettings
from models.training.dense_optimizer import dense_optimizer
from models.training.losses import row_loss, weighted_mean
from models.zoo.arch import build_arch, resolve_arch
from models.zoo.dense_input import DenseInput
from processor.errors import BadInput
from processor.package.manifest import Manifest

Weights = Mapping[str, NDArray[np.float32]]


class DenseStep:
    """One optimizer step of the network, called with a batch. arch: the network. graph: the dense graph that it is
    scored and published as. optimizer: Keras' own."""

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig = ONE_LABEL,
        fusion: Mapping[str, str] | None = None,
    ) -> None:
        """See Trainer."""
        self._features, self._settings, self._fusion = manifest.features, settings, fusion or {}
        options = read_options(resolve_arch(manifest.arch), network.options, "model")
        layout = DenseInput.from_features(manifest.features)
        self.arch = build_arch(manifest.arch, layout, options, network.labels, settings.seed)
        self._labels, self._row_loss = network.labels, row_loss(network)
        self.graph = self.dense_graph()
        single = {output.name for output in self.graph.outputs if output.columns == 1}
        if absent := [name for name in self.arch.outputs if name not in single]:
            raise BadInput(f"arch: an output {absent[0][:64]!r} [n, 1] wanted, got {', '.join(sorted(single))[:200]}")
        self.optimizer = dense_optimizer(settings)
        self.optimizer.build(self.arch.logits.trainable_variables)
        self._rate = settings.dense_learning_rate
        self._step = self._compiled(manifest.width)

    def __call__(
        self, x: NDArray[np.float32], label: NDArray[np.float32], weight: NDArray[np.float32] | None = None
    ) -> tuple[float, NDArray[np.float32]]:
        """One step on x [n, width], label [n] or [n, labels] and weight [n]: the mean loss of the rows by their weights
        before it, and its gradient by x."""
        weights = np.ones(len(x), np.float32) if weight is None else weight
        loss, grad = self._step(tf.constant(x), tf.constant(label), tf.constant(weights))
        return float(loss), grad.numpy()

    def scale_rate(self, factor: float) -> None:
        """The learning rate from now on, as a share of the configuration's."""
        rate = self._settings.dense_learning_rate * factor
        if rate != self._rate:
            self._rate = self.optimizer.learning_rate = rate

    def described(self, manifest: Manifest) -> Manifest:
        """The manifest with the network's outputs, and a note of which is the probability of which label."""
        told = {"labels": dict(zip(self._labels, self.arch.outputs))}
        return replace(manifest, outputs=self.graph.outputs, notes=manifest.notes | told)

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
        """The optimizer's variables by name, and where dropout stands in its random numbers, as copies."""
        state = {f"{i:04d}": np.array(v.numpy()) for i, v in enumerate(self.optimizer.variables)}
        return state | {name: np.array(v.numpy()) for name, v in self._dropouts().items()}

    def restore(self, weights: Weights, optimizer: Mapping[str, NDArray[Any]]) -> None:
        """Puts back what weights() and optimizer_state() gave."""
        for variable in self.arch.scores.variables:
            if variable.path in weights:
                variable.assign(weights[variable.path])
        for name, variable in self._dropouts().items():
            if name in optimizer:
                variable.assign(optimizer[name])
        for i, variable in enumerate(self.optimizer.variables):
            variable.assign(optimizer[f"{i:04d}"].astype(variable.dtype))
        # The rate is one of the optimizer's variables, but it is the configuration's to say.
        self._rate = self.optimizer.learning_rate = self._settings.dense_learning_rate

    def assign(self, weights: Weights) -> None:
        """Takes dense tensors that somebody else made, by name; the optimizer's own state stays."""
        self.restore(weights, self.optimizer_state())

    def begin_with(self, weights: Weights) -> None:
        """Takes dense tensors by name, with an optimizer that begins anew."""
        self.restore(weights, {f"{i:04d}": np.zeros(v.shape) for i, v in enumerate(self.optimizer.variables)})

    def _dropouts(self) -> dict[str, Any]:
        """Where each layer of dropout stands in its random numbers: whole numbers, whose paths differ by process."""
        states = [v for v in self.arch.logits.non_trainable_variables if "float" not in v.dtype]
        return {f"dropout_{i:04d}": v for i, v in enumerate(states)}

    def _compiled(self, width: int) -> Any:
        model, optimizer, labels = self.arch.logits, self.optimizer, len(self.arch.outputs)
        shape = (None,) if labels == 1 else (None, labels)
        specs = [tf.TensorSpec(s, tf.float32) for s in ((None, width), shape, (None,))]

        def step(x: Any, label: Any, weight: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                logits = model(x, training=True)
                losses = self._row_loss(label, tf.reshape(logits, (-1,)) if labels == 1 else logits)
                loss = weighted_mean(losses, weight)
            grads = tape.gradient(loss, [x, *model.trainable_variables])
            optimizer.apply(grads[1:], model.trainable_variables)
            return loss, grads[0]

        return tf.function(step, input_signature=specs, autograph=False)


def label_scores(outputs: Mapping[str, NDArray[np.float32]], names: Sequence[str]) -> NDArray[np.float32]:
    """The outputs that are probabilities of labels, in the shape of Batch.label: [n], or [n, labels]."""
    columns = np.concatenate([outputs[name] for name in names], axis=1)
    return columns.reshape(-1) if len(names) == 1 else columns
