"""A function of tensors, called with what stays where it is read."""

import gc

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="needs the xla extra")

from freshet_serving.compiler.backends.xla_function import ArraySpec, XlaFunction, device_put
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.errors import BadInput, FreshetError


def step(x, total, times):
    return [total + tf.reduce_sum(x) * OUTSIDE, times + 1, tf.cast(x, tf.float32) * 2]


OUTSIDE = tf.constant(3.0)


@pytest.fixture(scope="module")
def function():
    return XlaFunction(step, [ArraySpec((2, 3)), ArraySpec(()), ArraySpec((), np.dtype(np.int64))], threads=1)


def test_results_can_be_arguments_and_buffers_are_read_each_call(function):
    x, argument = function.io_buffer((2, 3))
    state = [device_put(np.float32(1)[()].reshape(()), 1), device_put(np.array(0, np.int64), 1)]
    for value in (1.0, 10.0):
        x[...] = value
        *state, doubled = function([argument, *state])
        np.testing.assert_array_equal(doubled.view(), x * 2)
    assert float(state[0].view()) == 1 + 6 * 3 + 60 * 3
    assert (int(state[1].view()), state[1].spec.dtype) == (2, np.int64)


def test_inputs_are_copied_and_returned_results_stay_unchanged(function):
    x, argument = function.io_buffer((2, 3))
    x[...] = 1
    given = np.zeros((), np.float32)
    held = device_put(given, 1)
    given[...] = 100
    total, _, doubled = function([argument, held, device_put(np.array(0, np.int64), 1)])
    view = doubled.view()
    x[...] = 7
    function([argument, held, device_put(np.array(0, np.int64), 1)])
    gc.collect()
    assert float(total.view()) == 18
    assert (view == 2).all()
    assert not view.flags.writeable


def test_function_that_xla_cannot_compile_is_refused_at_creation():
    with pytest.raises(BadInput, match="expected a network that XLA can compile"):
        XlaFunction(lambda x: [tf.strings.length(tf.strings.as_string(x))], [ArraySpec((2,))], threads=1)


def test_mismatched_arguments_are_refused(function):
    with pytest.raises(FreshetError, match="xla failed"):
        function([device_put(np.zeros((2, 3), np.float32), 1)])
