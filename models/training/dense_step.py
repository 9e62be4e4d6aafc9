"""The dense network in training: forward, backward and one step of its optimizer as one XLA executable on all cores.

Weights, the network's other state and the optimizer's moments live where the executable reads them and go from call to
call; Keras' variables only give them their first values. Executables are of static rows: a batch takes the smallest of
a few sizes that it fits in, filled up with copies of its first row that weigh nothing, so that they change no gradient.
Networks that keep statistics of a batch would see them, and are compiled for each size that comes.

Bits: a step is a function of state, batch and the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.backends.xla_function import Held, Like, XlaFunction
from compiler.dense.dense_graph import DenseGraph
from compiler.dense.fusion import fuse
from compiler.frameworks import tf
from models.config.arch_options import read_options
from models.config.model_section import ONE_LABEL, NetworkConfig
from models.config.train_section import TrainSettings
from models.training.dense_optimizer import correction, moved
from models.training.losses import row_loss, weighted_mean
from models.zoo.arch import build_arch, resolve_arch
from models.zoo.dense_input import DenseInput
from processor.cores import available
from processor.errors import BadInput
from processor.package.manifest import Manifest

Array = NDArray[Any]
Float32s = NDArray[np.float32]
Weights = Mapping[str, Float32s]
Write = Callable[[Float32s], None]

NARROWER = 4
"""A batch takes an executable of at most so many times its rows."""


class DenseStep:
    """One optimizer step of the network, called with a batch. arch: the network. graph: the dense graph that it is
    scored and published as, with its first weights."""

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig = ONE_LABEL,
        fusion: Mapping[str, str] | None = None,
    ) -> None:
        """See Trainer."""
        self._settings, self._width, self._threads = settings, manifest.width, len(available())
        options = read_options(resolve_arch(manifest.arch), network.options, "model")
        layout = DenseInput.from_features(manifest.features)
        self.arch = build_arch(manifest.arch, layout, options, network.labels, settings.seed)
        self._labels, self._row_loss = network.labels, row_loss(network)
        graph = DenseGraph.from_keras(self.arch.scores)
        self.graph = fuse(graph, fusion, manifest.features) if fusion else graph
        single = {output.name for output in self.graph.outputs if output.columns == 1}
        if absent := [name for name in self.arch.outputs if name not in single]:
            raise BadInput(f"arch: an output {absent[0][:64]!r} [n, 1] wanted, got {', '.join(sorted(single))[:200]}")
        model = self.arch.logits
        self._trained = model.trainable_variables
        self._variables = [*self._trained, *model.non_trainable_variables]
        self._exact = any("float" in v.dtype for v in model.non_trainable_variables)
        self._rooms: dict[tuple[str, int], _Room] = {}
        self.rate = settings.dense_learning_rate
        self._state: list[Held | Array] = []
        self._moments: list[Held | Array] = []
        self._begin()

    def begin_at(self, log_odds: Sequence[float]) -> None:
        """Lets every label's logit begin so much higher (Arch.begin_at)."""
        for variable, value in zip(self._variables, self._state):
            variable.assign(_array(value))
        self.arch.begin_at(log_odds)
        self._state = [np.array(v.numpy()) for v in self._variables]

    def described(self, manifest: Manifest) -> Manifest:
        """The manifest with the network's outputs, and a note of which is the probability of which label."""
        told = {"labels": dict(zip(self._labels, self.arch.outputs))}
        return replace(manifest, outputs=self.graph.outputs, notes=manifest.notes | told)

    def scale_rate(self, factor: float) -> None:
        """The learning rate from now on, as a share of the configuration's."""
        self.rate = self._settings.dense_learning_rate * factor

    def ready(self, rows: int) -> None:
        """Compiles what a step on so many rows takes, where that is not done."""
        self._filled = self._room("step", rows)

    def fill(self, rows: int, write: Write) -> None:
        """Takes x [rows, width] for the next step, for which it is ready(): write(x) is to write all of it."""
        write(self._filled.x[:rows])
        self._filled.x[rows:] = self._filled.x[0]

    def learn(self, label: Float32s, weight: Float32s | None = None) -> tuple[float, Float32s]:
        """One step on what was filled in, label [rows] or [rows, labels] and weight [rows]: the mean loss of the rows
        by their weights before it, and its gradient by x, which stays until the next step."""
        room, rows = self._filled, len(label)
        room.label[:rows], room.label[rows:] = label, label[0]
        room.weight[:rows], room.weight[rows:] = 1.0 if weight is None else weight, 0.0
        self._steps += 1
        room.rates[...] = self.rate, self.rate * correction(self._steps)
        hold = room.function.hold
        state = [s if isinstance(s, Held) else hold(s) for s in (*self._state, *self._moments)]
        loss, self._grad, *after = room.function([*room.arguments, *state])
        self._state, self._moments = list(after[: len(self._state)]), list(after[len(self._state) :])
        return float(loss.view()), self._grad.view()[:rows]

    def score(self, rows: int, write: Write, weights: Weights | None = None) -> Float32s:
        """The labels' probabilities, in the shape of Batch.label, for x [rows, width], which write(x) writes, as the
        dense graph gives them; of other weights, if given."""
        room = self._room("score", rows)
        write(room.x[:rows])
        room.x[rows:] = room.x[0]
        chosen, hold = self._by_name() if weights is None else weights, room.function.hold
        given = [w if isinstance(w, Held) else hold(w) for w in (chosen[name] for name in self.graph.weight_names)]
        outputs = room.function([*room.arguments, *given])
        scores = np.concatenate([output.view()[:rows] for output in outputs], axis=1)
        return scores.reshape(-1) if len(outputs) == 1 else scores

    def published(self) -> DenseGraph:
        """The dense graph with the weights as they are."""
        return replace(self.graph, weights=self.weights())

    def weights(self) -> dict[str, Float32s]:
        """The dense tensors by name, as copies."""
        return {name: np.array(_array(value), np.float32) for name, value in self._by_name().items()}

    def optimizer_state(self) -> dict[str, Array]:
        """The optimizer's steps and moments, and where dropout stands in its random numbers, as copies."""
        state: dict[str, Array] = {"0000": np.array(self._steps, np.int64)}
        state |= {f"{i + 2:04d}": np.array(_array(m)) for i, m in enumerate(self._moments)}
        return state | {name: np.array(_array(self._state[i])) for name, i in self._dropouts().items()}

    def restore(self, weights: Weights, optimizer: Mapping[str, Array]) -> None:
        """Puts back what weights() and optimizer_state() gave."""
        self.assign(weights)
        # Copied: what is given may be a file's own bytes.
        self._steps = int(optimizer["0000"])
        self._moments = [np.array(optimizer[f"{i + 2:04d}"]) for i in range(len(self._moments))]
        for name, i in self._dropouts().items():
            if name in optimizer:
                self._state[i] = np.array(optimizer[name])

    def assign(self, weights: Weights) -> None:
        """Takes dense tensors that somebody else made, by name; the optimizer's own state stays."""
        for i, variable in enumerate(self._variables):
            if variable.path in weights:
                self._state[i] = np.array(weights[variable.path])

    def begin_with(self, weights: Weights) -> None:
        """Takes dense tensors by name, with an optimizer that begins anew."""
        self._begin()
        self.assign(weights)

    def _begin(self) -> None:
        """Takes the weights of Keras' variables, with an optimizer that begins anew."""
        self._state = [np.array(v.numpy()) for v in self._variables]
        self._moments = [np.zeros(v.shape, np.float32) for v in self._trained for _ in range(2)]
        self._steps = 0

    def _by_name(self) -> dict[str, Any]:
        """Of the graph's weights, the state as it is."""
        own = {v.path: s for v, s in zip(self._variables, self._state)}
        return {name: own.get(name, first) for name, first in self.graph.weights.items()}

    def _dropouts(self) -> dict[str, int]:
        """Where in the state each layer of dropout's is: whole numbers, whose paths differ by process."""
        places = [i for i, v in enumerate(self._variables) if "float" not in v.dtype]
        return {f"dropout_{n:04d}": i for n, i in enumerate(places)}

    def _room(self, what: str, rows: int) -> _Room:
        size = rows if self._exact and what == "step" else _size(rows, self._settings.batch_rows)
        if (what, size) not in self._rooms:
            x = Like((size, self._width))
            if what == "score":
                weights = [Like(self.graph.weights[name].shape) for name in self.graph.weight_names]
                self._rooms[what, size] = _Room(XlaFunction(self._scores, [x, *weights], self._threads), [x])
            else:
                label = Like((size,) if len(self._labels) == 1 else (size, len(self._labels)))
                inputs = [x, label, Like((size,)), Like((2,))]
                state = [Like.of(_array(s)) for s in (*self._state, *self._moments)]
                self._rooms[what, size] = _Room(XlaFunction(self._step, [*inputs, *state], self._threads), inputs)
        return self._rooms[what, size]

    def _scores(self, x: Any, *weights: Any) -> list[Any]:
        outputs = self.graph.function(x, dict(zip(self.graph.weight_names, weights)))
        return [tf.identity(outputs[name]) for name in self.arch.outputs]

    def _step(self, x: Any, label: Any, weight: Any, rates: Any, *state: Any) -> list[Any]:
        many, whole = len(self._trained), len(self._state)
        weights, other, moments = list(state[:many]), list(state[many:whole]), list(state[whole:])
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            logits, other = self.arch.logits.stateless_call(weights, other, x, training=True)
            losses = self._row_loss(label, tf.reshape(logits, (-1,)) if len(self._labels) == 1 else logits)
            loss = weighted_mean(losses, weight)
        grad_x, *grads = tape.gradient(loss, [x, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        names = [v.name for v in self._trained]
        weights, moments = moved(self._settings, names, weights, grads, moments, rates[0], rates[1])
        return [tf.identity(t) for t in (loss, grad_x, *weights, *other, *moments)]


class _Room:
    """An executable of a size, and the arrays that it reads a batch from."""

    def __init__(self, function: XlaFunction, inputs: Sequence[Like]) -> None:
        self.function = function
        arrays, self.arguments = [list(part) for part in zip(*(function.room(like.shape) for like in inputs))]
        self.x = arrays[0]
        if len(arrays) > 1:
            self.label, self.weight, self.rates = arrays[1:]


def _size(rows: int, batch_rows: int) -> int:
    """Rows of the executable for a batch of `rows`."""
    size = max(1, batch_rows)
    if rows > size:
        return rows
    while size // NARROWER >= rows:
        size //= NARROWER
    return size


def _array(held: Held | Array) -> Array:
    return held.view() if isinstance(held, Held) else held
