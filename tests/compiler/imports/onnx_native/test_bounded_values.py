"""Which numbers of a request are no larger than the request, by the operator that makes them."""

import pytest
from onnx import helper

from freshet_serving.compiler.imports.onnx_native.bounded_values import FLAG, MOST, bound_of

VALUES = {"any", "flags", "count", "most"}
BOUNDS = {"flags": FLAG, "count": 1, "most": MOST}


def bound(op, *inputs, **attributes):
    return bound_of(helper.make_node(op, inputs, ["y"], **attributes), VALUES, BOUNDS)


@pytest.mark.parametrize("op", ["Equal", "IsNaN", "Not", "Xor"])
def test_comparisons_give_flags(op):
    assert bound(op, "any", "any") == FLAG


def test_cast_to_bool_gives_flags():
    assert bound("Cast", "any", to=9) == FLAG
    assert bound("Cast", "any", to=7) is None


@pytest.mark.parametrize("op", ["ReduceSum", "CumSum"])
def test_sum_of_flags_alone_is_a_count(op):
    assert bound(op, "flags", "axis") == 1
    assert bound(op, "count", "axis") is None
    assert bound(op, "any", "axis") is None


@pytest.mark.parametrize("op", ["ArgMax", "NonZero"])
def test_places_lie_within_their_tensor(op):
    assert bound(op, "any") == 1


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        ("Reshape", ("count", "any"), 1),
        ("Gather", ("flags", "any"), FLAG),
        ("Concat", ("flags", "count"), 1),
        ("Concat", ("flags", "constant"), 1),
        ("Concat", ("flags", "any"), None),
        ("Where", ("any", "count", "size"), 1),
        ("Where", ("flags", "any", "size"), None),
        ("Min", ("any", "count"), None),
        ("Slice", ("any", "size", "size"), None),
    ],
)
def test_moved_values_keep_the_largest_bound(op, inputs, expected):
    assert bound(op, *inputs) == expected


def test_sums_of_bounds_end_at_a_limit():
    assert bound("Add", "count", "size") == 2
    assert bound("Sub", "count", "flags") == 2
    assert bound("Add", "most", "flags") is None
    assert bound("Mul", "count", "size") is None


def test_operators_of_other_domains_are_unknown():
    assert bound("NonZero", "any", domain="com.example") is None
