"""Executables of format 1: x and u go side by side into one matrix, with the scores that it gives."""

import numpy as np
import pytest

from freshet_serving.processor.backends.base import Artefact, IoSpec
from freshet_serving.processor.running.side_columns import SideColumns, one_matrix

ROWS, OWN = 8, 3


class Seen:
    """A program of one matrix that keeps what it is run on."""

    def __init__(self):
        self.bucket, self.matrix, self.added = ROWS, None, []

    def add(self, artefact):
        self.added.append(artefact)

    def with_weights(self, weights):
        return {ROWS: self}

    def bind_buffers(self, inputs, outputs):
        (self.matrix,) = inputs.values()

        def run():
            outputs["score"][:] = self.matrix.sum(axis=1, keepdims=True)

        return run


def spec(length):
    return IoSpec({"x": (None, OWN), "u": (1, length)}, {"score": (None, 1)})


@pytest.mark.parametrize(("length", "count"), [(1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_vector_fills_the_side_columns_row_by_row(length, count):
    seen, random = Seen(), np.random.default_rng(0)
    (executable,) = SideColumns(seen, spec(length), count).with_weights({}).values()
    x, u = random.random((ROWS, OWN), np.float32), random.random((1, length), np.float32)
    outputs = {"score": np.empty((ROWS, 1), np.float32)}
    run = executable.bind_buffers({"x": x, "u": u}, outputs)
    for again in range(2):
        x += again
        u += again
        run()
        assert seen.matrix.shape == (ROWS, OWN + count)
        np.testing.assert_array_equal(seen.matrix[:, :OWN], x)
        np.testing.assert_array_equal(seen.matrix[:, OWN:].reshape(-1)[:length], u[0])
        assert not seen.matrix[:, OWN:].reshape(-1)[length:].any()
        np.testing.assert_array_equal(outputs["score"], seen.matrix.sum(axis=1, keepdims=True))


def test_matrix_is_as_wide_as_both():
    assert one_matrix(spec(17), 3) == IoSpec({"x": (None, OWN + 3)}, {"score": (None, 1)})


def test_buffers_that_do_not_fit_are_refused():
    (executable,) = SideColumns(Seen(), spec(9), 2).with_weights({}).values()
    with pytest.raises(ValueError, match=r"expected inputs \['u', 'x'\], got \['x'\]"):
        executable.bind_buffers({"x": np.zeros((ROWS, OWN), np.float32)}, {"score": np.zeros((ROWS, 1), np.float32)})


def test_artefacts_go_to_the_program_inside():
    seen = Seen()
    SideColumns(seen, spec(9), 2).add(Artefact(ROWS, b"", []))
    assert len(seen.added) == 1
