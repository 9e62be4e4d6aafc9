from dataclasses import replace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest import ExecutableEntry, Feature, File, Input, Manifest, Output
from freshet_serving.processor.package.roles import columns, division, user_column_count, user_features


def feature(name, offset, side, source=None, column=-1):
    return Feature(name, "float", source or name, column=column, offset=offset, side=side)


FEATURES = [feature("b", 1, "user"), feature("a", 0, "user"), feature("i", 2, "item"), feature("c", 3, "context")]


def executable(role, bucket):
    return ExecutableEntry("onnxruntime", "cpu", bucket, f"{role}{bucket}", "source", [], role=role)


def manifest(user_width=5, executables=None):
    if executables is None:
        executables = [executable("whole", 1), executable("user", 1), executable("candidate", 64)]
        executables.append(executable("candidate", 256))
    return Manifest(
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
        user_width=user_width,
    )


def test_the_users_features_are_those_of_inputs_that_are_the_users_alone():
    shared = [feature("u", 4, "user", "both", 0), feature("v", 5, "item", "both", 1)]

    mine = user_features(FEATURES + shared)

    assert [f.name for f in mine] == ["a", "b"]
    assert columns(mine) == [0, 1]
    assert columns([Feature("e", "id", "e", table="t", offset=8, width=3)]) == [8, 9, 10]


def test_the_lane_holds_all_that_is_lent_in_the_smallest_bucket():
    assert [user_column_count(n, 64) for n in (1, 64, 65, 1041)] == [1, 1, 2, 17]


def test_a_division_says_what_each_part_reads_and_writes():
    found = division(manifest(130))

    assert ([f.name for f in found.user.features], found.user.width, found.user.outputs) == (["a", "b"], 2, {"u": 130})
    assert [f.name for f in found.candidate.features] == ["i", "c"]
    assert (found.candidate.width, found.candidate.outputs) == (2 + 3, {"score": 1, "wide": 3})
    assert (found.rows, found.user_columns) == (64, 3)


def test_a_graph_that_is_not_divided_has_no_division():
    assert division(manifest(0, [executable("whole", 1)])) is None


def test_manifests_that_divide_by_halves_are_refused():
    read = Manifest.from_json(manifest().to_json())

    assert read == manifest()
    assert Manifest.from_json(manifest().to_json().replace(b'"role": "whole"', b'"role":"whole"')) == manifest()
    for wrong, message in (
        (manifest(0), "user_width: 0 requires executables of no parts"),
        (manifest(5, [executable("whole", 1)]), "user_width: 5 requires executables of both parts"),
        (manifest(5, [executable("user", 1), executable("whole", 1)]), "executables of both parts"),
        (manifest(5, [executable("head", 1)]), "role: expected one of whole, user, candidate, got 'head'"),
        (replace(manifest(), user_width=1 << 17), "user_width: expected 0 to 65536"),
    ):
        with pytest.raises(BadInput, match=message):
            wrong.to_json()
