"""Columns by position: filled in slices, made anew where they are crowded, and not trusted where they do not fit."""

import numpy as np
import pytest

from freshet_serving.processor.extensions.top_items import filter_columns, row_codes
from tests.processor.extensions.top_items.test_item_filters import Shop

WANTED = (
    {"stock": [1, None]},
    {"tags": "t1"},
    {"sizes": {"not": [0, 1]}},
    {"category": ["a", "c"], "price": [None, 12]},
)


def columns(shop):
    (watcher,) = shop.version._watchers._watchers
    return watcher._columns


def test_slices_fill_what_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(filter_columns, "SLICE", 64)
    shop = Shop(tmp_path, 200)
    kept, epoch = columns(shop), shop.version.change.epoch
    kept._begin()
    assert [kept.refresh(epoch) for _ in range(5)] == [True, True, True, False, False]
    shop.delta([], [], [10, 190], [])
    for wanted in WANTED:
        shop.check(wanted)


def test_new_items_beyond_the_room_have_columns_in_new_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(row_codes, "MORE_POSITIONS", 64)
    monkeypatch.setattr(row_codes.RowCodes.__init__, "__defaults__", (64,))
    shop = Shop(tmp_path, 100)
    shop.maintain()
    before = columns(shop).arrays
    shop.delta(list(range(100, 300)), [], list(range(90, 280)), [])
    shop.maintain()
    assert columns(shop).arrays["filter_fresh"] is not before["filter_fresh"]
    for wanted in WANTED:
        shop.check(wanted)


def test_lists_keep_their_place_and_crowded_memory_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(filter_columns, "CROWDED", 50)
    shop = Shop(tmp_path, 60)
    shop.maintain()
    made = {id(columns(shop).arrays["filter_fresh"]): columns(shop).arrays}
    for _ in range(25):
        shop.delta([], [], range(0, 60, 2), [])
        shop.maintain()
        made[id(columns(shop).arrays["filter_fresh"])] = columns(shop).arrays
        for wanted in WANTED[1:3]:
            shop.check(wanted)
    assert len(made) > 1
    assert columns(shop)._listed < 60 * 8 * 3


@pytest.mark.parametrize("most", [1, 2])
def test_texts_without_room_are_read_from_records(tmp_path, monkeypatch, most):
    reserved = filter_columns.TextCodes.reserved
    monkeypatch.setattr(filter_columns.TextCodes, "reserved", lambda name: reserved(name, most, 100))
    shop = Shop(tmp_path, 100)
    shop.maintain()
    for wanted in WANTED:
        shop.check(wanted)
    fresh = np.unpackbits(columns(shop).arrays["filter_fresh"].view(np.uint8)[:16], bitorder="little")
    # Items without a record need no text.
    assert 50 <= fresh.sum() < 100
