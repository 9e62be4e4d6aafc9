"""What a stage computes is measured by small runs, and assumed where it cannot be."""

from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features import growth_meter
from freshet_serving.processor.package import GrowthTerm, StageGrowth
from tests.processor.features.test_stage_rows import manifest


class Traced:
    """A stage whose operators write `nbytes(rows, length)` bytes."""

    def __init__(self, nbytes, sized_by=()):
        self.nbytes, self.sized_by, self.runs = nbytes, sized_by, []

    def run(self, inputs, rows, found):
        past = inputs["past"]
        self.runs.append((rows, int(np.diff(past.row_splits).max())))
        self.inputs, self.found = inputs, found

    def close(self):
        pass

    def made(self):
        return [self.nbytes(*point) for point in self.runs]


def own_cells(rows, length):
    """What is fed: the lists and where they start, two ids, a word, a price, and the rows looked up for them."""
    return rows * (length + 1 + 2 + 1 + 1) + rows * (2 * length + 2 * 2 + 1)


@pytest.mark.parametrize(
    "nbytes",
    [
        lambda rows, length: 4 * rows * length,
        lambda rows, length: 40 * rows * length * length + 8 * rows,
        lambda rows, length: 4 * rows * rows * length,
        lambda rows, length: 4 * rows * length**3,
        lambda rows, length: 1024,
    ],
    ids=["linear", "attention", "rows against rows", "cubic", "constant"],
)
def test_measured_growth_tells_of_larger_requests(nbytes):
    growth = growth_meter.measured(manifest(), Traced(nbytes))
    for rows, length in ((1, 1_000), (300, 7), (256, 500)):
        cells = own_cells(rows, length) + nbytes(rows, length) // 4
        assert cells <= growth.cells(rows, length) <= 1.3 * cells + 100


def test_sizes_with_negative_terms_are_never_undercounted():
    growth = growth_meter.measured(manifest(), Traced(lambda rows, length: 4 * rows * (length - 1) * length))
    assert growth.cells(50, 900) >= 50 * 899 * 900


def test_graph_that_doubles_with_each_event_is_refused():
    with pytest.raises(TooLarge, match="expected a graph whose tensors grow with a small power"):
        growth_meter.measured(manifest(), Traced(lambda rows, length: rows * 2**length))


def test_values_that_say_sizes_stand_for_the_length():
    traced = Traced(lambda rows, length: 4, sized_by=["pair", "word"])
    growth = growth_meter.measured(manifest(), traced)
    rows, length = growth_meter.CHECKS[-1]
    assert growth.sized_by == ["pair", "word"]
    assert traced.inputs["pair"].tolist() == [[length] * 2] * rows
    assert {len(word) for word in traced.inputs["word"].tolist()} == {length}


def stage(**seams):
    return SimpleNamespace(reads=("past",), **seams)


def test_stage_without_a_twin_is_assumed_to_compare_all_pairs():
    growth = growth_meter.growth_of(manifest(), stage(), b"")
    assert growth.cells(1, 40_000) > 40_000**2 / 4


@pytest.mark.parametrize("error", [BadInput("no"), OSError("no")])
def test_stage_that_cannot_be_measured_is_assumed(error):
    def traced(data):
        raise error

    assert growth_meter.growth_of(manifest(), stage(traced=traced), b"") == growth_meter.assumed(manifest())


def test_model_that_refuses_zeros_is_measured_with_other_integers():
    tried = []

    class Picky(Traced):
        def run(self, inputs, rows, found):
            tried.append(int(inputs["pair"][0, 0]))
            if tried[-1] in (0, 1):
                raise BadInput("no")
            super().run(inputs, rows, found)

    growth = growth_meter.growth_of(
        manifest(), stage(traced=lambda data: Picky(lambda rows, length: 4 * rows * length)), b""
    )
    assert tried[:4] == [0, 1, *growth_meter.LENGTHS[:1] * 2]
    assert growth != growth_meter.assumed(manifest())


def test_growth_of_the_manifest_is_not_measured_again():
    known = StageGrowth([GrowthTerm(1, 1, 3.0)])
    one = manifest()
    object.__setattr__(one.stage, "growth", known)
    assert growth_meter.growth_of(one, stage(), b"") is known


def test_columns_are_zeros_and_short_words():
    traced = Traced(lambda rows, length: 4)
    growth_meter.measured(manifest(), traced)
    assert isinstance(traced.inputs["past"], Ragged)
    assert not traced.inputs["past"].values.any()
    assert isinstance(traced.inputs["word"], Strings)
    assert {name: rows.shape[1] for name, rows in traced.found.items()} == {
        "rows.past": 2,
        "rows.pair": 2,
        "rows.word": 1,
    }
