"""Erasing a user: whose a request is, which input says so, and that everything is asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import EntityEntry, Feature, Input, InputFiller, Manifest, Output, TableEntry
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.versions import erasure
from freshet_serving.processor.versions.erasure import ErasedUser, bound_keys, checked_key, number_of, user_inputs


def user(key, *inputs):
    return ErasedUser("m", inputs or ("user",), key)


def manifest(features, entities=(), **inputs):
    columns = [Input(name, dtype) for name, dtype in inputs.items()]
    tables = [TableEntry(name, 4, 0, hash_seed=seed) for seed, name in enumerate(("user", "city", "item"))]
    return Manifest(
        "m", 1, "a", 0.0, columns, list(features), tables, [Output("score")], 9, {}, {}, entities=list(entities)
    )


def feature(name, side, kind="id"):
    return Feature(name, kind, name, side=side, table=name, width=4)


@given(keys=st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=5), at=st.integers(0, 4))
def test_integers_are_found_in_signed_and_unsigned_columns(keys, at):
    key = keys[at % len(keys)]
    signed = np.array([k - (1 << 64) if k >= 1 << 63 else k for k in keys], np.int64)
    for column in (signed, signed.view(np.uint64)):
        assert user(str(key)).rows(column).tolist() == [k % 2**64 == key % 2**64 for k in keys]


@given(keys=st.lists(st.text(max_size=9), min_size=1, max_size=5), other=st.text(max_size=9))
def test_strings_are_found_whole(keys, other):
    for key in (keys[-1], other):
        assert user(key).rows(Strings.of(keys)).tolist() == [k == key for k in keys]


def test_request_is_the_users_if_one_row_is():
    assert user("7").sent_in({"user": np.array([3, 7]), "item": np.array([1, 1])})
    assert user("7").sent_in({"user": np.array([3]), "item": np.array([7])}) is False
    assert user("7").sent_in({"item": np.array([7])}) is None
    assert user("7").sent_in({"user": Ragged.of([[1], [7]])})
    assert user("7").sent_in({"user": np.array([7.0], np.float32)}) is False
    assert user("ann", "a", "b").sent_in({"b": Strings.of(["ann"]), "a": Strings.of(["bob"])})


@pytest.mark.parametrize(
    ("key", "number"),
    [("7", 7), ("-3", -3), ("007", 7), (str(2**64), None), ("", None), ("7a", None), ("²", None), ("-", None)],
)  # fmt: skip
def test_key_is_an_integer_if_an_id_can_be_it(key, number):
    assert number_of(key) == number


@pytest.mark.parametrize("key", ["", "x" * 1025, True, 1.5, None, ["a"], {}, 2**64, -(2**63) - 1, "\ud800"])
def test_other_keys_are_refused_without_being_repeated(key):
    with pytest.raises(BadInput, match=r"^body\.key: expected a string of 1 to 1024 bytes, or an integer") as refused:
        checked_key(key, "body.key")
    assert "xx" not in str(refused.value)


def test_user_is_the_key_of_a_lookup_before_features_of_users():
    known = manifest([feature("user", "user"), feature("city", "user")], user="int64", city="string", shopper="int64")
    assert user_inputs(known) == ("user", "city")
    known.fillers["age"] = InputFiller("online features", "profile", ("shopper",))
    assert user_inputs(known) == ("shopper",)


def test_keys_of_items_are_no_keys_of_users():
    features = [feature("user", "user"), feature("item", "item"), feature("category", "item")]
    known = manifest(
        features, [EntityEntry("item", "item", ["category"])], user="int64", item="int64", category="int64"
    )
    known.fillers["stock"] = InputFiller("online features", "stock", ("item",))
    assert user_inputs(known) == ("user",)
    assert erasure.user_input(known) == "user"


def test_model_of_histories_alone_has_no_users_key():
    assert user_inputs(manifest([feature("item", "item")], item="int64")) == ()


def test_text_is_bound_with_the_seed_of_each_table():
    known = manifest([feature("user", "user", "string")], user="string")
    assert bound_keys("ann", ("user",), [known]) == tuple(
        sorted({int(hash_strings(Strings.of(["ann"]), table.hash_seed)[0]) for table in known.tables})
    )
    assert bound_keys(str(2**64 - 1), ("user",), [manifest([], user="int64")]) == (-1,)


class Keeping:
    def __init__(self, counts=None):
        self.counts, self.asked = counts or {}, 0

    def erase_user(self, user):
        self.asked += 1
        if self.counts == "fails":
            raise ValueError(f"cannot forget {user.key}")
        return self.counts if self.asked == 1 else {}


def test_everything_is_asked_twice_though_one_fails(caplog, monkeypatch):
    monkeypatch.setattr(erasure, "KEEPERS", keepers := type(KEEPERS)())
    one, other, failing = Keeping({"states": 2}), Keeping({"states": 1, "requests": 0}), Keeping("fails")
    for keeper in (one, other, failing):
        keepers.add(keeper)
    erased = erasure.erase(user("distinctive"))
    assert erased.counts == {"states": 3, "requests": 0}
    assert erased.failed == ("Keeping, which failed: ValueError",)
    assert (one.asked, other.asked, failing.asked) == (2, 2, 2)
    assert "distinctive" not in caplog.text


def test_keepers_are_held_weakly():
    KEEPERS.add(keeper := Keeping())
    assert keeper in KEEPERS
    name = id(keeper)
    del keeper
    assert name not in map(id, KEEPERS)


def test_user_travels_between_processes():
    one = ErasedUser("m", ("user", "u"), "ann", (3, -4))
    assert ErasedUser.of_json(one.to_json()) == one
