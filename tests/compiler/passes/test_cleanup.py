import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes import cleanup
from tests.compiler.passes.graphs import dense, ops, passed


def cleaned(function, width=6, **shapes):
    after, found, nodes, _ = passed(cleanup.clean, dense(function, width, **shapes))
    return ops(after), found, nodes


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x, w: tf.identity(tf.stop_gradient(tf.nn.relu(x))), ["Relu"]),
        (lambda x, w: tf.nn.relu(tf.cast(tf.cast(x, tf.float64), tf.float32)), ["Relu"]),
        (lambda x, w: tf.reshape(tf.reshape(tf.nn.relu(x), (-1, 2, 3)), (-1, 6)), ["Relu"]),
        (lambda x, w: tf.squeeze(tf.expand_dims(tf.nn.relu(x), 1), 1), ["Relu"]),
        (lambda x, w: tf.transpose(tf.transpose(tf.nn.relu(x), (1, 0)), (1, 0)), ["Relu"]),
        (lambda x, w: tf.nn.relu(x * 1.0 + 0.0), ["Relu"]),
        (lambda x, w: tf.nn.relu(x[:, :]), ["Relu"]),
        (lambda x, w: x[:, 1:5][:, 1:3], ["StridedSlice"]),
        (lambda x, w: tf.concat([x[:, :2], x[:, 2:4]], 1), ["StridedSlice"]),
        (lambda x, w: tf.nn.relu(tf.concat([x[:, :2], x[:, 2:]], 1)), ["Relu"]),
        (lambda x, w: tf.concat([tf.nn.relu(x), tf.abs(x)], 1)[:, :6], ["Relu"]),
        (lambda x, w: tf.concat([tf.nn.relu(x), tf.abs(x)], 1)[:, 7:9], ["Abs", "StridedSlice"]),
        (lambda x, w: tf.concat([tf.concat([tf.abs(x), tf.exp(x)], 1), x], 1), ["Abs", "Exp", "ConcatV2"]),
        (lambda x, w: tf.exp(x) + tf.exp(x), ["Exp", "AddV2"]),
    ],
)
def test_useless_data_movement_is_removed(function, left):
    found_ops, found, nodes = cleaned(function)

    assert found_ops == left
    assert found > 0
    assert nodes > 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: tf.cast(tf.cast(x, tf.float16), tf.float32),
        lambda x, w: tf.cast(tf.cast(x, tf.int32), tf.float32),
        lambda x, w: x * 2.0,
        lambda x, w: 0.0 - x,
        lambda x, w: 1.0 / x,
        lambda x, w: x[:, ::-1],
        lambda x, w: tf.transpose(tf.reshape(x, (-1, 2, 3)), (0, 2, 1))[:, :, 0],
        lambda x, w: tf.concat([x[:, 2:4], x[:, :2]], 1),
        lambda x, w: x[:, :1] + 0.0 * x,
    ],
)
def test_value_changing_nodes_stay(function):
    _, found, nodes = cleaned(function)

    assert (found, nodes) == (0, 0)


def test_concatenation_needed_as_a_whole_is_not_split():
    def whole(x, w):
        both = tf.concat([tf.abs(x), tf.exp(x)], 1)
        return {"a": both[:, 3:9] * 2.0, "b": both @ w["m"]}

    found_ops, _, _ = cleaned(whole, m=(12, 1))

    assert found_ops.count("ConcatV2") == 1


def test_nodes_with_state_are_not_merged():
    graph = dense(lambda x, w: x + 0.0 * (tf.random.uniform((6,)) - tf.random.uniform((6,))), 6)

    after, _, _, _ = passed(cleanup.clean, graph)

    assert [node.op for node in after.nodes.values()].count("RandomUniform") == 2
