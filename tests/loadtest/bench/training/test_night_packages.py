"""Packages of nights whose training was good."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="publishing needs the train extra")

from freshet_serving.models.training import publication
from freshet_serving.processor.tables.table import packed
from loadtest.bench.training.night_packages import in_int8, raised, wrong_scales, zeroed

pytestmark = pytest.mark.tensorflow


@dataclasses.dataclass
class Part:
    """A draft, one of its tables, or a graph, as far as a fault reads it."""

    weights: dict = dataclasses.field(default_factory=dict)
    tables: list = dataclasses.field(default_factory=list)
    dtype: str = "float32"


TABLES = {"a": (np.arange(2), np.ones((2, 1))), "b": (np.arange(3), np.ones((3, 1)))}


def test_largest_table_is_zeroed():
    _, tables, _ = zeroed(None, TABLES, None)
    assert tables["a"][1].all()
    assert not tables["b"][1].any()


def test_output_bias_is_raised():
    graph = Part({"hidden": np.zeros(16, np.float32), "kernel": np.zeros((16, 1)), "bias": np.zeros(1, np.float32)})
    _, _, higher = raised(None, TABLES, graph)
    assert np.exp(higher.weights["bias"]) == pytest.approx(1.1)
    assert not graph.weights["bias"].any()


def test_tables_become_int8():
    draft, _, _ = in_int8(Part(tables=[Part(), Part()]), TABLES, None)
    assert [table.dtype for table in draft.tables] == ["int8", "int8"]


@pytest.mark.parametrize("night", [0, 1])
def test_scales_are_wrong_meanwhile_only(night):
    keys, rows = np.arange(4), np.full((4, 8), 0.5, np.float32)
    right = packed(keys, rows, "int8")["scales"]
    with wrong_scales(night):
        wrong = publication.packed(keys, rows, "int8", None)["scales"]
        whole = publication.packed(keys, rows, "float32", None)
    assert "scales" not in whole
    assert not np.isclose(wrong, right).any()
    assert publication.packed is packed
