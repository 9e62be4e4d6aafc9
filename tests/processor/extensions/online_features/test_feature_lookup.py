import logging
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.feature_lookup import FeatureLookup
from freshet_serving.processor.extensions.online_features.reader import OnlineFeatures
from freshet_serving.processor.features.sequences import SequenceColumns
from freshet_serving.processor.package import Input, SequenceEntry
from freshet_serving.processor.versions.erasure import ErasedUser
from tests.processor.extensions.online_features.stores import MemoryStore, opened
from tests.support.counters import counted, damaged
from tests.support.looked_up import HASHES, manifest

ITEMS = {"user": np.array([1, 2, 3]), "f2": np.zeros(3, np.float32), "f3": np.zeros(3, np.float32)}


@pytest.fixture
def store():
    store = MemoryStore()
    store.hashes = {
        b"user:7": {b"tags": b'["a", "b"]', b"f0": b"1.5", b"f1": b"-3"},
        b"user:8": {b"tags": b"[]", b"f0": b"2.5"},
    }
    return store


def lookup(store, **section):
    return FeatureLookup(manifest(section=HASHES | section), opened(store), FakeClock())


def request(*users, **sent):
    return ITEMS | {"user_id": np.array(users, np.int64)} | sent


def test_user_is_looked_up_once_and_fills_one_row(store):
    for users in [(7,), (7, 7, 7)]:
        filled = lookup(store).fill(request(*users))
        assert filled.inputs["f0"].dtype == filled.inputs["f1"].dtype == np.float32
        assert (filled.inputs["f0"].tolist(), filled.inputs["f1"].tolist()) == ([1.5], [-3.0])
        assert filled.inputs["tags"].values.tolist() == [b"a", b"b"]
        assert set(filled.looked_up) == {"tags", "f0", "f1"}
        assert filled.defaulted == {}
    assert [len(reads) for reads, _ in store.fetches] == [1, 1]


def test_users_that_differ_fill_a_row_each(store):
    filled = lookup(store).fill(request(7, 8, 9))
    assert filled.inputs["f0"].tolist()[:2] == [1.5, 2.5]
    assert np.isnan(filled.inputs["f0"][2])
    assert filled.defaulted == {"tags": "not_found", "f0": "not_found", "f1": "not_found"}


def test_sent_values_win_and_whole_requests_ask_nobody(store):
    sent = {"f0": np.full(3, 9, np.float32), "tags": Ragged.of([["c"]])}
    filled = lookup(store).fill(request(7, **sent))
    assert set(filled.looked_up) == {"f1"}
    assert filled.inputs["f0"] is sent["f0"]
    inputs = request(7, **sent, f1=np.zeros(1, np.float32))
    assert lookup(store).fill(inputs).inputs is inputs
    assert len(store.fetches) == 1


def test_missing_value_is_as_in_training_or_the_default(store):
    filled = lookup(store, defaults={"f1": 4, "tags": ["x"]}).fill(request(9))
    assert np.isnan(filled.inputs["f0"]).tolist() == [True]
    assert filled.inputs["f1"].tolist() == [4.0]
    assert filled.inputs["tags"].values.tolist() == [b"x"]


LISTS = {"features": ["items", "words"], "types": {"items": "int64_list", "words": "string_list"}}


@pytest.mark.parametrize(
    ("items", "words", "kept"), [(b"[1, 2]", b'["a", "b"]', 2), (b"[1, 2]", b'["a"]', 0), (b"[1]", None, 0)]
)
def test_lists_of_a_history_that_differ_in_length_are_empty(store, items, words, kept):
    model = manifest(section={"key": "user_id", "format": "hash", "timeout_ms": 400} | LISTS)
    inputs = [*model.inputs, Input("items", "int64", ragged=True), Input("words", "string", ragged=True)]
    model = replace(model, inputs=inputs, sequences=[SequenceEntry("h", [], 8, 0, ["items", "words"])])
    store.hashes = {b"user:7": {b"items": items} | ({b"words": words} if words else {})}
    filled = FeatureLookup(model, opened(store), FakeClock()).fill({"user_id": np.array([7])})
    assert [len(filled.inputs[name].values) for name in ("items", "words")] == [kept, kept]
    assert [filled.inputs[name].row_splits.tolist() for name in ("items", "words")] == [[0, kept], [0, kept]]
    assert set(filled.defaulted) == (set() if kept else {"items", "words"})


@pytest.mark.parametrize(
    ("kind", "stored", "wanted"),
    [
        ("double_list", b"[0.5, 2]", [0.5, 2.0]),
        ("float_list", b"[0.5, 2]", [0.5, 2.0]),
        ("int64_list", b"[3, 2]", [3.0, 2.0]),
        ("double_list", b"[0.5, 1e300]", []),
        ("double_list", b"[0.5]", []),
        ("double_list", b"", []),
    ],
)
def test_list_of_floats_fills_a_column_of_a_history(store, kind, stored, wanted):
    section = {"features": ["items", "spent"], "types": {"items": "int64_list", "spent": kind}}
    model = manifest(section={"key": "user_id", "format": "hash", "timeout_ms": 400} | section)
    inputs = [*model.inputs, Input("items", "int64", ragged=True), Input("spent", "float32", ragged=True)]
    model = replace(model, inputs=inputs, sequences=[SequenceEntry("h", [], 8, 0, ["items", "spent"])])
    store.hashes = {b"user:7": {b"items": b"[1, 2]"} | ({b"spent": stored} if stored else {})}
    filled = FeatureLookup(model, opened(store), FakeClock()).fill({"user_id": np.array([7])}).inputs
    assert filled["spent"].values.dtype == np.float32
    assert (filled["spent"].values.tolist(), len(filled["items"].values)) == (wanted, len(wanted))


