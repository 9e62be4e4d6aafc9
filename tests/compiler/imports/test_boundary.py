"""The cut as pairs of a sender and a receiver."""

from dataclasses import replace

from freshet_serving.compiler.imports.boundary import Boundary
from freshet_serving.processor.package.manifest_entries import Feature, Input, StageEntry
from tests.support.packages import manifest


def test_every_column_of_the_dense_input_has_one_sender():
    boundary = Boundary.of(manifest())
    ends = [pair.columns for pair in boundary.pairs]
    assert [first for first, _ in ends] == [0, *(last for _, last in ends[:-1])]
    assert ends[-1][1] == boundary.width
    assert boundary.outputs == {"score": 1}
    assert [(pair.tensor, pair.sender) for pair in boundary.pairs[:3]] == [
        ("user", "table user"),
        ("tags", "table tag, mean of the row's strings"),
        ("f0", "the request"),
    ]


def test_pair_is_written_as_in_reports():
    assert Boundary.of(manifest()).pairs[1].to_json() == {
        "tensor": "tags",
        "dtype": "float32",
        "shape": [-1, 4],
        "columns": [4, 8],
        "sender": "table tag, mean of the row's strings",
        "receiver": "dense graph",
    }


def test_stage_outputs_are_sent_by_the_stage():
    m = manifest()
    staged = replace(
        m,
        stage=StageEntry("tensorflow", "stage/graph.pb", [Input("s", "float32", 2)]),
        features=[*m.features, Feature("s", "floats", "s", column=0, offset=m.width, width=2)],
        width=m.width + 2,
    )
    assert Boundary.of(staged).pairs[-1].sender == "the stage"
