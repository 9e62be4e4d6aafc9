"""The operators that models are made of, each on an input and inside the network: none needs a stage."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.embedding_lookups import Lookup
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importer import Importer
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from tests.compiler.imports.foreign import saved, variable
from tests.compiler.imports.operators import OPERATORS
from tests.compiler.imports.replies import replies

pytestmark = pytest.mark.long

INPUTS = [tf.TensorSpec([None], tf.int64, name="item"), tf.TensorSpec([None, 6], tf.float32, name="values")]
ROWS = 16
# Of so many one model is made: the time an import takes grows faster than its graph.
MANY = 14


class Swept(tf.Module):
    """A lookup and floats into a layer; of each operator its results on what it is given: the floats (on an input) or
    the layer (inside)."""

    def __init__(self, operators, places):
        self.rows, self.layer = variable(1, 20, 6, name="rows"), variable(2, 12, 6, name="layer")
        self.operators, self.places = operators, places

    @tf.function(input_signature=INPUTS, autograph=False)
    def score(self, item, values):
        inside = tf.concat([tf.gather(self.rows, item), values], 1) @ self.layer
        tensors = {"input": values, "inside": inside}
        return {
            # What is made of a row, of whatever rank, is [n, columns] for the reply.
            f"{name}.{place}": tf.reshape(operator(tensors[place]), [tf.shape(values)[0], -1])
            for name, operator in self.operators.items()
            for place in self.places
        }


def test_input_and_inner_operators_need_no_stage(tmp_path):
    """The cut of all of them at once: each node of the graph is either the lookup or dense."""
    module = Swept(OPERATORS, ("input", "inside"))
    with open_source(saved(module, tmp_path / "model", module.score)) as source:
        importer = Importer(source)
        cut = importer.cutter.cut()

    assert len(OPERATORS) >= 150
    assert list(cut.reasons.values()) == ["looks up rows"]
    assert [isinstance(port.how, Lookup) for port in cut.ports] == [False, True]


@pytest.mark.parametrize("first", range(0, len(OPERATORS), MANY))
def test_operators_score_like_tensorflow(first, tmp_path):
    """Inside, where x is a tensor of the network; on an input it is the same dense graph with x handed over."""
    operators = dict(list(OPERATORS.items())[first : first + MANY])
    module = Swept(operators, ("inside",))
    source = saved(module, tmp_path / "model", module.score)
    imported = import_model(source, tmp_path / "repository", "swept", options=ImportOptions(buckets=(ROWS,)))
    random = np.random.default_rng(1)
    item, values = random.integers(0, 20, ROWS), random.standard_normal((ROWS, 6)).astype(np.float32)

    assert imported.report["notes"] == []
    assert imported.report["sides"]["stage"] == {}
    got = replies(tmp_path / "repository", "swept", {"item": item, "values": values})
    for name, wanted in module.score(item, values).items():
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-5, err_msg=name)
