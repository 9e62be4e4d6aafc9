"""State of a network that passes from step to step: weights, their optimizer's moments, and other state.

Weights and moments form three rows of one array: each argument and result of an executable costs time, and this makes
the optimizer one loop. They live where executables read them (DeviceArray), and as NumPy arrays only while new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.backends.xla_function import ArraySpec, DeviceArray, device_put

Array = NDArray[Any]
Float32s = NDArray[np.float32]
Weights = Mapping[str, Float32s]

WEIGHTS, FIRST, SECOND = range(3)


class DenseState:
    """Training state of a network; `assigned` counts assignments from outside."""

    def __init__(self, trained: Sequence[Any], other: Sequence[Any], threads: int) -> None:
        """Copy the values of Keras variables, trained and not; `threads` is that of the executables."""
        self._trained, self._others, self._threads = trained, other, threads
        ends = np.cumsum([0, *(int(np.prod(v.shape)) for v in trained)]).tolist()
        self._places = {v.path: (slice(*part), v.shape) for v, part in zip(trained, zip(ends, ends[1:]))}
        self._vectors: DeviceArray | Array = np.zeros((3, ends[-1]), np.float32)
        self._other: list[DeviceArray | Array] = [np.array(v.numpy()) for v in other]
        self.steps, self.assigned = 0, 0
        self.assign({v.path: v.numpy() for v in trained})

    def held(self) -> list[DeviceArray]:
        """Return the vectors [3, n] and the other state, as an executable's arguments."""
        other = [s if isinstance(s, DeviceArray) else device_put(s, self._threads) for s in self._other]
        self._other = [*other]
        return [self.held_vectors(), *other]

    def held_vectors(self) -> DeviceArray:
        if not isinstance(self._vectors, DeviceArray):
            self._vectors = device_put(self._vectors, self._threads)
        return self._vectors

    def specs(self) -> list[ArraySpec]:
        return [ArraySpec.of(_array(s)) for s in (self._vectors, *self._other)]

    def moved(self, vectors: DeviceArray) -> None:
        self._vectors = vectors

    def passed(self, other: Sequence[DeviceArray]) -> None:
        self._other = list(other)

    def named(self) -> dict[str, Array]:
        """Return weights and other state by variable path; read-only."""
        weights = self._by_path(WEIGHTS)
        return weights | {v.path: _array(s) for v, s in zip(self._others, self._other)}

    def assign(self, weights: Weights) -> None:
        """Assign tensors by path, ignoring other networks'; the optimizer's state stays."""
        self.assigned += 1
        vectors = np.array(_array(self._vectors))
        for path, (place, shape) in self._places.items():
            if path in weights:
                vectors[WEIGHTS, place] = np.reshape(weights[path], shape).reshape(-1)
        self._vectors = vectors
        for i, variable in enumerate(self._others):
            if variable.path in weights:
                self._other[i] = np.array(weights[variable.path])

    def optimizer(self) -> dict[str, Array]:
        """Return copies of the optimizer's steps and moments, and of dropout's generators."""
        state: dict[str, Array] = {"0000": np.array(self.steps, np.int64)}
        for row in (FIRST, SECOND):
            moments = self._by_path(row).values()
            state |= {_moment(i, row): np.array(moment) for i, moment in enumerate(moments)}
        return state | {name: np.array(_array(self._other[i])) for name, i in self._dropouts().items()}

    def restore(self, weights: Weights, optimizer: Mapping[str, Array]) -> None:
        """Restore a checkpoint: tensors by path, and the result of optimizer()."""
        self.assign(weights)
        # Copy: the arrays may be a file's memory.
        self.steps, vectors = int(optimizer["0000"]), np.array(_array(self._vectors))
        for i, (place, _) in enumerate(self._places.values()):
            for row in (FIRST, SECOND):
                vectors[row, place] = optimizer[_moment(i, row)].reshape(-1)
        self._vectors = vectors
        for name, i in self._dropouts().items():
            if name in optimizer:
                self._other[i] = np.array(optimizer[name])

    def arrays(self) -> list[Array]:
        return [np.array([self.steps], np.int64), _array(self._vectors), *map(_array, self._other)]

    def replace(self, arrays: Sequence[Array]) -> None:
        """Replace the whole state with the result of arrays()."""
        self.assigned += 1
        self.steps, self._vectors, self._other = int(arrays[0][0]), np.array(arrays[1]), [*map(np.array, arrays[2:])]

    def _by_path(self, row: int) -> dict[str, Array]:
        vector = _array(self._vectors)[row]
        return {path: vector[place].reshape(shape) for path, (place, shape) in self._places.items()}

    def _dropouts(self) -> dict[str, int]:
        """Return each dropout generator's index: the integers of the other state, whose paths differ by process."""
        places = [i for i, v in enumerate(self._others) if "float" not in v.dtype]
        return {f"dropout_{n:04d}": i for n, i in enumerate(places)}


def _moment(number: int, row: int) -> str:
    """Return a checkpoint's name for a moment of a weight."""
    return f"{2 * number + row + 1:04d}"


def _array(held: DeviceArray | Array) -> Array:
    return held.view() if isinstance(held, DeviceArray) else held
