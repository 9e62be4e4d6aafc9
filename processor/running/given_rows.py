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
    """Run an executable on rows (n each, or whole tensors without rows); return its outputs by name."""
    bucket = executable.bucket
    buffers, room = spec.allocate_inputs(bucket), spec.allocate_outputs(bucket)
    of_rows = {name: inputs[name] for name, dims in spec.inputs.items() if None in dims}
    for name in buffers.keys() - of_rows.keys():
        buffers[name][...] = inputs[name]
    rows = len(first_of(of_rows.values()))
    results = {name: np.empty((rows, *values.shape[1:]), np.float32) for name, values in room.items()}
    run_rows((buffers, room, executable.bind_buffers(buffers, room)), bucket, of_rows, results, np.arange(rows))
    return results


def run_rows(
    bound: tuple[Tensors, Tensors, Callable[[], None]],
    bucket: int,
    inputs: Tensors,
    results: Tensors,
    at: NDArray[np.int64],
) -> None:
    """Run the rows numbered `at` bucket by bucket, padding the last with its last row, and write their results.

    `bound` are input buffers, output buffers and the run between them; the other rows of `results` stay.
    """
    buffers, outputs, call = bound
    for first in range(0, len(at), bucket):
        part = at[first : first + bucket]
        for name, rows in inputs.items():
            buffers[name][: len(part)], buffers[name][len(part) :] = rows[part], rows[part[-1]]
        call()
        for name, result in results.items():
            result[part] = outputs[name][: len(part)]
