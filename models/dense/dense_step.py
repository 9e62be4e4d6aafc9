"""The dense network in training: forward and backward of a batch in parts, each on a core, then one optimizer step.

Two XLA executables (models.dense.dense_functions): of a part, its loss and gradients; of all parts, their gradients
added up in order and the weights moved. Weights, the network's other state and the optimizer's moments live where these
read them and go from call to call; Keras' variables only give them their first values. Executables are of static rows:
a part takes the smallest of a few sizes that it fits in, filled up with copies of its first row that weigh nothing, so
that they change no gradient. Networks whose rows see one another (statistics of a batch, a loss of pairs) would see
them, and would see fewer neighbours in a part: their batches stay whole and are compiled for each size that comes.

Who calls: fill(), gradients(), move() of each step, from one thread; the crew computes parts side by side, each in
memory of its own. move() touches nothing that rows of tables are moved by, so that both may run at once.

Bits: a step is a function of state, batch and the number of cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.backends.xla_function import ArraySpec, DeviceArray, XlaFunction, device_put
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.dense.fusion import fuse
from freshet_serving.models.config.arch_options import read_options
from freshet_serving.models.config.model_section import ONE_LABEL, NetworkConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.dense.batch_part import BatchBuffer, BatchPart, Write
from freshet_serving.models.dense.dense_functions import DenseFunctions
from freshet_serving.models.dense.dense_optimizer import correction
from freshet_serving.models.dense.dense_state import DenseState, Weights
from freshet_serving.models.dense.losses import row_loss
from freshet_serving.models.pipeline.worker_pool import WorkerPool, even_ranges
from freshet_serving.models.zoo.arch import build_arch, resolve_arch
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest

Array = NDArray[Any]
Float32s = NDArray[np.float32]

NARROWER = 4
"""A part takes an executable of at most so many times its rows."""
LEAST_ROWS = 64
"""There are no narrower executables than that."""
WINDOW_ROWS = 512
"""What is scored between two deltas is more than a batch: it takes an executable of at least so many rows."""
PART_ROWS = 128
"""For fewer rows it does not pay to wake another thread."""
MOST_PARTS = 4
"""Each has gradients of all weights, which are to be added up. Of more cores than that, each part's call takes some."""


