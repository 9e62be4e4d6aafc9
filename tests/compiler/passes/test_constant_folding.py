import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes import constant_folding
from tests.compiler.passes.graphs import dense, ops, passed


def test_constant_expressions_are_folded():
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph = dense(lambda x, w: x @ tf.transpose(tf.constant(table) * 2.0) + tf.sqrt(tf.constant(4.0)), 3)

    after, found, _, _ = passed(constant_folding.fold, graph)

    assert found == 2
    assert set(ops(after)) == {"MatMul", "AddV2"}
    assert all(after.nodes[n].op in ("Const", "Placeholder") for n in after.nodes if n not in after.varying)


def test_known_shapes_become_constants_and_the_rest_minus_one():
    def shaped(x, w):
        n, columns = tf.shape(x)[0], tf.shape(x)[1]
        return tf.reshape(tf.reshape(x, tf.stack([n, columns // 3, 3])), (n, 6)) * tf.cast(columns, tf.float32)

    after, found, nodes, _ = passed(constant_folding.fold, dense(shaped, 6))

    assert set(ops(after)) == {"Reshape", "Mul"}
    assert found >= 3
    assert nodes > 0


@pytest.mark.parametrize(
    "sliced",
    [
        lambda shape: shape[1],
        lambda shape: shape[-1],
        lambda shape: shape[1:],
        lambda shape: shape[1:2],
        lambda shape: shape[-1:],
        lambda shape: shape[::-1][:1],
        lambda shape: shape[1][tf.newaxis, tf.newaxis],
        lambda shape: shape[tf.newaxis, 1:],
        lambda shape: shape[..., 1:],
        lambda shape: shape[1:, tf.newaxis],
    ],
)
def test_shape_slice_keeps_its_value_and_rank(sliced):
    def shaped(x, w):
        known = sliced(tf.shape(x))
        # As many ones as the slice has dimensions.
        return x * tf.cast(tf.reduce_sum(known), tf.float32) + tf.cast(tf.rank(tf.expand_dims(known, 0)), tf.float32)

    after, _, _, _ = passed(constant_folding.fold, dense(shaped, 6))

    assert "AddV2" in ops(after)


def test_weight_dependent_or_random_nodes_are_not_folded():
    graph = dense(lambda x, w: x @ (w["a"] * 2.0) + 0.0 * tf.random.uniform((2,)), 3, a=(3, 2))

    after, found, _, _ = passed(constant_folding.fold, graph)

    assert "RandomUniform" in {node.op for node in after.nodes.values()}
    assert found == 0


def test_large_constant_is_not_folded():
    graph = dense(lambda x, w: x @ tf.ones((2, constant_folding.MAX_NBYTES))[:, :3], 2)

    after, _, _, _ = passed(constant_folding.fold, graph)

    assert max(node.value.nbytes for node in after.nodes.values() if node.value is not None) < 100
