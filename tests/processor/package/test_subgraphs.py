"""Subgraphs of a manifest: what is derived, what is written, and what contradicts itself."""

from dataclasses import replace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import (
    SCORE,
    USER,
    WHOLE,
    ExecutableEntry,
    Feature,
    File,
    GraphInput,
    Input,
    Manifest,
    Output,
    Subgraph,
    columns,
    divided,
    undivided_name,
    user_features,
)
from freshet_serving.processor.package.subgraphs import GraphOutput, subgraphs


def feature(name, offset, side, source=None, column=-1):
    return Feature(name, "float", source or name, column=column, offset=offset, side=side)


FEATURES = [feature("b", 1, "user"), feature("a", 0, "user"), feature("i", 2, "item"), feature("c", 3, "context")]


def executable(subgraph, bucket):
    return ExecutableEntry("onnxruntime", "cpu", bucket, f"{subgraph}{bucket}", "s", [], subgraph=subgraph)


def manifest(tensors=(("u0", 5), ("u1", 2)), executables=None):
    """A version that is divided, if there are tensors."""
    if executables is None:
        names = [(WHOLE, 1), (USER, 1), (SCORE, 64), (SCORE, 256)] if tensors else [(SCORE, 1)]
        executables = [executable(*name) for name in names]
    made = Manifest(
        model="m",
        version=1,
        arch="test",
        created_at=0.0,
        inputs=[Input(f.name, "float32") for f in FEATURES],
        features=FEATURES,
        tables=[],
        outputs=[Output("score"), Output("wide", 3)],
        width=4,
        dense={},
        files={e.file: File(1, "0") for e in executables},
        executables=executables,
    )
    return replace(made, graphs=divided(made, tensors)) if tensors else made


def test_features_of_mixed_inputs_are_not_the_users():
    shared = [feature("u", 4, "user", "both", 0), feature("v", 5, "item", "both", 1)]
    mine = user_features(FEATURES + shared)
    assert [f.name for f in mine] == ["a", "b"]
    assert columns(mine) == [0, 1]
    assert columns([Feature("e", "id", "e", table="t", offset=8, width=3)]) == [8, 9, 10]


def test_undivided_version_has_one_subgraph_of_all_features():
    scores = [GraphOutput("score", ["rows", 1]), GraphOutput("wide", ["rows", 3])]
    whole = Subgraph([GraphInput("x", ["rows", 4], "features", ["a", "b", "i", "c"])], scores)
    assert subgraphs(manifest(())) == {SCORE: whole}
    assert undivided_name(manifest(())) == SCORE


def test_divided_version_lends_the_users_tensors_by_name():
    graphs = subgraphs(manifest())
    assert graphs[USER].inputs == [GraphInput("x", ["requests", 2], "features", ["a", "b"])]
    assert graphs[USER].outputs == [GraphOutput("u0", ["requests", 5]), GraphOutput("u1", ["requests", 2])]
    assert graphs[SCORE].inputs == [
        GraphInput("x", ["rows", 2], "features", ["i", "c"]),
        GraphInput("u0", ["requests", 5], "user"),
        GraphInput("u1", ["requests", 2], "user"),
    ]
    assert undivided_name(manifest()) == WHOLE


@pytest.mark.parametrize("made", [manifest(), manifest(())], ids=["divided", "undivided"])
def test_manifest_survives_writing_and_reading(made):
    assert Manifest.from_json(made.to_json()) == made
    assert b'"format": "freshet/2"' in made.to_json()
    assert b'"graphs"' in made.to_json()


def edited(made, subgraph, **parts):
    return replace(made, graphs={**made.graphs, subgraph: replace(made.graphs[subgraph], **parts)})


def x_with(*features, width=None, dims=None, **more):
    return GraphInput("x", dims or ["rows", width or len(features)], "features", list(features), **more)


LENT = manifest().graphs[SCORE].inputs[1:]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            replace(manifest(), graphs={SCORE: manifest().graphs[SCORE]}),
            "expected 'score', or 'score', 'user' and 'whole'|whole.* is not among",
        ),
        (manifest(executables=[executable(WHOLE, 1)]), "executables: expected some of score, user, whole, got whole"),
        (manifest((), [executable("head", 1)]), "subgraph: 'head' is not among manifest.graphs"),
        (edited(manifest(), SCORE, inputs=[x_with("i", "c")]), "expected the outputs of 'user' as inputs"),
        (edited(manifest(), SCORE, inputs=[x_with("i", "i"), *LENT]), "expected every feature once"),
        (edited(manifest(), SCORE, inputs=[x_with("i", "z"), *LENT]), "'z' is not among manifest.features"),
        (edited(manifest(), SCORE, inputs=[x_with("i", width=9), *LENT]), "dims: expected 1 columns"),
        (edited(manifest(), SCORE, inputs=[x_with("i", dims=["requests", 1]), *LENT]), r"expected \['rows', numbers"),
        (edited(manifest(), SCORE, inputs=[x_with("i", dims=["rows", -1]), *LENT]), r"expected \['rows', numbers"),
        (edited(manifest(), SCORE, inputs=[x_with("i", dtype="int8"), *LENT]), "dtype: expected float32"),
        (edited(manifest(), SCORE, outputs=[GraphOutput("other", ["rows", 1])]), "expected those of manifest.outputs"),
        (edited(manifest(), USER, inputs=[x_with("i", dims=["requests", 1])]), "expected features of the user alone"),
        (edited(manifest(), USER, outputs=[]), "expected inputs and outputs"),
        (edited(manifest(), WHOLE, inputs=[x_with("b", "a", "i", "c")]), "expected 'x' with all features"),
        (manifest((("u0", 1 << 25),)), "expected at most 16777216 numbers"),
    ],
)
def test_contradictory_subgraphs_are_refused(wrong, message):
    with pytest.raises(BadInput, match=message):
        wrong.to_json()


def test_manifest_of_format_2_without_graphs_is_refused():
    text = manifest(()).to_json().replace(b'"graphs"', b'"notes2"')
    with pytest.raises(BadInput, match="unknown key 'notes2'"):
        Manifest.from_json(text)
