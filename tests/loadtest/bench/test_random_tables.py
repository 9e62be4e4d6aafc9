import numpy as np
import pytest

from loadtest.bench.random_tables import FEWEST_ROWS, HIGHEST_RATE, LOWEST_RATE, MOST_ROWS, RandomTable, draw_shape


def test_shapes_span_sizes_and_rates_and_are_drawn_by_seed():
    shapes = [draw_shape(seed) for seed in range(20)]
    assert [shapes[0].rows, shapes[-1].rows] == [FEWEST_ROWS, MOST_ROWS]
    rates = sorted(shape.base_rate for shape in shapes)
    assert (rates[0], rates[-1]) == (pytest.approx(LOWEST_RATE), pytest.approx(HIGHEST_RATE))
    assert len(set(rates)) == 20
    assert draw_shape(7) == shapes[7]
    assert abs(np.corrcoef(range(20), [shape.base_rate for shape in shapes])[0, 1]) < 0.3


def test_table_rows_have_its_rate_and_can_start_anywhere():
    table = RandomTable(draw_shape(10))
    assert table.label.mean() == pytest.approx(table.shape.base_rate, rel=0.15)
    assert table.truth.mean() == pytest.approx(table.shape.base_rate, rel=1e-3)
    later = next(table.batches(100, 500))
    whole = table.rows(0, 1000)
    assert later.start == 500
    assert all(np.array_equal(later.columns[name], whole.columns[name][500:600]) for name in whole.columns)
    assert [f.name for f in table.config().features] == list(whole.columns)
