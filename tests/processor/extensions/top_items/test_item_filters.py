"""Filters let through exactly the items that plain Python does, as of every generation."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.top_items import filter_columns, item_filters
from freshet_serving.processor.extensions.top_items.item_filters import FilteredEntity, ItemFilter
from freshet_serving.processor.kernels.rows import TABLE_FIELDS
from freshet_serving.processor.tables.table import descriptor
from tests.support.packages import open_version
from tests.support.plain_filters import passes
from tests.support.ranked import COLUMNS, RECORDS, columns_of, manifest, ranked_delta, with_filters, write_ranked

numbers = st.one_of(
    st.integers(-3, 41), st.sampled_from([0.5, 7.25, 19.5, 2**40, -(2**63), 2**63 - 1, 2**63 + 5, 2**64 - 1, 0.1])
)
ends = st.one_of(st.none(), numbers)
texts = st.sampled_from(["a", "b", "c", "d", "", "t0", "t1", "t5", "é" * 9])
of_numbers = st.recursive(
    st.one_of(
        numbers,
        st.booleans(),
        st.lists(ends, min_size=2, max_size=2),
        st.fixed_dictionaries({"in": st.lists(numbers, max_size=12)}),
        st.builds(lambda few: {"in": [*range(100, 140), *few]}, st.lists(numbers, max_size=4)),
    ),
    lambda inner: st.fixed_dictionaries({"not": inner}),
    max_leaves=3,
)
of_texts = st.recursive(
    st.one_of(texts, st.lists(texts, max_size=9), st.fixed_dictionaries({"in": st.lists(texts, max_size=12)})),
    lambda inner: st.fixed_dictionaries({"not": inner}),
    max_leaves=3,
)
FILTERS = st.fixed_dictionaries({}, optional={c.name: of_texts if c.dtype == "string" else of_numbers for c in COLUMNS})


class Shop:
    """A version, and by step what each item's record has; items without a row are not there."""

    def __init__(self, folder, items=200, undo_depth=8):
        self.rows, self.records = set(range(items)), {}
        self.record(range(0, items, 2), 0)
        self.version = open_version(write_ranked(folder, range(items), recorded=range(0, items, 2)), undo_depth)
        self.past = {0: (set(self.rows), dict(self.records))}

    def record(self, keys, step):
        columns = columns_of(keys, step)
        for n, key in enumerate(keys):
            self.records[key] = {name: values[n] for name, values in columns.items()}

    def delta(self, items, removed, recorded, unrecorded):
        step = self.version.position.step + 1
        self.version.apply(ranked_delta(step, items, removed, recorded=recorded, unrecorded=unrecorded))
        self.rows = (self.rows | set(items)) - set(removed)
        self.record(sorted(recorded), step)
        for key in unrecorded:
            self.records.pop(key, None)
        self.past[step] = set(self.rows), dict(self.records)

    def rollback(self, step):
        self.version.rollback(step)
        self.rows, self.records = set(self.past[step][0]), dict(self.past[step][1])

    def maintain(self):
        while self.version.maintain():
            pass

    def check(self, wanted):
        """Compares both ways of evaluation with plain Python."""
        source = FilteredEntity.of(self.version.manifest, "item")
        items = ItemFilter(json.dumps(wanted).encode(), source)
        arrays = dict(self.version.change.frame.arrays[0])
        both = zip(self.version.manifest.tables, self.version.change.frame.arrays)
        tables = np.array([descriptor(*one) for one in both], np.int64).reshape(-1, TABLE_FIELDS)
        count = int(arrays["code_count"][0])
        scan, found = items.begin(arrays, tables, self.version.change.epoch), []
        for first in range(0, count, 128):
            last = min(first + 128, count)
            bits = np.unpackbits(scan.bits(first, last).view(np.uint8), bitorder="little")
            assert not bits[last - first :].any()
            found += (first + np.flatnonzero(bits)).tolist()
        keys = item_filters.keys_at(arrays, np.arange(count))
        wanted_keys = {key for key in keys.tolist() if passes(wanted, self.records.get(key))}
        assert set(keys[found].tolist()) == wanted_keys
        by_key = items.of_keys(tables, self.version.change.epoch, keys)
        assert set(keys[by_key].tolist()) == wanted_keys


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    made = Shop(tmp_path_factory.mktemp("shop"))
    made.maintain()
    return made


