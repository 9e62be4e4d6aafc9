"""Tensors as words of a state: to the bit as float32, within the rounding as float16, and refused beyond its range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.user_state.state_tensors import SMALL, StateTensors
from freshet_serving.processor.package.subgraphs import GraphOutput, Subgraph

DIMS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=4)


def graph_of(dims):
    return Subgraph([], [GraphOutput(f"u{n}", ["requests", *sizes]) for n, sizes in enumerate(dims)])


def computed_of(graph, floats, requests=3):
    """Outputs of a subgraph for several requests, with the floats in turn."""
    return {o.name: np.resize(floats, (requests, *o.dims[1:])).astype(np.float32) for o in graph.outputs}


def largest(graph):
    return max(np.prod(o.dims[1:]) for o in graph.outputs)


def found_in(layout, pieces):
    """The tensors that are read from the words which an arena would make of pieces."""
    whole = b"".join(p.tobytes() + bytes(-p.nbytes % 8) for p in pieces)
    words = np.frombuffer(bytearray(whole), np.int64)
    assert len(words) == layout.words
    # What was in the memory before is of somebody else.
    return layout.tensors(words, np.full(layout.room, -1, np.int64))


@given(DIMS, st.lists(st.floats(width=32), min_size=1, max_size=9), st.integers(0, 2))
def test_float32_is_kept_to_the_bit(dims, floats, request):
    graph = graph_of(dims)
    layout, computed = StateTensors(b"s", graph, "float32"), computed_of(graph, floats)
    found = found_in(layout, layout.pieces(computed, request))
    assert found.keys() == computed.keys()
    for name, tensor in found.items():
        kept = computed[name][request : request + 1].reshape(1, -1)
        np.testing.assert_array_equal(tensor.view(np.int32), kept.view(np.int32))


@given(DIMS, st.lists(st.floats(-65504, 65504, width=32), min_size=1, max_size=9), st.integers(0, 2))
def test_float16_is_the_nearest_number_of_its_type(dims, floats, request):
    graph = graph_of(dims)
    layout, computed = StateTensors(b"s", graph, "float16"), computed_of(graph, floats)
    found = found_in(layout, layout.pieces(computed, request))
    for name, tensor in found.items():
        kept = computed[name][request : request + 1].reshape(1, -1)
        rounded = kept.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(tensor, rounded if SMALL * kept.size > largest(graph) else kept)
        assert (np.abs(tensor - kept) <= np.maximum(np.abs(kept) * 2.0**-11, 2.0**-25)).all()


@given(
    DIMS,
    st.sampled_from([np.nan, np.inf, -np.inf, 65520.0, -65520.0, 3e38]) | st.floats(65520, 2.0**127, width=32),
    st.integers(0, 10**6),
)
def test_number_that_float16_does_not_hold_refuses_the_whole_state(dims, number, place):
    graph = graph_of(dims)
    layout, computed = StateTensors(b"s", graph, "float16"), computed_of(graph, [1.0])
    large = [o.name for o in graph.outputs if SMALL * np.prod(o.dims[1:]) > largest(graph)]
    name = large[place % len(large)]
    tensor = computed[name][1].reshape(-1)
    tensor[place % tensor.size] = number
    assert layout.pieces(computed, 1) is None
    # Other requests of the same run are kept.
    assert layout.pieces(computed, 0) is not None


def test_small_outputs_such_as_masks_are_kept_to_the_bit():
    graph = graph_of([[SMALL * 3], [3], [4]])
    layout, computed = StateTensors(b"s", graph, "float16"), computed_of(graph, [0.1])
    computed["u1"][:] = -1e9, 0.1, np.nan
    found = found_in(layout, layout.pieces(computed, 0))
    np.testing.assert_array_equal(found["u1"], computed["u1"][:1])
    computed["u2"][:] = -1e9
    assert layout.pieces(computed, 0) is None


@pytest.mark.parametrize("number", [65519.996, -65519.996])
def test_largest_numbers_are_kept_as_numbers(number):
    graph = graph_of([[3]])
    layout = StateTensors(b"s", graph, "float16")
    (tensor,) = found_in(layout, layout.pieces(computed_of(graph, [number]), 0)).values()
    np.testing.assert_array_equal(tensor, np.full((1, 3), np.sign(number) * 65504.0))


def test_types_have_different_names_and_half_of_the_words():
    graph = graph_of([[64], [32, 64]])
    exact, rounded = (StateTensors(b"m/1/1/user", graph, dtype) for dtype in ("float32", "float16"))
    assert exact.scope == b"m/1/1/user"
    assert rounded.scope != exact.scope
    assert (rounded.words, rounded.room, exact.room) == (32 + 512, 1024, 0)
