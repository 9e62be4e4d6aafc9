"""Kernels over a request's inputs: nothing is written beyond the end of what they are given."""

import numpy as np

from freshet_serving.processor.extensions.user_state.read_kernels import write_inputs
from freshet_serving.processor.kernels.pool import INPUT_FIELDS, SPLITS, STRIDE, VALUES


def test_inputs_that_do_not_fit_are_measured_and_not_written():
    values, splits, floats = np.arange(10, 16), np.array([1, 5]), np.float32([1.5, 2.5, 3.5])
    inputs = np.zeros((2, INPUT_FIELDS), np.int64)
    inputs[0, [VALUES, SPLITS]] = values.ctypes.data, splits.ctypes.data
    inputs[1, [VALUES, STRIDE]] = floats.ctypes.data, 3
    sources = np.array([[0, 8], [1, 4]])
    whole = np.zeros(64, np.uint8)
    assert write_inputs(sources, inputs, whole) == 64
    words = whole.view(np.int64)
    assert words[:6].tolist() == [4, 11, 12, 13, 14, 3]
    assert whole[48:60].view(np.float32).tolist() == floats.tolist()
    for room in range(64):
        out = np.zeros(64, np.uint8)
        assert write_inputs(sources, inputs, out[:room]) == 64
        assert not out[room:].any()
