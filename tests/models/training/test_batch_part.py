"""Rows that are left over in a room are copies of a part's first row, without weight."""

from types import SimpleNamespace

import numpy as np

from freshet_serving.models.training.batch_part import BatchPart


def make_room(rows, width):
    x, label, share, number = (np.full(shape, 7, np.float32) for shape in ((rows, width), (rows,), (rows,), (1,)))
    return SimpleNamespace(inputs={"x": x}, more=[label, share, number], arguments=["a"], function=lambda given: given)


def test_batch_part_is_padded_with_zero_weight_first_rows():
    part = BatchPart(make_room(5, 2), 3, 6)
    batch = np.arange(20, dtype=np.float32).reshape(10, 2)

    part.fill(lambda rows, inputs: np.copyto(inputs["x"], batch[rows]))
    part.weigh(batch[:, 0], np.full(10, 0.1, np.float32))

    np.testing.assert_array_equal(part.io_buffer.inputs["x"], batch[[3, 4, 5, 3, 3]])
    np.testing.assert_array_equal(part.io_buffer.more[0], batch[[3, 4, 5, 3, 3], 0])
    np.testing.assert_array_equal(part.io_buffer.more[1], np.array([0.1, 0.1, 0.1, 0, 0], np.float32))


def test_executable_arguments_are_the_buffers_then_the_state():
    assert BatchPart(make_room(1, 1), 0, 1).compute(["state"]) == ["a", "state"]
