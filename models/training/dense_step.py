"""Train the dense network: forward and backward pass of a batch in parts, one a core, then one optimizer step.

Two XLA executables (dense_functions): one computes loss and gradients of a part, the other adds up the gradients of all
parts in order and updates the weights. Weights, other state and the optimizer's moments live where these read them;
Keras variables only provide the first values. Executables have a static number of rows: a part uses the smallest of a
few sizes, padded with copies of its first row of weight 0, which change no gradient. Networks whose rows see one
another (batch statistics, pairwise losses) would see the padding: their batches stay whole and are compiled for each
size. Parts of rows with histories hold few events, and compute equal histories once
(models.training.history_division).

One thread calls fill(), gradients() and move() of each step; the worker pool computes parts in parallel, each in memory
of its own. move() touches nothing that updates of table rows use, so both may run at once.

A step is a function of state, batch and the number of cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.backends.xla_function import ArraySpec, DeviceArray, XlaFunction, device_put
from freshet_serving.compiler.building.parts import undivided_graphs
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.dense.fusion import fuse
from freshet_serving.models.config.arch_options import read_options
from freshet_serving.models.config.model_section import ONE_LABEL, NetworkConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.batch_part import BatchBuffer, BatchPart, GradientPiece, SharedHistories, Write
from freshet_serving.models.training.dense_functions import DenseFunctions
from freshet_serving.models.training.dense_optimizer import correction
from freshet_serving.models.training.dense_state import DenseState, Weights
from freshet_serving.models.training.losses import row_loss
from freshet_serving.models.training.vector_note import TWO_TOWER, vector_note
from freshet_serving.models.training.worker_pool import WorkerPool, even_ranges
from freshet_serving.models.zoo.arch import build_arch, resolve_arch
from freshet_serving.models.zoo.counted_odds import with_counted_odds
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.wide_weights import with_wide_weights
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import MATRIX, Manifest, dense_sequences

Array = NDArray[Any]
Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]
Arguments = tuple[dict[str, ArraySpec], list[ArraySpec], list[ArraySpec]]
"""Arguments of a function: the graph's inputs, what else is written for each call, and what passes between calls."""

NARROWER = 4
"""An executable has at most this many times the rows of its part."""
EXAMPLE_ROWS = 16
"""Rows of examples of a graph with sequences: random numbers would be no masks."""
LEAST_ROWS = 64
"""Fewest rows of an executable."""
WINDOW_ROWS = 512
"""Fewest rows of an executable for windows scored between two deltas, which are larger than a batch."""
FEWER = (2, 4, 8)
"""An executable for shared histories has one of these fractions of its rows as histories."""
PART_ROWS = 128
"""For fewer rows than this, waking another thread does not pay."""
MOST_PARTS = 4
"""Most parts of a batch for the cores alone: the gradients of all weights of each must be added up. With more cores,
the call of each part uses several."""
PART_EVENTS, LEAST_PART_ROWS = 4096, 16
"""Most events and fewest rows of a part. A layer's values for more events do not fit in a core's cache, and are new
memory in every call: with 50 events a row, `din` took 39 us a row in parts of 1,024 rows and 8.5 us in parts of 64
(`stca` 95 and 35)."""
PARTS_APART = 1 << 16
"""Distance between the numbers of the first parts of two processes."""