class DenseStep:
    """One optimizer step of the network, called with a batch. arch: the network. graph: the dense graph that it is
    scored and published as, with its first weights."""

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig = ONE_LABEL,
        fusion: Mapping[str, str] | None = None,
        worker_pool: WorkerPool | None = None,
        first_part: int = 0,
    ) -> None:
        """See Trainer. crew: computes parts; by default the caller's thread alone. first_part: its number, where others
        have parts of the same batches."""
        self._first_part, self._settings = first_part, settings
        self._width, self._worker_pool = manifest.width, worker_pool or WorkerPool(1)
        options = read_options(resolve_arch(manifest.arch), network.options, "model")
        layout = DenseInput.from_features(manifest.features)
        self.arch = build_arch(manifest.arch, layout, options, network.labels, settings.known_seed)
        self._labels = network.labels
        graph = DenseGraph.from_keras(self.arch.scores)
        self.graph = fuse(graph, fusion, manifest.features) if fusion else graph
        single = {output.name for output in self.graph.outputs if output.columns == 1}
        if absent := [name for name in self.arch.outputs if name not in single]:
            raise BadInput(f"arch: an output {absent[0][:64]!r} [n, 1] wanted, got {', '.join(sorted(single))[:200]}")
        self._do = DenseFunctions(self.arch, self.graph, len(network.labels), row_loss(network), settings)
        self.rows_are_alone = self._do.rows_are_alone()
        self._most = min(self._worker_pool.size, MOST_PARTS) if self.rows_are_alone else 1
        # A call of one thread computes in the thread that makes it.
        self._threads = 1 if self._most == self._worker_pool.size else self._worker_pool.size
        # Rows of the largest part of a whole batch.
        self._full = max(stop - start for start, stop in self._shares(settings.batch_rows))
        self._functions: dict[tuple[str, int], XlaFunction] = {}
        self._io_buffers: dict[tuple[str, int, int], BatchBuffer] = {}
        self._filled: list[BatchPart] = []
        self._gradients: list[DeviceArray] = []
        self.rate = settings.dense_learning_rate
        self.state = DenseState(self._do.trained, self._do.other, self._threads)

    def set_initial_bias(self, log_odds: Sequence[float]) -> None:
        """Lets every label's logit begin so much higher (Arch.set_initial_bias)."""
        named = self.state.named()
        for variable in (*self._do.trained, *self._do.other):
            variable.assign(named[variable.path])
        self.arch.set_initial_bias(log_odds)
        self.state.assign({v.path: np.array(v.numpy()) for v in (*self._do.trained, *self._do.other)})

    def described(self, manifest: Manifest) -> Manifest:
        """The manifest with the network's outputs, and a note of which is the probability of which label."""
        told = {"labels": dict(zip(self._labels, self.arch.outputs))}
        return replace(manifest, outputs=self.graph.outputs, notes=manifest.notes | told)

    def scale_rate(self, factor: float) -> None:
        """The learning rate from now on, as a share of the configuration's."""
        self.rate = self._settings.dense_learning_rate * factor

    def ready(self, rows: int) -> None:
        """Compiles what a step on so many rows takes, where that is not done."""
        self._filled = self._parts("gradients", rows)
        self._mover(len(self._filled))

    def fill(self, write: Write, alone: bool = False) -> None:
        """Takes the rows that it is ready() for. alone: in the caller's thread."""
        self._worker_pool.run([partial(part.fill, write) for part in self._filled], alone)

    def gradients(self, label: Float32s, share: Float32s) -> tuple[float, list[tuple[int, Float32s]]]:
        """Of what was filled in, with label [rows] or [rows, labels] and share [rows] of each row (losses.mean_shares):
        its loss, and the gradient by x in pieces, each with its first row, which stay until the next step."""
        state = self.state.held()
        for part in self._filled:
            part.weigh(label, share)
        results = self._worker_pool.run([partial(part.compute, state) for part in self._filled])
        losses, self._by_x, self._gradients, *others = ([*each] for each in zip(*results))
        # Random numbers go on where the first part's end.
        self.state.passed([other[0] for other in others])
        pieces = [(part.start, grad.view()[: part.rows]) for part, grad in zip(self._filled, self._by_x)]
        return sum(float(loss.view()) for loss in losses), pieces

    @property
    def weights_count(self) -> int:
        """How many weights are trained."""
        return self.state.specs()[0].shape[1]

    def gradient(self) -> Float32s:
        """By all weights [n], of gradients()."""
        total = np.array(self._gradients[0].view())
        for part in self._gradients[1:]:
            total += part.view()
        return total

    def replace_gradient(self, total: Float32s) -> None:
        """move() takes this one [n], of a batch of which gradients() has seen some rows, or none."""
        self._gradients = [device_put(total, self._threads)]

    def move(self) -> None:
        """One step of the optimizer by the gradients."""
        mover = self._mover(len(self._gradients))
        self.state.steps += 1
        mover.x[...] = self.rate, self.rate * correction(self.state.steps)
        self.state.moved(mover.function([*mover.arguments, self.state.held_vectors(), *self._gradients])[0])

    def score(self, rows: int, write: Write, weights: DenseState | None = None) -> Float32s:
        """The labels' probabilities, in the shape of Batch.label, for x [rows, width] as the dense graph gives them; of
        other weights, if given."""
        state = weights or self.state
        given = [state.held_vectors(), *self._rest(state)]

        def score(part: BatchPart) -> Float32s:
            part.fill(write)
            outputs = part.compute(given)
            return np.concatenate([output.view()[: part.rows] for output in outputs], axis=1)

        scores = np.concatenate(self._worker_pool.run([partial(score, part) for part in self._parts("scores", rows)]))
        return scores.reshape(-1) if len(self.arch.outputs) == 1 else scores

    def published(self) -> DenseGraph:
        """The dense graph with the weights as they are."""
        return replace(self.graph, weights=self.weights())

    def weights(self) -> dict[str, Float32s]:
        """The dense tensors by name, as copies."""
        named = self.state.named()
        return {name: np.array(named.get(name, first), np.float32) for name, first in self.graph.weights.items()}

    def begin_with(self, weights: Weights) -> None:
        """Takes dense tensors by name, with an optimizer that begins anew."""
        self.state = self.with_weights(weights)

    def with_weights(self, weights: Weights) -> DenseState:
        """A state of its own with dense tensors by name, for score()."""
        state = DenseState(self._do.trained, self._do.other, self._threads)
        state.assign(weights)
        return state

    def _rest(self, state: DenseState) -> list[DeviceArray]:
        """The graph's weights that are not trained."""
        named = state.named() if self._do.rest else {}
        return [
            device_put(np.asarray(named.get(name, self.graph.weights[name])), self._threads) for name in self._do.rest
        ]

    def _parts(self, what: str, rows: int) -> list[BatchPart]:
        """The batch's rows in parts, in rooms that they fit in."""
        return [
            BatchPart(self._io_buffer(what, stop - start, number), start, stop)
            for number, (start, stop) in enumerate(self._shares(rows))
        ]

    def _shares(self, rows: int) -> list[tuple[int, int]]:
        return even_ranges(rows, min(self._most, rows // PART_ROWS))

    def _io_buffer(self, what: str, rows: int, number: int) -> BatchBuffer:
        size = _size(rows, self._full) if self.rows_are_alone or what == "scores" else rows
        return self._io_buffers.get((what, size, number)) or self._made(what, size, number)

    def _mover(self, parts: int) -> BatchBuffer:
        return self._io_buffers.get(("moves", parts, 0)) or self._made("moves", parts, 0)

    def _made(self, what: str, size: int, number: int) -> BatchBuffer:
        """A new room, for the executable of that size, which all of its rooms share."""
        inputs, state = self._takes(what, size)
        if (what, size) not in self._functions:
            self._functions[what, size] = XlaFunction(getattr(self._do, what), [*inputs, *state], self._threads)
        io_buffer = self._io_buffers[what, size, number] = BatchBuffer(self._functions[what, size], inputs)
        if what == "gradients":
            io_buffer.more[-1][...] = self._first_part + number
        return io_buffer

    def _takes(self, what: str, size: int) -> tuple[list[ArraySpec], list[ArraySpec]]:
        """What an executable reads: what is written for each call, and what goes from call to call."""
        x, (vectors, *other) = ArraySpec((size, self._width)), self.state.specs()
        if what == "scores":
            return [x], [vectors, *(ArraySpec(self.graph.weights[name].shape) for name in self._do.rest)]
        if what == "gradients":
            return [x, ArraySpec(self._do.label_shape(size)), ArraySpec((size,)), ArraySpec((1,))], [vectors, *other]
        return [ArraySpec((2,))], [vectors, *[ArraySpec(vectors.shape[1:])] * size]


def _size(rows: int, full: int) -> int:
    """Return the rows of the executable for a part of `rows`; full: rows of the largest part of a whole batch.

    A compile takes half a second, a row that is filled up a microsecond: so there are few sizes, and none for what is
    left over at the end of a stretch.
    """
    size = max(1, full)
    while size < rows:
        size = max(2 * size, WINDOW_ROWS)
    while size // NARROWER >= max(rows, LEAST_ROWS):
        size //= NARROWER
    return size