def history_lookup(store, **stored):
    section = {"features": ["items", "words", "spent"]}
    section["types"] = {"items": "int64_list", "words": "string_list", "spent": "float_list"}
    model = manifest(section={"key": "user_id", "format": "hash", "timeout_ms": 400} | section)
    inputs = [Input("items", "int64", ragged=True), Input("words", "string", ragged=True)]
    inputs += [*model.inputs, Input("spent", "float32", ragged=True)]
    model = replace(model, inputs=inputs, sequences=[SequenceEntry("h", [], 8, 0, ["items", "words", "spent"])])
    store.hashes = {b"user:7": {name.encode(): text for name, text in stored.items()}}
    return SequenceColumns(model), FeatureLookup(model, opened(store), FakeClock())


SENT = {
    "lists": {"items": Ragged.of([[1, 2, 3]])},
    "row_splits": {"items": np.array([1, 2, 3]), "h.row_splits": np.array([0, 3])},
    "lengths": {"items": np.array([[1, 2, 3, 0]]), "h.lengths": np.array([3])},
}


@pytest.mark.parametrize("form", SENT)
@pytest.mark.parametrize("words", [b'["a", "b"]', b"[]", b'["a", "b", "c", "d"]', b"x", None])
def test_list_of_the_store_is_aligned_to_what_was_sent(store, form, words):
    sequences, features = history_lookup(store, spent=b"[0.5, 1, 2]", **({"words": words} if words is not None else {}))
    filled = features.fill({"user_id": np.array([7])} | SENT[form])
    lists = sequences.aligned(filled.inputs)
    assert lists["items"].values.tolist() == [1, 2, 3]
    assert lists["words"].values.tolist() == [b"", b"", b""]
    assert lists["spent"].values.tolist() == [0.5, 1, 2]
    assert filled.defaulted == {"words": "not_found" if words is None else "damaged"}
    assert damaged(features) == {"items": 0, "words": int(words is not None), "spent": 0}


def test_floats_of_another_length_are_missing_and_fitting_rows_stay(store):
    sequences, features = history_lookup(store, words=b'["a"]', spent=b"[0.5]")
    sent = {"user_id": np.array([7, 8]), "items": Ragged.of([[5], [1, 2]])}
    lists = sequences.aligned(features.fill(sent).inputs)
    assert lists["words"].values.tolist() == [b"a", b"", b""]
    np.testing.assert_array_equal(lists["spent"].values, np.array([0.5, np.nan, np.nan], np.float32))


def test_one_list_of_the_store_serves_all_rows_that_fit(store):
    sequences, features = history_lookup(store, words=b'["a"]', spent=b"[0.5]")
    sent = {"user_id": np.array([7, 7]), "items": Ragged.of([[5], [6]])}
    filled = features.fill(sent)
    assert sequences.aligned(filled.inputs)["words"].values.tolist() == [b"a", b"a"]
    assert filled.defaulted == {}


def test_without_waiting_only_memory_answers(store):
    found = lookup(store)
    assert found.peek(request(7), found.find(request(7))) is None
    assert store.fetches == []
    found.fill(request(7))
    assert found.peek(request(7), found.find(request(7))).inputs["f0"].tolist() == [1.5]
    assert len(store.fetches) == 1
    assert counted(found)["cached"] == 1


def test_without_the_key_nothing_is_filled(store):
    inputs = dict(ITEMS)
    assert lookup(store).fill(inputs).inputs is inputs


def test_server_without_the_store_names_the_option(caplog):
    with caplog.at_level(logging.WARNING):
        found = FeatureLookup(manifest(), {}, FakeClock())
    assert "no online store 'main': requests have to send tags, f0, f1" in caplog.text
    rest = {"f0": np.zeros(1, np.float32), "f1": np.zeros(1, np.float32), "tags": Ragged.of([["c"]])}
    assert found.fill(request(7, **rest)).defaulted == {}
    with pytest.raises(
        BadInput, match=r"input 'tags' is missing: .* no online store 'main' \(freshet serve --online-st"
    ):
        found.fill(request(7))


@pytest.mark.parametrize(
    "key",
    [np.zeros(1, np.float32), np.zeros((2, 2), np.int64), Ragged.of([[1]]), np.zeros(0, np.int64), Strings.of("a")],
)
def test_something_that_is_no_key_is_refused_by_name(store, key):
    with pytest.raises(BadInput, match=r"user_id'?: expected"):
        lookup(store).fill(ITEMS | {"user_id": key})


def test_keys_that_memory_was_asked_for_are_made_once(store, monkeypatch):
    found = lookup(store)
    left_out = found.find(request(7))
    assert found.peek(request(7), left_out) is None
    monkeypatch.setattr(OnlineFeatures, "keys_of", None)
    assert found.fill(request(7), left_out=left_out).inputs["f0"].tolist() == [1.5]


def test_what_another_version_leaves_out_is_found_anew(store):
    filled = lookup(store).fill(request(7), left_out=lookup(store).find(request(9)))
    assert filled.inputs["f0"].tolist() == [1.5]


def test_erased_user_is_read_anew_and_others_are_not(store):
    looked = lookup(store)
    model = manifest(section=HASHES).model
    looked.fill(request(7))
    looked.fill(request(8))
    for user in (
        ErasedUser("other", ("user_id",), "7"), ErasedUser(model, ("user",), "7"), ErasedUser(model, ("user_id",), "x")
    ):  # fmt: skip
        assert not any(looked.erase_user(user).values())
    assert looked.erase_user(ErasedUser(model, ("user_id",), "7")) == {"online_features": 1}
    assert looked.peek(request(7), looked.find(request(7))) is None
    assert looked.peek(request(8), looked.find(request(8))) is not None
