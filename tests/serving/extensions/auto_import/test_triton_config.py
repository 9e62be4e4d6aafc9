"""Triton's config.pbtxt: read for names, the rest named as passed over, whatever the text is like."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import ServingSignature
from freshet_serving.serving.extensions.auto_import.triton_config import MAX_DEPTH, parse, remarks
from tests.serving.fakes import PACKED

TEXT = """
# A comment with "quotes" and {braces
name: "ctr"
platform: 'onnxruntime_onnx'
max_batch_size: 8
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ 3 ] },
  { name: "floats", data_type: TYPE_FP32, dims: 2 }
]
output { name: "score" data_type: TYPE_FP32 dims: [ 1 ] }
version_policy: { latest { num_versions: 2 } }
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters: { key: "a" value: { string_value: "b" } }
parameters: { key: "c" value: { string_value: "d" } }
"""


def test_text_is_parsed_as_single_and_repeated_fields():
    fields = parse(TEXT)
    assert fields["name"] == ["ctr"]
    assert [i["name"] for i in fields["input"]] == [["ids"], ["floats"]]
    assert fields["input"][0]["dims"] == ["3"]
    assert fields["version_policy"] == [{"latest": [{"num_versions": ["2"]}]}]
    assert len(fields["parameters"]) == 2


def test_ignored_fields_are_listed_in_one_line_with_alternatives():
    ((wrong, line),) = remarks(TEXT, PACKED)
    assert not wrong
    assert line.startswith("config.pbtxt is only checked for names; ignored: max_batch_size (")
    assert "version_policy (versions = " in line
    assert "instance_group (set the server's sessions and workers)" in line


def test_names_missing_from_the_model_are_reported():
    said = remarks(TEXT.replace('"score"', '"OUTPUT0"').replace('"ids"', '"INPUT0"'), PACKED)
    assert [line for wrong, line in said if wrong] == [
        "config.pbtxt: expected inputs of the model, ids, floats, got 'INPUT0'",
        "config.pbtxt: expected outputs of the model, score, got 'OUTPUT0'",
    ]
    assert not any(wrong for wrong, _ in remarks(TEXT.replace('"score"', '"OUTPUT0"'), None))


def test_own_names_of_a_models_signature_are_known():
    signatures = [ServingSignature("serving_default", outputs={"p:click": "score"})]
    manifest = dataclasses.replace(PACKED, own_names={"its:ids": "ids"}, signatures=signatures)
    said = remarks(TEXT.replace('"score"', '"p:click"').replace('"ids"', '"its:ids"'), manifest)
    assert not any(wrong for wrong, _ in said)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("input [ {", "expected '}', got the end"),
        ("input [", "expected ']' after 'input', got the end"),
        ("name:", "expected a value of 'name', got 'the end'"),
        ("}", "expected a field, got '}'"),
        ("a { ] }", "expected a field of 'a', got ']'"),
        # Were each quote looked for to the end, this would take minutes.
        ('a: [ "' + '\\"' * 120_000, "expected quoted text on one line"),
        ("a {" * (MAX_DEPTH + 2), f"expected at most {MAX_DEPTH} levels"),
    ],
)
def test_malformed_text_is_ignored_with_the_reason(text, told):
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert told in str(caught.value)
    ((wrong, line),) = remarks(text, PACKED)
    assert wrong
    assert line.endswith("; the file is ignored")


@given(st.text(max_size=80) | st.text("{}[]<>:,\"'# \nab1", max_size=80))
def test_arbitrary_text_gives_only_remarks(text):
    for _, line in remarks(text, PACKED):
        assert len(line) < 2000
