"""Run an executable on rows that were filled before: to compare executables or states, to explain a row.

outputs_of    rows on an executable of one's own, in buffers of its own
run_rows      some of the rows, in buffers that are bound
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Executable, IoSpec, Matrix
from freshet_serving.processor.errors import first_of

Tensors = Mapping[str, Matrix]


def outputs_of(executable: Executable, inputs: Tensors, spec: IoSpec) -> dict[str, Matrix]:
    """Run an executable on rows; return its outputs by name.

    Args:
        inputs: By name: n rows, or the whole tensor if it has none for each row.
    """
    bucket = executable.bucket
    given, room = spec.allocate_inputs(bucket), spec.allocate_outputs(bucket)
    of_rows = {name: inputs[name] for name, dims in spec.inputs.items() if None in dims}
    for name in given.keys() - of_rows.keys():
        given[name][...] = inputs[name]
    rows = len(first_of(of_rows.values()))
    found = {name: np.empty((rows, *values.shape[1:]), np.float32) for name, values in room.items()}
    run_rows((given, room, executable.bind_buffers(given, room)), bucket, of_rows, found, np.arange(rows))
    return found


def run_rows(
    bound: tuple[Tensors, Tensors, Callable[[], None]],
    bucket: int,
    inputs: Tensors,
    results: Tensors,
    at: NDArray[np.int64],
) -> None:
    """Run some rows bucket by bucket, padding the last with its last row, and write their results.

    Args:
        bound: Input buffers, output buffers and the run between them.
        bucket: Rows of a run.
        inputs: All rows, by input.
        results: An array by output; only the rows `at` are written.
        at: Numbers of the rows to run.
    """
    given, outputs, call = bound
    for first in range(0, len(at), bucket):
        part = at[first : first + bucket]
        for name, rows in inputs.items():
            given[name][: len(part)], given[name][len(part) :] = rows[part], rows[part[-1]]
        call()
        for name, result in results.items():
            result[part] = outputs[name][: len(part)]
