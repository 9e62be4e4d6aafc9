"""Manifests of format 1: read as those of format 2, and written back to the byte."""

import json
from dataclasses import replace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import FORMAT_1, SCORE, USER, WHOLE, GraphInput, Manifest, side_columns
from freshet_serving.processor.package.subgraphs import subgraphs
from tests.processor.package.test_subgraphs import manifest


def document(user_width=130, executables=(("whole", 1), ("user", 1), ("candidate", 64), ("candidate", 256))):
    """A manifest as the last release of format 1 wrote it."""
    said = json.loads(manifest((), []).to_json())
    del said["graphs"]
    said["format"] = FORMAT_1
    said["files"] = {f"{role}{bucket}": {"nbytes": 1, "crc32": "0"} for role, bucket in executables}
    entry = dict(backend="onnxruntime", target="cpu", source="s", weights=[], precision="float32", library="")
    entry |= dict(features=[], sha256="", frozen="", origin="", cost_us=0.0, error=0.0, measured_on="")
    said["executables"] = [
        {**entry, "bucket": bucket, "file": f"{role}{bucket}", "role": role, "max_error": 0.0, "rows": ""}
        for role, bucket in executables
    ]
    said["user_width"] = user_width
    return said


def read(**changes):
    return Manifest.from_json(json.dumps(document(**changes)).encode())


def test_roles_become_subgraphs_with_the_users_vector_as_an_input():
    found = read()
    assert [e.subgraph for e in found.executables] == [WHOLE, USER, SCORE, SCORE]
    assert subgraphs(found)[SCORE].inputs == [
        GraphInput("x", ["rows", 2], "features", ["i", "c"]),
        GraphInput("u", ["requests", 130], "user"),
    ]
    assert side_columns(found) == 3


def test_undivided_version_becomes_one_subgraph_without_side_columns():
    found = read(user_width=0, executables=(("whole", 1), ("whole", 16)))
    assert (found.graphs, side_columns(found)) == ({}, 0)
    assert {e.subgraph for e in found.executables} == {SCORE}


@pytest.mark.parametrize(("user_width", "columns"), [(1, 1), (64, 1), (65, 2), (1041, 17)])
def test_smallest_bucket_holds_the_whole_vector(user_width, columns):
    assert side_columns(read(user_width=user_width)) == columns


def test_versions_of_format_2_have_no_side_columns():
    assert side_columns(manifest()) == 0


@pytest.mark.parametrize("changes", [{}, {"user_width": 0, "executables": (("whole", 1),)}], ids=["divided", "plain"])
def test_manifest_is_written_back_to_the_byte(changes):
    text = read(**changes).to_json()
    assert json.loads(text) == document(**changes)
    assert list(json.loads(text)) == [k if k != "graphs" else "user_width" for k in json.loads(manifest().to_json())]
    assert Manifest.from_json(text).to_json() == text


def test_recompiled_version_is_written_in_format_2():
    assert json.loads(replace(read(), format="freshet/2").to_json())["format"] == "freshet/2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_width": 0}, "user_width: 0 requires executables of no parts"),
        ({"executables": (("whole", 1),)}, "user_width: 130 requires executables of both parts"),
        ({"executables": (("user", 1), ("whole", 1))}, "executables of both parts"),
        ({"executables": (("head", 1),)}, "role: expected one of whole, user, candidate, got 'head'"),
        ({"user_width": 1 << 17}, "user_width: expected 0 to 65536"),
        ({"user_width": True}, "user_width: expected 0 to 65536"),
    ],
)
def test_contradictions_of_format_1_are_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        read(**changes)


@pytest.mark.parametrize("key", ["graphs", "subgraph"])
def test_keys_of_format_2_are_refused_in_format_1(key):
    said = document()
    (said if key == "graphs" else said["executables"][0])[key] = {} if key == "graphs" else "score"
    with pytest.raises(BadInput, match=f"unknown key '{key}'"):
        Manifest.from_json(json.dumps(said).encode())
