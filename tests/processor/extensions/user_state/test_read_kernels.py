"""Kernels over a request's inputs: nothing is written beyond the end of what they are given."""

import numpy as np

from freshet_serving.processor.extensions.user_state.read_kernels import draw_of, write_inputs
from freshet_serving.processor.kernels.pool import BY_ENTITY, FILLED_BY, INPUT_FIELDS, SPLITS, STRIDE, VALUES

SOURCES = np.array([[0, 8], [1, 4]])


def inputs_over(values, splits, floats):
    """Inputs of a list and of floats, whose memory must outlive them."""
    inputs = np.zeros((2, INPUT_FIELDS), np.int64)
    inputs[0, [VALUES, SPLITS]] = values.ctypes.data, splits.ctypes.data
    inputs[1, [VALUES, STRIDE]] = floats.ctypes.data, len(floats)
    return inputs


def test_draws_spread_evenly_and_read_each_value_and_nothing_else():
    values, splits, floats = np.arange(10, 16), np.array([1, 5]), np.float32([1.5, 2.5, 3.5])
    inputs = inputs_over(values, splits, floats)
    drawn = draw_of(SOURCES, inputs)
    assert drawn >= 0
    values[[0, 5]] = 99
    assert draw_of(SOURCES, inputs) == drawn
    draws = [drawn]
    for n in range(1000):
        values[1 + n % 4] += 1
        floats[n % 3] += 1
        draws.append(draw_of(SOURCES, inputs))
    assert len(set(draws)) == len(draws)
    assert min(draws) >= 0
    assert 430 < sum(draw & 1 for draw in draws) < 570
    inputs[1, FILLED_BY] = BY_ENTITY
    assert draw_of(SOURCES, inputs) == -1


def test_inputs_that_do_not_fit_are_measured_and_not_written():
    values, splits, floats = np.arange(10, 16), np.array([1, 5]), np.float32([1.5, 2.5, 3.5])
    inputs, sources = inputs_over(values, splits, floats), SOURCES
    whole = np.zeros(64, np.uint8)
    assert write_inputs(sources, inputs, whole) == 64
    words = whole.view(np.int64)
    assert words[:6].tolist() == [4, 11, 12, 13, 14, 3]
    assert whole[48:60].view(np.float32).tolist() == floats.tolist()
    for room in range(64):
        out = np.zeros(64, np.uint8)
        assert write_inputs(sources, inputs, out[:room]) == 64
        assert not out[room:].any()