@settings(max_examples=120, deadline=None)
@given(FILTERS)
def test_filters_agree_with_plain_python(shop, wanted):
    shop.check(wanted)


keys_of_delta = st.lists(st.integers(0, 260), unique=True, max_size=30)


@settings(max_examples=24, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(keys_of_delta, keys_of_delta, keys_of_delta, keys_of_delta, st.integers(0, 3)), max_size=6),
    st.lists(FILTERS, min_size=3, max_size=3),
)
def test_filters_are_those_of_the_generation_after_any_changes(tmp_path_factory, slow, steps, filters):
    with pytest.MonkeyPatch.context() as patch:
        if slow:
            # Nothing catches up with deltas: every record is read.
            patch.setattr(filter_columns.FilterColumns, "refresh", lambda self, epoch: False)
        follow(tmp_path_factory, steps, filters)


def follow(tmp_path_factory, steps, filters):
    shop = Shop(tmp_path_factory.mktemp("shop"), items=150)
    for items, removed, recorded, unrecorded, what in steps:
        step = shop.version.position.step
        if what == 3 and step:
            shop.rollback(max(0, step - 2))
        else:
            shop.delta(
                items, sorted(set(removed) & shop.rows - set(items)), recorded,
                set(unrecorded) & shop.records.keys() - set(recorded),
            )  # fmt: skip
        for wanted in filters:
            shop.check(wanted)
        if what == 1:
            shop.maintain()
            shop.check(filters[0])


def test_columns_hold_after_a_delta_and_not_after_a_rollback(tmp_path):
    shop = Shop(tmp_path)
    shop.maintain()
    fresh = shop.version.change.frame.arrays[0]["filter_fresh"]
    assert np.bitwise_count(fresh.view(np.uint64)[:4]).sum() == 200
    shop.delta([1], [], [1, 2, 3], [4])
    assert np.bitwise_count(fresh.view(np.uint64)[:4]).sum() == 200
    shop.rollback(0)
    assert np.bitwise_count(fresh.view(np.uint64)[:4]).sum() == 196
    shop.check({"stock": 0})
    shop.maintain()
    shop.check({"stock": 0})
    assert shop.version.memory()["beside"] > 200 * (6 + 4) + 200 * (1 + 4 + 8 + 4 + 8 + 8)


def test_texts_of_equal_hashes_are_told_apart(tmp_path, monkeypatch):
    from freshet_serving.processor.extensions.top_items import text_codes

    hashed = text_codes.hash_strings
    # a and b have one hash, as if a seller had made it so.
    monkeypatch.setattr(
        text_codes, "hash_strings", lambda strings, seed: np.where(
            (codes := hashed(strings, seed)) == hashed(text_codes.Strings.of(["b"]), 0)[0],
            hashed(text_codes.Strings.of(["a"]), 0)[0], codes,
        ),
    )  # fmt: skip
    shop = Shop(tmp_path)
    shop.maintain()
    for wanted in ({"category": "a"}, {"category": "b"}, {"category": {"not": ["b", "c"]}}, {"category": {"not": "a"}}):
        shop.check(wanted)
    with pytest.raises(BadInput, match=r"filter.category: expected texts of different hashes"):
        shop.check({"category": ["a", "b"]})


def test_only_an_entity_of_the_items_with_filters_has_columns():
    made = with_filters(manifest())
    assert list(FilteredEntity.of(made, "item").columns) == [c.name for c in COLUMNS]
    assert FilteredEntity.of(made, "other") is None
    assert FilteredEntity.of(manifest(), "item") is None
    assert RECORDS in [t.name for t in made.tables]
