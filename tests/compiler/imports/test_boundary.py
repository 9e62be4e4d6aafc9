"""The cut as pairs of a sender and a receiver."""

from dataclasses import replace

from freshet_serving.compiler.imports.boundary import boundary_of
from freshet_serving.processor.package.manifest_entries import Feature, Input, StageEntry
from tests.support.packages import manifest


def test_every_column_of_the_dense_input_has_one_sender():
    pairs = boundary_of(manifest())
    ends = [pair.columns for pair in pairs]
    assert [first for first, _ in ends] == [0, *(last for _, last in ends[:-1])]
    assert ends[-1][1] == manifest().width
    assert [(pair.tensor, pair.sender) for pair in pairs[:3]] == [
        ("user", "table user"),
        ("tags", "table tag, mean of the row's strings"),
        ("f0", "the request"),
    ]


def test_pair_is_written_as_in_reports():
    assert boundary_of(manifest())[1].to_json() == {
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
    assert boundary_of(staged)[-1].sender == "the stage"
