import numpy as np
import pytest

from loadtest.bench.shop_streams import ITEMS, ShopKind, ShopSource


def rows_of(kind, rows, start=0, seed=1):
    return next(ShopSource(kind, seed).batches(rows, start))


def test_rows_are_equal_from_any_starting_position():
    kind = ShopKind("swing", 0.057, 0.105, row_s=20.0)
    whole, part = rows_of(kind, 3000), rows_of(kind, 700, 1800)
    assert part.start == 1800
    assert np.array_equal(part.label, whole.label[1800:2500])
    assert all(np.array_equal(part.columns[name], whole.columns[name][1800:2500]) for name in whole.columns)


def test_label_rate_swings_between_thousands_of_rows():
    label = rows_of(ShopKind("swing", 0.057, 0.105, row_s=20.0), 60_000).label.reshape(60, 1000).mean(axis=1)
    assert 0.04 < label.min() < 0.065
    assert 0.09 < label.max() < 0.13


def test_tide_stream_follows_the_hour_and_others_do_not():
    tide = rows_of(ShopKind("tide", 0.04, 0.12, tide=True, row_s=1.0), 86_400)
    by_hour = [float(tide.label[tide.columns["hour"] == hour].mean()) for hour in range(24)]
    assert max(by_hour) > 2 * min(by_hour)
    still = rows_of(ShopKind("still"), 60_000)
    assert still.label.mean() == pytest.approx(0.08, rel=0.25)


def test_new_items_follow_the_launch_and_prices_the_change():
    launch = rows_of(ShopKind("launch", launch_row=2000), 4000)
    new = launch.columns["item"] >= ITEMS
    assert not new[:2000].any()
    assert new[2000:].mean() == pytest.approx(0.3, abs=0.05)
    before, after = (rows_of(ShopKind("price", price_row=row), 4000).columns for row in (10_000, 1))
    cheaper = after["price"][1:] < before["price"][1:]
    assert np.array_equal(cheaper, before["item"][1:] % 3 == 0)
