"""What extensions may fill with each batch; that it scores is a toy's to show (tests/extensions/test_toy_late.py)."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import left_out
from freshet_serving.processor.features.input_reader import blank_inputs
from freshet_serving.processor.features.late_values import late_inputs
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import Transform
from freshet_serving.processor.ports import ENGINE, Extension, Section
from tests.support.looked_up import manifest


@pytest.fixture
def sand(monkeypatch):
    """Offers a section `sand`, whose value is the name of the input that is filled."""
    section = Section(parse=str, dump=str)
    sand = Extension(
        sections={"sand": lambda: section}, late_values={"sand": lambda name, _: SimpleNamespace(inputs=[name])}
    )
    monkeypatch.setattr(ENGINE, "_known", {"sand": sand})


def filling(name):
    return replace(manifest(sections={}), sections={"sand": name})


def test_section_names_what_fills_inputs_late(sand):
    assert [late.inputs for late in late_inputs(filling("f3"), {})] == [["f3"]]
    assert late_inputs(manifest(sections={}), {}) == []


def test_left_out_source_names_an_extension_and_has_one_value(sand):
    plan = SparsePlan(filling("f3"))
    sent = blank_inputs(manifest(sections={}))
    one, other = (plan.bind_inputs({n: c for n, c in sent.items() if n != left}) for left in ("f3", ""))
    words, whole = (np.frombuffer(bound.words, np.int64).reshape(-1, pool.INPUT_FIELDS) for bound in (one, other))
    number = plan.source("f3")
    assert words[number, [pool.ROWS, pool.STRIDE, pool.FILLED_BY]].tolist() == [1, 1, pool.BY_EXTENSION]
    assert np.flatnonzero(left_out(words)).tolist() == [number]
    assert not left_out(whole).any()


def test_list_is_not_filled_late(sand):
    with pytest.raises(BadInput, match=r"manifest\.sand: expected an input of one value a row, got the list 'tags'"):
        late_inputs(filling("tags"), {})


def test_input_of_a_transform_is_not_filled_late(sand):
    read = replace(filling("user"), transforms=[Transform("hour", "floor_divide", ["user"], [3600], [])])
    with pytest.raises(BadInput, match=r"manifest\.sand: 'user' is read before a batch: expected another input"):
        late_inputs(read, {})
