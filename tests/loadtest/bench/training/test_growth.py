"""A table that grows beside one that does not, both small."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.training.growth import OWN, SAME, SMALL, Growth, ids_of, page, scattered
from loadtest.bench.training.race_shape import FEATURES

pytestmark = pytest.mark.tensorflow


def test_ranks_are_scattered_over_rows_with_unique_ids():
    places = scattered(np.arange(1000), 1000)
    assert np.array_equal(np.sort(places), np.arange(1000))
    assert np.abs(np.diff(places)).min() > 1
    assert len(np.unique(ids_of(np.arange(100_000)))) == 100_000


@pytest.mark.long
def test_table_grows_by_its_filling_and_its_steps():
    growth = Growth(common=500, batch_rows=64)
    new, rounds, steps = round(0.02 * FEATURES * 64), 2, 3
    sizes = [growth.measure(rows, rounds, steps) for rows in (500, 5000)]
    assert len(growth.large.table) == 5000 + 2 * rounds * steps * new
    assert len(growth.small.table) == 500 + rounds * steps * new
    for size in sizes:
        assert set(size["steps_s"]) == set(size["tables_s"]) == {SMALL, SAME, OWN}
        assert all([len(turn) for turn in turns] == [steps] * rounds for turns in size["steps_s"].values())
    apart = sizes[1]["different_ids"]
    assert apart[SAME] == apart[SMALL] < apart[OWN]
    about = {"cores": 2, "cpu": "a CPU"}
    text = page({"machine": about, "origin": {"date": "today", "command": "make -C loadtest growth"}, "sizes": sizes})
    assert "| 500 | " in text
    assert "| 5,000 | " in text
