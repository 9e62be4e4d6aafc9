"""What every imported package says of itself: names, signatures, outputs, the manifest."""

import pytest

from freshet_serving.compiler.imports.package_draft import (
    declared_output,
    label_of,
    pieces_of,
    served_signatures,
    unused_name,
)
from freshet_serving.processor.package import MAX_RANK, Output, ServingSignature


def test_names_that_a_package_cannot_have_become_plain_ones():
    assert [label_of(name) for name in ("score", "p:click", "x", "/a")] == ["score", "p_click", "x_", "_a"]


def test_taken_names_get_the_first_free_number():
    assert [unused_name("a", taken) for taken in ({}, {"a"}, {"a", "a-2"})] == ["a", "a-2", "a-3"]
    assert unused_name("b" * 128, {"b" * 128}) == "b" * 120 + "-2"


@pytest.mark.parametrize(
    ("labels", "known", "outputs"),
    [
        ({"score": "score"}, (), []),
        ({"p:click": "p_click"}, (), [{"p:click": "p_click"}]),
        (
            {"a": "a", "b": "b"},
            [ServingSignature("one", outputs={"first": "a", "lost": "c"}), ServingSignature("two", outputs={"b": "b"})],
            [{"first": "a"}, {"b": "b"}],
        ),
        ({"a": "a"}, [ServingSignature("one", outputs={"a": "a"}), ServingSignature("two", outputs={"b": "b"})], []),
    ],
)
def test_signatures_are_named_only_if_replies_need_them(labels, known, outputs):
    assert [one.outputs for one in served_signatures(labels, known)] == outputs


@pytest.mark.parametrize(
    ("dims", "dtype", "more", "declared"),
    [
        ((2,), "float64", {}, (None, "float64")),
        ((), "int64", {}, ([], "int64")),
        ((1, 2), "complex64", {}, ([1, 2], "float32")),
        (None, "float32", {}, (None, "float32")),
        ((1,) * MAX_RANK, "float32", {}, (None, "float32")),
        ((2,), "int64", {"exact": 2}, ([2], "int64")),
        (None, "int64", {"exact": 2}, ([2], "int64")),
        ((), "int64", {"labels": ["a", "b"]}, ([], "string")),
        ((2,), "int64", {"labels": ["a", "b"], "exact": 2}, ([2], "string")),
    ],
)
def test_outputs_keep_the_shape_and_type_of_the_model(dims, dtype, more, declared):
    output = declared_output(Output("y", 2), dims, dtype, **more)
    assert (output.dims, output.dtype) == declared
    assert (output.exact, output.labels) == ("exact" in more, more.get("labels"))


def test_whole_numbers_come_apart_into_three_pieces():
    made = []

    def add(op, source, integers=()):
        made.append((op, source, *integers))
        return f"{op}({source})"

    lowest, middle, highest = pieces_of("ids", add)
    assert (lowest, middle) == ("float32(floor_modulo(ids))", "float32(floor_modulo(floor_divide(ids)))")
    assert highest == "float32(floor_divide(ids))"
    assert made[0][2] ** 2 == made[3][2]
