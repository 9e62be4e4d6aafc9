"""Run executables of format 1 that read the user's vector from side columns of their only matrix.

They look like those of format 2: their inputs are x, the candidates' own columns, and u, the user's vector
(processor.package.format1). A run copies both into a matrix of its own, which costs a few microseconds per 100 kB.
Packages are written in format 2; this is what packages of older releases are served with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from freshet_serving.processor.backends import (
    MATRIX,
    Artefact,
    Executable,
    IoSpec,
    Matrix,
    Program,
    Weights,
    aligned,
    check_buffers,
)
from freshet_serving.processor.package import USER_VECTOR


@dataclass(frozen=True, slots=True)
class SideColumns(Program):
    """A program whose executables have x and u as inputs, around one of one matrix with `count` side columns."""

    program: Program
    spec: IoSpec
    count: int

    def add(self, artefact: Artefact) -> None:
        self.program.add(artefact)

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        loaded = self.program.with_weights(weights)
        return {bucket: _Executable(executable, self.spec, self.count) for bucket, executable in loaded.items()}


def one_matrix(spec: IoSpec, count: int) -> IoSpec:
    """Return the inputs and outputs of executables with side columns."""
    rows, columns = spec.inputs[MATRIX]
    assert columns is not None
    return IoSpec({MATRIX: (rows, columns + count)}, spec.outputs)


class _Executable:
    """An executable with side columns, as one with two inputs."""

    def __init__(self, executable: Executable, spec: IoSpec, count: int) -> None:
        self.bucket = executable.bucket
        self._executable, self._spec, self._count = executable, spec, count

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        check_buffers(self.bucket, self._spec, inputs, outputs)
        x, u, count = inputs[MATRIX], inputs[USER_VECTOR][0], self._count
        columns = x.shape[1]
        wide = aligned((self.bucket, columns + count))
        whole, left = divmod(len(u), count)
        run = self._executable.bind_buffers({MATRIX: wide}, outputs)

        def copied() -> None:
            wide[:, :columns] = x
            wide[:whole, columns:] = u[: whole * count].reshape(whole, count)
            if left:
                wide[whole, columns : columns + left] = u[whole * count :]
            run()

        return copied