class DenseStep:
    """One optimizer step of the network, called with a batch.

    Attributes:
        graph: The dense graph that is scored and published, with its first weights.
        rows_are_alone: Whether each row's loss depends on that row only.
        shares_histories: Whether ready() should be given the rows with the same histories.
    """

    functions = DenseFunctions
    numbered: Mapping[str, int] = {"gradients": 2, "shared_gradients": 2}
    """By function that gets the number of its part: the place of that among what is written for each call."""

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig = ONE_LABEL,
        fusion: Mapping[str, str] | None = None,
        worker_pool: WorkerPool | None = None,
        first_part: int = 0,
    ) -> None:
        """As Trainer's; without a pool only the caller's thread computes. Its parts begin at `first_part`."""
        self._first_part, self._settings = first_part, settings
        self._follows_from = manifest, settings, network, fusion
        self._worker_pool = worker_pool or WorkerPool(1)
        options = read_options(resolve_arch(manifest.arch), network.options, "model")
        sequences = dense_sequences(manifest.sequences)
        layout = DenseInput.from_features(manifest.features, sequences)
        equal = set[str]()
        for t in manifest.transforms:
            equal |= {t.name} if t.op == "equal" or not equal.isdisjoint(t.inputs) else set()
        equals = [f.name for f in manifest.features if f.input in equal]
        self.arch = with_wide_weights(
            layout,
            network.wide,
            lambda rest: with_counted_odds(
                rest,
                network.counts,
                lambda inner: build_arch(manifest.arch, inner, options, network.labels, settings.known_seed),
                equals,
            ),
        )
        self._labels = network.labels
        graph = DenseGraph.from_keras(self.arch.scores)
        for s in sequences:
            if s.name not in graph.inputs:
                raise BadInput(
                    f"sequences.{s.name}: architecture {manifest.arch!r} reads no sequence of this name; "
                    f'use another, or make a feature of it: from = "{s.inputs[0]}", take = -1'
                )
        if sequences:
            graph = replace(graph, examples=layout.examples(EXAMPLE_ROWS))
        self.graph = fuse(graph, fusion, manifest.features) if fusion else graph
        single = {output.name for output in self.graph.outputs if output.columns == 1}
        if absent := [name for name in self.arch.outputs if name not in single]:
            raise BadInput(f"arch: expected an output {absent[0][:64]!r} [n, 1], got {', '.join(sorted(single))[:200]}")
        self._rows_of = [MATRIX, *(s.name for s in sequences)]
        losses = row_loss(network)
        counts = [f.offset for f in manifest.features if f.name in network.counts]
        self._do = self.functions(self.arch, self.graph, len(network.labels), losses, settings, self._rows_of, counts)
        self.rows_are_alone = self._do.rows_are_alone()
        self.shares_histories = self._do.division is not None and self.rows_are_alone
        self._most = min(self._worker_pool.size, MOST_PARTS) if self.rows_are_alone else 1
        # Executables with one thread compute in the calling thread.
        self._threads = 1 if self._most == self._worker_pool.size else self._worker_pool.size
        events = sum(s.max_length for s in sequences) if self.rows_are_alone else 0
        # Rows of a part that fit a core's cache; 0 for any number.
        self._cached = max(LEAST_PART_ROWS, PART_EVENTS // events) if events else 0
        self._full = max(stop - start for start, stop in self._shares(settings.batch_rows))
        # Parts of larger, scored batches have as many, so need no other executable and no padding.
        self._cached = self._full if events else 0
        self._functions: dict[tuple[str, int, int], XlaFunction] = {}
        self._io_buffers: dict[tuple[str, int, int, int], BatchBuffer] = {}
        self._filled: list[BatchPart] = []
        self._gradients: list[DeviceArray] = []
        self._scored: list[DeviceArray] = []
        self.rate = settings.dense_learning_rate
        self.state = DenseState(self._do.trained, self._do.other, self._threads)
        self._no_gradient = device_put(np.zeros(self.weights_count, np.float32), self._threads)

    def _settings_of(self, function: str) -> str:
        """Return all settings that determine a function; "" if they may not be complete."""
        return ""

    def set_initial_bias(self, log_odds: Sequence[float]) -> None:
        """Raise every label's initial logit by its log-odds (Arch.set_initial_bias)."""
        named = self.state.named()
        for variable in (*self._do.trained, *self._do.other):
            variable.assign(named[variable.path])
        self.arch.set_initial_bias(log_odds)
        self.state.assign({v.path: np.array(v.numpy()) for v in (*self._do.trained, *self._do.other)})

    def described(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the network's inputs and outputs, and a note that maps each label to its output."""
        notes: dict[str, Any] = {"labels": dict(zip(self._labels, self.arch.outputs))}
        network = self._follows_from[2]
        if manifest.arch == TWO_TOWER and not network.wide and not network.counts:
            notes |= vector_note(self.arch)
        named = replace(manifest, outputs=self.graph.outputs, notes=manifest.notes | notes)
        return replace(named, graphs=undivided_graphs(named, self.graph.inputs))

    def scale_rate(self, factor: float) -> None:
        self.rate = self._settings.dense_learning_rate * factor

    def ready(self, rows: int, same: Int64s | None = None) -> None:
        """Compile what a step on so many rows needs; `same` [rows] is the first row with each row's histories."""
        self._filled = self._parts("gradients", rows, same)
        self._mover(len(self._filled))

    def fill(self, write: Write, alone: bool = False) -> None:
        """Fill in the rows that ready() prepared for; with `alone`, in the caller's thread only."""
        self._worker_pool.run([partial(part.fill, write) for part in self._filled], alone)

    def gradients(self, label: Float32s, share: Float32s) -> tuple[float, list[GradientPiece]]:
        """Compute loss and gradients of the rows that were filled in, with weights losses.mean_shares().

        Return the loss, and pieces of the gradients by x and by each sequence; valid until the next step.
        """
        state = self.state.held()
        for part in self._filled:
            part.weigh(label, share)
        results = self._worker_pool.run([partial(part.compute, state) for part in self._filled])
        last = 1 + len(self._rows_of)
        losses, self._gradients = [result[0] for result in results], [result[last] for result in results]
        self._by_inputs, others = [result[1:last] for result in results], [result[last + 2 :] for result in results]
        self._scored = [result[last + 1] for result in results]
        # The random generators continue from the first part's state.
        self.state.passed(others[0])
        pieces = [
            part.piece({name: grad.view() for name, grad in zip(self._rows_of, grads)})
            for part, grads in zip(self._filled, self._by_inputs)
        ]
        return sum(float(loss.view()) for loss in losses), pieces

    @cached_property
    def has_scores(self) -> bool:
        """True if scores() returns what score() would have before the step."""
        return self._do.steps_score()

    def scores(self) -> Float32s:
        """Return the scores of the rows of the last gradients(), by the weights before its step, as score() does."""
        parts = [scores.view()[: part.rows] for part, scores in zip(self._filled, self._scored)]
        scores = np.concatenate(parts)
        return scores.reshape(-1) if len(self.arch.outputs) == 1 else scores

    @property
    def weights_count(self) -> int:
        return self.state.specs()[0].shape[1]

    def gradient(self) -> Float32s:
        """Return the gradient by all weights, float32 [n], of the last gradients()."""
        total = np.array(self._gradients[0].view())
        for part in self._gradients[1:]:
            total += part.view()
        return total

    def replace_gradient(self, total: Float32s) -> None:
        """Make move() use this gradient [n], for a batch of which other processes have seen parts."""
        self._gradients = [device_put(total, self._threads)]

    def move(self) -> None:
        # Surplus arguments are zeros, so that there are few executables.
        mover, count = self._mover(len(self._gradients)), _mover_size(len(self._gradients))
        gradients = [*self._gradients, *[self._no_gradient] * (count - len(self._gradients))]
        self.state.steps += 1
        mover.more[0][...] = self.rate, self.rate * correction(self.state.steps)
        self.state.moved(mover.function([*mover.arguments, self.state.held_vectors(), *gradients])[0])

    def score(self, rows: int, write: Write, weights: DenseState | None = None) -> Float32s:
        """Return the labels' probabilities by `weights` or the current ones, in the shape of Batch.label."""
        state = weights or self.state
        state_arrays = [state.held_vectors(), *self._rest(state)]

        def score(part: BatchPart) -> Float32s:
            part.fill(write)
            outputs = part.compute(state_arrays)
            return np.concatenate([output.view()[: part.rows] for output in outputs], axis=1)

        scores = np.concatenate(self._worker_pool.run([partial(score, part) for part in self._parts("scores", rows)]))
        return scores.reshape(-1) if len(self.arch.outputs) == 1 else scores

    def published(self) -> DenseGraph:
        """Return the dense graph with the current weights."""
        return replace(self.graph, weights=self.weights())

    def weights(self) -> dict[str, Float32s]:
        """Return copies of the dense tensors by name."""
        named = self.state.named()
        return {name: np.array(named.get(name, first), np.float32) for name, first in self.graph.weights.items()}

    def begin_with(self, weights: Weights) -> None:
        """Start with given dense tensors and a new optimizer."""
        self.state = self.with_weights(weights)

    def with_weights(self, weights: Weights) -> DenseState:
        """Return a separate state with given dense tensors, for score()."""
        state = DenseState(self._do.trained, self._do.other, self._threads)
        state.assign(weights)
        return state

    def _rest(self, state: DenseState) -> list[DeviceArray]:
        """Return the graph's weights that are not trained."""
        named = state.named() if self._do.rest else {}
        return [
            device_put(np.asarray(named.get(name, self.graph.weights[name])), self._threads) for name in self._do.rest
        ]

    def _parts(self, function: str, rows: int, same: Int64s | None = None) -> list[BatchPart]:
        return [
            self._part(function, number, start, stop, same) for number, (start, stop) in enumerate(self._shares(rows))
        ]

    def _part(self, function: str, number: int, start: int, stop: int, same: Int64s | None) -> BatchPart:
        rows = stop - start
        size = _size(rows, self._full) if self.rows_are_alone or function == "scores" else rows
        if same is not None and self.shares_histories:
            firsts, positions, times = np.unique(same[start:stop], return_inverse=True, return_counts=True)
            if distinct := _distinct_size(len(firsts), size):
                io_buffer = self._io_buffer(f"shared_{function}", size, number, distinct)
                return BatchPart(io_buffer, start, stop, SharedHistories(self._rows_of[1:], firsts, positions, times))
        return BatchPart(self._io_buffer(function, size, number), start, stop)

    def _shares(self, rows: int) -> list[tuple[int, int]]:
        parts = min(self._most, rows // PART_ROWS)
        return even_ranges(rows, max(parts, -(-rows // self._cached)) if self._cached else parts)

    def _io_buffer(self, function: str, size: int, number: int, distinct: int = 0) -> BatchBuffer:
        key = function, size, distinct, number
        return self._io_buffers.get(key) or self._new_io_buffer(*key)

    def _mover(self, parts: int) -> BatchBuffer:
        return self._io_buffer("moves", _mover_size(parts), 0)

    def _new_io_buffer(self, function: str, size: int, distinct: int, number: int) -> BatchBuffer:
        inputs, more, state = self._takes(function, size, distinct)
        if (function, size, distinct) not in self._functions:
            specs = [*inputs.values(), *more, *state]
            self._functions[function, size, distinct] = XlaFunction(
                getattr(self._do, function), specs, self._threads, self._settings_of(function)
            )
        io_buffer = BatchBuffer(self._functions[function, size, distinct], inputs, more)
        self._io_buffers[function, size, distinct, number] = io_buffer
        if function in self.numbered:
            io_buffer.more[self.numbered[function]][...] = self._first_part + number
        return io_buffer

    def _takes(self, function: str, size: int, distinct: int) -> Arguments:
        inputs = {name: ArraySpec(shape) for name, shape in self.graph.spec.input_shapes(size).items()}
        vectors, *other = self.state.specs()
        if function == "scores":
            return inputs, [], [vectors, *(ArraySpec(self.graph.weights[name].shape) for name in self._do.rest)]
        if function == "moves":
            return {}, [ArraySpec((2,))], [vectors, *[ArraySpec(vectors.shape[1:])] * size]
        more = [ArraySpec(self._do.label_shape(size)), ArraySpec((size,)), ArraySpec((1,))]
        if distinct:
            inputs |= {name: ArraySpec((distinct, *inputs[name].shape[1:])) for name in self._rows_of[1:]}
            more.append(ArraySpec((size,)))
        return inputs, more, [vectors, *other]


def fewest_size(number: int, fewest: int, sizes: int) -> int:
    """Return the smallest enough of few sizes: powers of two from `fewest` on, and `sizes` - 1 between two of them."""
    power = max(fewest, 1 << max(0, number - 1).bit_length()) // 2
    step = max(1, power // sizes)
    return max(fewest, -(-number // step) * step)


def _mover_size(parts: int) -> int:
    """Return the number of gradients that the executable for so many parts takes."""
    return 1 << (parts - 1).bit_length()


def _distinct_size(distinct: int, size: int) -> int:
    """Return the histories of a part's executable, 0 for one a row; compiling takes seconds, so there are few sizes."""
    fits = [size // share for share in FEWER if size // share >= distinct]
    return min(fits, default=0)


def _size(rows: int, full: int) -> int:
    """Return the rows of a part's executable; compiling takes half a second and padding a microsecond a row."""
    size = max(1, full)
    while size < rows:
        size = max(2 * size, WINDOW_ROWS)
    while size // NARROWER >= max(rows, LEAST_ROWS):
        size //= NARROWER
    return size
