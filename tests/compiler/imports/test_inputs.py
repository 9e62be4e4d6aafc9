import pytest

from freshet_serving.compiler.frameworks import tf
from tests.compiler.imports.foreign import refused, saved, variable


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (tf.TensorSpec([3], name="flag"), "a first dimension of rows, got shape [3]"),
        (tf.TensorSpec([None, None], name="matrix"), "floats of a fixed number of columns"),
        (tf.TensorSpec([None, None, 2], tf.int64, name="cube"), "a fixed number of columns"),
        (tf.TensorSpec([None], tf.complex64, name="wave"), "expected strings or numbers"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_inputs_that_requests_cannot_send_are_refused_by_name(tmp_path, spec, message):
    class Model(tf.Module):
        def __init__(self):
            self.bias = variable(1, 1, name="bias")

        @tf.function(input_signature=[tf.TensorSpec([None], name="value"), spec])
        def score(self, value, other):
            return {"s": value + self.bias + 0.0 * tf.reduce_sum(tf.cast(tf.math.real(other), tf.float32))}

    module = Model()
    assert message in refused(saved(module, tmp_path / "model", module.score))
