"""A package is compared with the framework's numbers, whichever framework it is."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx", reason="importing needs the train extra")

from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.imports.feeds import DENSE, FeedSpec
from freshet_serving.compiler.imports.onnx_native.staged_graph import passing_model
from freshet_serving.compiler.imports.package_draft import PackageDraft
from freshet_serving.compiler.imports.package_proof import TriedSample, check_rows_alone, prove
from freshet_serving.compiler.imports.precision import Precision
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import FLOATS, PIECES, Feature, Output, TableEntry
from freshet_serving.processor.tables.table import packed

ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)
IDS = np.array([3, 0, 2])
PRICES = np.ones((3, PIECES), np.float32)


class Tried:
    """A model whose numbers are given."""

    whose, precision = "the model's", Precision()

    def __init__(self, outputs):
        self.outputs = outputs

    def tried(self):
        yield TriedSample({"item": IDS, "price": PRICES}, len(IDS), self.outputs)

    def computed(self, graph, inputs):
        return graph.run(inputs)


@pytest.fixture
def draft():
    """One lookup, and one input that is passed on."""
    outputs = [Output("price", PIECES), Output("rows", 2)]
    graph = OnnxDenseGraph(passing_model({"rows": 2, "price": PIECES}), 2 + PIECES, outputs, {}, {})
    return PackageDraft(
        inputs=[FeedSpec("item", DENSE, np.dtype(np.int64)), FeedSpec("price", DENSE, np.dtype(np.float32), (PIECES,))],
        features=[
            Feature("item", "id", "item", table="items", width=2),
            Feature("price", FLOATS, "price", 0, offset=2, width=PIECES),
        ],
        tables={"items": (TableEntry("items", 2, 4), packed(np.arange(4), ROWS))},
        outputs=outputs,
        graph=graph,
        width=2 + PIECES,
        report={},
    )


def test_samples_are_returned_as_the_dense_graph_gets_them(draft):
    examples = prove(Tried({"rows": ROWS[IDS], "price": PRICES}), draft, draft.manifest("m", 1))
    np.testing.assert_array_equal(examples["x"], np.hstack([ROWS[IDS], PRICES]))


def test_difference_is_named_with_its_size_and_whose_numbers_they_are(draft):
    with pytest.raises(BadInput, match=r"output 'rows' differs by 0\.5 from the model's$"):
        prove(Tried({"rows": ROWS[IDS] + np.float32(0.5)}), draft, draft.manifest("m", 1))


def test_whole_numbers_must_agree_exactly(draft):
    exact = replace(draft, outputs=[replace(draft.outputs[0], dims=[1], dtype="int64", exact=True), draft.outputs[1]])
    whole = 1 + (1 << 22) + (1 << 44)
    prove(Tried({"price": np.full((3, 1), whole)}), exact, exact.manifest("m", 1))
    with pytest.raises(BadInput, match="output 'price' differs from the model's"):
        prove(Tried({"price": np.full((3, 1), whole + 1)}), exact, exact.manifest("m", 1))


def test_rows_that_depend_on_others_are_refused_with_advice():
    same = {"y": np.ones((2, 1))}
    check_rows_alone(Precision(), same, same)
    with pytest.raises(BadInput, match=r"output 'y' of a row depends on the other rows: .* batched: quantise it"):
        check_rows_alone(Precision(), same, {"y": np.zeros((2, 1))}, ": quantise it")
