"""Signatures of a version, and labels of outputs of strings, are checked, kept in the manifest and looked up."""

import dataclasses

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import CLASSIFY, File, Manifest, Output, ServingSignature
from freshet_serving.processor.package.replies import MAX_LABELS, PIECE_BITS, joined, labelled, labels_of, texts
from tests.support.packages import manifest as package_manifest

FILES = {entry.file: File(3, "00000000") for entry in package_manifest().executables}
GOOD = dataclasses.replace(package_manifest(), files=FILES)
OUTPUTS = [Output("y"), Output("name", dims=[], dtype="string", labels=["a", "b"])]
SIGNATURES = [
    ServingSignature("serving_default", outputs={"y": "y"}),
    ServingSignature("classify", CLASSIFY, {"scores": "y", "classes": "name"}),
]


def test_signatures_and_labels_are_read_back_from_the_manifest():
    manifest = dataclasses.replace(GOOD, outputs=OUTPUTS, signatures=SIGNATURES, graphs={})
    again = Manifest.from_json(manifest.to_json())
    assert (again.outputs, again.signatures) == (OUTPUTS, SIGNATURES)
    assert list(again.replies()) == list(again.replies("serving_default")) == ["y"]
    assert {given: o.name for given, o in again.replies("classify").items()} == {"scores": "y", "classes": "name"}
    with pytest.raises(BadInput, match="'no' not found in signature def, expected 'serving_default, classify'"):
        again.replies("no")


def test_manifests_of_one_signature_have_no_new_keys():
    text = GOOD.to_json()
    assert b'"signatures"' not in text
    assert b'"labels"' not in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"signatures": SIGNATURES[1:]}, "manifest.signatures: expected 'serving_default' and others"),
        ({"signatures": [*SIGNATURES, SIGNATURES[0]]}, "each once"),
        ({"signatures": [dataclasses.replace(SIGNATURES[0], outputs={"y": "z"})]}, "expected some of y, name, got 'z'"),
        ({"signatures": [dataclasses.replace(SIGNATURES[0], outputs={})]}, "got none"),
        ({"signatures": [dataclasses.replace(SIGNATURES[0], method="score")]}, r"\.method: expected .*got 'score'"),
        ({"outputs": [Output("y", dtype="string")]}, "expected labels for type string and for no other"),
        ({"outputs": [Output("y", labels=["a"])]}, "expected labels for type string and for no other"),
    ],
)
def test_contradicting_signatures_and_labels_are_refused(changed, message):
    with pytest.raises(BadInput, match=message):
        dataclasses.replace(GOOD, graphs={}, **({"outputs": OUTPUTS} | changed)).to_json()


def test_positions_outside_the_labels_are_empty_strings():
    found = labelled(np.array([[0.0, 1.0], [-1.0, 2.0], [np.nan, 1e9]], np.float32), texts(["a", "b"]))
    assert found.tolist() == [["a", "b"], ["", ""], ["", ""]]


def test_labels_are_a_bounded_list_of_utf8():
    assert labels_of(np.array([b"a", "\u00e9"], object)) == ["a", "\u00e9"]
    for values in (["a"] * (MAX_LABELS + 1), [b"\xff"], [], [["a"]]):
        assert labels_of(np.array(values, object)) is None


def test_own_names_and_exact_outputs_are_read_back_from_the_manifest():
    exact = Output("ids", 6, dims=[2], dtype="int64", exact=True)
    own_names = {"user:id": GOOD.inputs[0].name}
    manifest = dataclasses.replace(GOOD, outputs=[exact], graphs={}, own_names=own_names)
    again = Manifest.from_json(manifest.to_json())
    assert (again.outputs, again.own_names) == ([exact], own_names)
    assert b'"own_names"' not in GOOD.to_json()
    assert b'"exact"' not in GOOD.to_json()
    for changed in ({"own_names": {"user:id": "no"}}, {"own_names": {GOOD.inputs[0].name: GOOD.inputs[0].name}}):
        with pytest.raises(BadInput, match=r"own_names.*expected another name of an input"):
            dataclasses.replace(manifest, **changed).to_json()
    for odd in (Output("ids", 6, dtype="int64", exact=True), Output("ids", 3, dims=[], dtype="float32", exact=True)):
        with pytest.raises(BadInput, match="exact: expected false for this type and shape"):
            dataclasses.replace(manifest, outputs=[odd]).to_json()


def test_pieces_are_joined_to_the_numbers_that_they_are_of():
    numbers = np.array([[0, 2**24 + 1], [2**63 - 1, -(2**63)], [-1, -(2**24) - 1]])
    low, above = numbers % (1 << PIECE_BITS), numbers >> PIECE_BITS
    pieces = np.hstack([low, above % (1 << PIECE_BITS), above >> PIECE_BITS]).astype(np.float32)
    np.testing.assert_array_equal(joined(pieces), numbers)


def test_positions_outside_the_labels_get_the_unknown_one():
    positions = np.array([0.0, 7.0, -1.0, np.nan], np.float32)
    assert labelled(positions, texts(["a", "b"]), "none").tolist() == ["a", "none", "none", "none"]
