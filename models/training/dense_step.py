"""The dense network in training: forward, backward and one step of Adam as one XLA executable on all cores.

Weights, the network's other state and the optimizer's moments live where the executable reads them and go from call to
call; Keras' variables only give them their first values. Executables are of static rows: a batch takes the smallest of
a few sizes that it fits in, filled up with copies of its first row that weigh nothing, so that they change no gradient.
Networks that keep statistics of a batch would see them, and are compiled for each size that comes.

Bits: a step is a function of state, batch and the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.backends.xla_function import Held, Like, XlaFunction
from compiler.dense.dense_graph import DenseGraph
from compiler.dense.fusion import fuse
from compiler.frameworks import tf
from models.config.train_section import TrainSettings
from models.zoo.arch import Arch, resolve_arch
from models.zoo.dense_input import DenseInput
from processor.cores import available
from processor.package.manifest import Manifest

Weights = Mapping[str, NDArray[np.float32]]
Arrays = Mapping[str, NDArray[Any]]

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
NARROWER = 4
"""A batch takes an executable of at most so many times its rows."""


class DenseStep:
    """One optimizer step of the network, called with a batch. arch: the network. graph: the dense graph that it is
    scored and published as, with its first weights."""

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        hidden: tuple[int, ...] = (),
        fusion: Mapping[str, str] | None = None,
    ) -> None:
        """See Trainer."""
        self._settings, self._width, self._threads = settings, manifest.width, len(available())
        options: dict[str, Any] = {"seed": settings.seed}
        if hidden:
            options["hidden"] = hidden
        self.arch = Arch.of(resolve_arch(manifest.arch)(DenseInput.from_features(manifest.features), **options))
        graph = DenseGraph.from_keras(self.arch.scores)
        self.graph = fuse(graph, fusion, manifest.features) if fusion else graph
        model = self.arch.logits
        self._trained, self._other = model.trainable_variables, model.non_trainable_variables
        self._exact = any("float" in v.dtype for v in self._other)
        self._rooms: dict[tuple[str, int], _Room] = {}
        self.begin()

    def begin(self) -> None:
        """Takes the weights of Keras' variables, with an optimizer that begins anew."""
        variables = (*self._trained, *self._other)
        self._state: list[Held | NDArray[Any]] = [np.array(v.numpy()) for v in variables]
        self._moments: list[Held | NDArray[Any]] = []
        for v in self._trained:
            self._moments += [np.zeros(v.shape, np.float32), np.zeros(v.shape, np.float32)]
        self._steps = 0

    def begin_at(self, log_odds: float) -> None:
        """Lets every logit begin so much higher (Arch.begin_at)."""
        variables = (*self._trained, *self._other)
        for variable, value in zip(variables, self._state):
            variable.assign(_array(value))
        self.arch.begin_at(log_odds)
        self._state = [np.array(v.numpy()) for v in variables]

    def fill(self, rows: int, write: Callable[[NDArray[np.float32]], None]) -> None:
        """Takes x [rows, width] for the next step: write(x) is to write all of it."""
        self._filled = self._room("step", rows)
        write(self._filled.x[:rows])
        self._filled.x[rows:] = self._filled.x[0]

    def learn(self, label: NDArray[np.float32]) -> tuple[float, NDArray[np.float32]]:
        """One step on what was filled in and label [rows]: the mean log-loss before it, and its gradient by x, which
        stays until the next step."""
        room, rows = self._filled, len(label)
        room.label[:rows], room.weight[:rows] = label, 1.0
        room.label[rows:], room.weight[rows:] = label[0], 0.0
        self._steps += 1
        rate = self._settings.dense_learning_rate
        room.rate[()] = rate * np.sqrt(1 - BETA_2**self._steps) / (1 - BETA_1**self._steps)
        hold = room.function.hold
        state = [s if isinstance(s, Held) else hold(s) for s in (*self._state, *self._moments)]
        loss, self._grad, *state = room.function([*room.arguments, *state])
        self._state, self._moments = list(state[: len(self._state)]), list(state[len(self._state) :])
        return float(loss.view()), self._grad.view()[:rows]

    def score(
        self, rows: int, write: Callable[[NDArray[np.float32]], None], weights: Weights | None = None
    ) -> NDArray[np.float32]:
        """Scores [rows] of x [rows, width], which write(x) writes, as the dense graph gives them; of other weights,
        if given."""
        room = self._room("score", rows)
        write(room.x[:rows])
        room.x[rows:] = room.x[0]
        chosen, hold = self._by_name() if weights is None else weights, room.function.hold
        given = [w if isinstance(w, Held) else hold(w) for w in (chosen[name] for name in self.graph.weight_names)]
        (scores,) = room.function([*room.arguments, *given])
        return np.array(scores.view()[:rows])

    def published(self) -> DenseGraph:
        """The dense graph with the weights as they are."""
        return replace(self.graph, weights=self.weights())

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The dense tensors by name, as copies."""
        return {name: np.array(_array(value), np.float32) for name, value in self._by_name().items()}

    def optimizer_state(self) -> dict[str, NDArray[Any]]:
        """The optimizer's state by name, as copies: its steps, the moments, and what else the network keeps."""
        moments = {f"{i + 2:04d}": np.array(_array(m)) for i, m in enumerate(self._moments)}
        kept = {f"kept/{v.path}": np.array(_array(s)) for v, s in self._kept()}
        return {"0000": np.array(self._steps, np.int64)} | moments | kept

    def restore(self, weights: Weights, optimizer: Arrays) -> None:
        """Puts back what weights() and optimizer_state() gave."""
        self.assign(weights)
        self._steps = int(optimizer["0000"])
        # Copied: what is given may be a file's own bytes.
        self._moments = [np.array(optimizer[f"{i + 2:04d}"]) for i in range(len(self._moments))]
        kept = {name.removeprefix("kept/"): array for name, array in optimizer.items() if name.startswith("kept/")}
        variables = (*self._trained, *self._other)
        self._state = [np.array(kept[v.path]) if v.path in kept else s for v, s in zip(variables, self._state)]

    def assign(self, weights: Weights) -> None:
        """Takes dense tensors that somebody else made, by name; the optimizer's own state stays."""
        variables = (*self._trained, *self._other)
        self._state = [np.array(weights[v.path]) if v.path in weights else s for v, s in zip(variables, self._state)]

    def begin_with(self, weights: Weights) -> None:
        """Takes dense tensors by name, with an optimizer that begins anew."""
        self.begin()
        self.assign(weights)

    def _by_name(self) -> dict[str, Any]:
        """Of the graph's weights."""
        trained = {v.path: s for v, s in zip((*self._trained, *self._other), self._state)}
        return {name: trained.get(name, first) for name, first in self.graph.weights.items()}

    def _kept(self) -> list[tuple[Any, Any]]:
        """Of the network's state, what is no weight of the graph: counters, seeds."""
        pairs = zip((*self._trained, *self._other), self._state)
        return [(v, s) for v, s in pairs if v.path not in self.graph.weights]

    def _room(self, what: str, rows: int) -> _Room:
        size = rows if self._exact and what == "step" else _size(rows, self._settings.batch_rows)
        if (what, size) not in self._rooms:
            self._rooms[what, size] = self._made(what, size)
        return self._rooms[what, size]

    def _made(self, what: str, rows: int) -> _Room:
        x = Like((rows, self._width))
        if what == "score":
            names = self.graph.weight_names
            function = partial(_scores, self.graph, names)
            takes = [x, *(Like(self.graph.weights[name].shape) for name in names)]
            return _Room(XlaFunction(function, takes, self._threads), rows, self._width, learns=False)
        state = [Like.of(_array(s)) for s in (*self._state, *self._moments)]
        takes = [x, Like((rows,)), Like((rows,)), Like(()), *state]
        return _Room(XlaFunction(self._step, takes, self._threads), rows, self._width, learns=True)

    def _step(self, x: Any, label: Any, weight: Any, rate: Any, *state: Any) -> list[Any]:
        many, all_ = len(self._trained), len(self._state)
        weights, other, moments = list(state[:many]), list(state[many:all_]), state[all_:]
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            logits, other = self.arch.logits.stateless_call(weights, other, x, training=True)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(label, tf.reshape(logits, (-1,)))
            loss = tf.reduce_sum(losses * weight) / tf.reduce_sum(weight)
        grad_x, *grads = tape.gradient(loss, [x, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        moved, moved_moments = [], []
        for i, (w, g) in enumerate(zip(weights, grads)):
            # Adam (Kingma and Ba, 2015) as Keras computes it; `rate` has the corrections of both moments in it.
            first = moments[2 * i] + (g - moments[2 * i]) * (1 - BETA_1)
            second = moments[2 * i + 1] + (g * g - moments[2 * i + 1]) * (1 - BETA_2)
            moved.append(w - first * rate / (tf.sqrt(second) + EPSILON))
            moved_moments += [first, second]
        return [tf.identity(t) for t in (loss, grad_x, *moved, *other, *moved_moments)]


class _Room:
    """An executable of a size, and the arrays that it reads a batch from."""

    def __init__(self, function: XlaFunction, rows: int, width: int, learns: bool) -> None:
        self.function = function
        self.x, x = function.room((rows, width))
        self.arguments = [x]
        if learns:
            (self.label, label), (self.weight, weight) = function.room((rows,)), function.room((rows,))
            self.rate, rate = function.room(())
            self.arguments += [label, weight, rate]


def _scores(graph: DenseGraph, names: list[str], x: Any, *weights: Any) -> list[Any]:
    return [tf.reshape(graph.function(x, dict(zip(names, weights)))["score"], (-1,))]


def _size(rows: int, batch_rows: int) -> int:
    """Rows of the executable for a batch of `rows`."""
    size = max(1, batch_rows)
    if rows > size:
        return rows
    while size // NARROWER >= rows:
        size //= NARROWER
    return size


def _array(held: Held | NDArray[Any]) -> NDArray[Any]:
    return held.view() if isinstance(held, Held) else held
