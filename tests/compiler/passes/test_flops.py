"""What a row of a graph costs, and how many rows prove that two forms of it compute the same."""

import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes import flops
from freshet_serving.compiler.passes.flops import LEAST_PROOF_ROWS, PROOF_FLOPS, dense_flops, proof_rows
from tests.compiler.passes.graphs import dense


@pytest.mark.parametrize(
    ("row_flops", "rows"),
    [(0, 64), (1000, 64), (PROOF_FLOPS // 64, 64), (PROOF_FLOPS // 10, 10), (PROOF_FLOPS, LEAST_PROOF_ROWS)],
)
def test_graphs_of_much_work_are_proven_on_fewer_rows(row_flops, rows, monkeypatch):
    monkeypatch.setattr(flops, "dense_flops", lambda dense: row_flops)
    assert proof_rows("dense", 64) == rows


@pytest.mark.parametrize(
    ("convolve", "kernel", "channels", "row_flops"),
    [
        # Of each of 4 * 4 places, so many products and sums for each channel.
        (tf.nn.conv2d, (3, 3, 2, 5), 5, 16 * 5 * 2 * 3 * 3 * 2),
        (tf.nn.depthwise_conv2d, (3, 3, 2, 2), 4, 16 * 4 * 2 * 3 * 3),
    ],
    ids=["all channels", "depthwise"],
)
def test_convolution_counts_what_its_kernel_multiplies(convolve, kernel, channels, row_flops):
    def function(x, weights):
        found = convolve(tf.reshape(x, [-1, 4, 4, 2]), weights["kernel"], [1, 1, 1, 1], "SAME")
        return tf.reshape(found, [-1, 16 * channels])

    assert dense_flops(dense(function, 32, kernel=kernel)) == row_flops
