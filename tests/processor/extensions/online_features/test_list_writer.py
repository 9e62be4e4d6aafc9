"""Lists that are written, as lookups of the same version read them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.feature_lookup import FeatureLookup
from freshet_serving.processor.extensions.online_features.list_writer import ListWriter
from freshet_serving.processor.package import Input, SequenceEntry
from tests.processor.extensions.online_features.stores import MemoryStore, MemoryWriter, opened
from tests.support.looked_up import manifest

LISTS = {"items": "int64_list", "words": "string_list", "spent": "float_list", "times": "unix_timestamp_list"}
HASH = {"key": "user_id", "format": "hash", "timeout_ms": 400, "features": list(LISTS), "types": LISTS}
FEAST = {
    "key": "user_id",
    "format": "feast",
    "project": "shop",
    "features": [f"history:{name}" for name in LISTS],
    "types": {f"history:{name}": kind for name, kind in LISTS.items()},
}
TEXTS = {"key_types": {"user_id": "string"}}


class Shop:
    """A version that reads lists of users, a store, and what writes to it."""

    def __init__(self, section, unsigned=False, **more):
        model = manifest(section=section | more)
        declared = "uint64" * unsigned
        lists = [
            Input("items", "int64", ragged=True, declared=declared),
            Input("words", "string", ragged=True),
            Input("spent", "float32", ragged=True),
            Input("times", "int64", ragged=True),
        ]
        text = (section | more).get("key_types", {}).get("user_id") == "string"
        own = [Input("user_id", "string") if text and i.name == "user_id" else i for i in model.inputs]
        self.model = replace(model, inputs=[*own, *lists], sequences=[SequenceEntry("h", [], 8, 0, list(LISTS))])
        self.store = MemoryStore()
        self.target = MemoryWriter(self.store)
        self.writer = ListWriter("main", self.target, self.model, LISTS)

    def write(self, keys, lengths, newest_s=None, left_s=None):
        """Write lists of lengths, numbered on; return them."""
        total = sum(lengths)
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        spent = (np.arange(total) / 7).astype(np.float32)
        spent[::3] = np.nan
        values = {
            "items": np.arange(total) - 2**62,
            "words": Strings.of([f"wört {n}" for n in range(total)]),
            "spent": spent,
            "times": 1_700_000_000 + np.arange(total),
        }
        lists = {name: Ragged(column, splits) for name, column in values.items()}
        newest_s = np.zeros(len(lengths), np.int64) if newest_s is None else newest_s
        self.writer.write(keys, lists, newest_s, left_s)
        return lists

    def read(self, key, now_s=1e9):
        filled = FeatureLookup(self.model, opened(self.store), FakeClock(0.0, now_s)).fill({"user_id": key})
        return filled.inputs, filled.defaulted


@pytest.mark.parametrize("section", [HASH, FEAST], ids=["hash", "feast"])
@settings(deadline=None, max_examples=30)
@given(text=st.booleans(), unsigned=st.booleans(), lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_what_is_written_is_read_to_the_bit(section, text, unsigned, lengths):
    shop = Shop(section, unsigned, **(TEXTS if text else {}))
    numbers = np.arange(len(lengths)) - 2
    keys = Strings.of([f"ü{n}" for n in numbers]) if text else numbers
    lists = shop.write(keys, lengths)
    for row, length in enumerate(lengths):
        key = Strings.of([keys.tolist()[row]]) if text else keys[row : row + 1]
        inputs, defaulted = shop.read(key)
        assert set(defaulted.values()) == (set() if length else {"not_found"})
        for name, column in lists.items():
            a, b = column.row_splits[row : row + 2]
            there = inputs[name].values
            assert len(inputs[name].values) == length
            if isinstance(there, Strings):
                assert there.tolist() == column.values.tolist()[a:b]
            else:
                assert np.array_equal(there, column.values[a:b], equal_nan=there.dtype.kind == "f")


@pytest.mark.parametrize("section", [HASH, FEAST], ids=["hash", "feast"])
def test_an_entity_without_values_has_no_lists_any_more(section):
    shop = Shop(section)
    shop.write(np.array([7]), [3])
    (key,) = shop.store.hashes
    shop.store.hashes[key][b"another"] = b"1"
    shop.write(np.array([7]), [0])
    assert shop.store.hashes == {key: {b"another": b"1"}}


def test_a_hash_of_these_lists_alone_expires_with_them():
    shop = Shop(HASH)
    shop.write(np.array([7, 8]), [1, 2], left_s=np.array([2.5, 1e-9]))
    assert shop.target.left_ms == {b"user:7": 2500, b"user:8": 1}
    shop.write(np.array([7]), [1])
    assert shop.target.left_ms == {b"user:8": 1}


def test_a_hash_with_other_features_does_not_expire():
    shop = Shop(HASH | {"features": [*LISTS, "age"], "types": LISTS | {"age": "int64"}, "names": {"age": "f0"}})
    shop.write(np.array([7]), [1], left_s=np.array([2.5]))
    assert shop.target.left_ms == {}


def test_feast_has_the_time_of_the_newest_value():
    shop = Shop(FEAST, ttl_s={"history": 60})
    shop.write(np.array([7]), [2], newest_s=np.array([1_700_000_000]))
    for now_s, status in ((1_700_000_060.0, set()), (1_700_000_061.0, {"expired"})):
        assert set(shop.read(np.array([7]), now_s)[1].values()) == status


@pytest.mark.parametrize("section", [HASH, FEAST], ids=["hash", "feast"])
def test_lists_of_an_erased_entity_are_gone(section):
    shop = Shop(section)
    shop.write(np.array([7, 8]), [2, 2])
    assert shop.writer.erase(np.array([7, 9])) == 1
    assert len(shop.store.hashes) == 1
    assert shop.read(np.array([7]))[1].keys() == LISTS.keys()


def test_keys_beyond_their_type_are_left_out():
    shop = Shop(HASH, key_types={"user_id": "int32"})
    shop.write(np.array([7, 1 << 40]), [1, 1])
    assert list(shop.store.hashes) == [b"user:7"]


def test_another_process_or_layout_is_told_apart():
    shop = Shop(HASH)
    first = shop.writer.begin()
    assert shop.writer.begin() == first
    shop.target.restart()
    assert shop.writer.begin() != first
    assert Shop(HASH, key_template="u:{user_id}").writer.begin() != first


@pytest.mark.parametrize(
    ("section", "why"),
    [
        (HASH | {"store": "other"}, "expected one group of store 'main'"),
        (HASH | {"key": ["user_id", "country"], "key_types": {"country": "string"}}, "expected one key of one column"),
    ],
)
def test_lists_that_are_read_otherwise_are_refused(section, why):
    with pytest.raises(BadInput, match=why):
        Shop(section)
