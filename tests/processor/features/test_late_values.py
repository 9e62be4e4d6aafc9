"""What extensions may fill with each batch; that it scores is a toy's to show (tests/extensions/test_toy_late.py)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.late_values import late_inputs
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


def test_list_is_not_filled_late(sand):
    with pytest.raises(BadInput, match=r"manifest\.sand: expected an input of one value a row, got the list 'tags'"):
        late_inputs(filling("tags"), {})


def test_input_of_a_transform_is_not_filled_late(sand):
    read = replace(filling("user"), transforms=[Transform("hour", "floor_divide", ["user"], [3600], [])])
    with pytest.raises(BadInput, match=r"manifest\.sand: 'user' is read before a batch: expected another input"):
        late_inputs(read, {})
