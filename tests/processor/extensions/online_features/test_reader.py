"""What a request gets of a store that has, has not, or fails to say."""

import math
import threading

import numpy as np
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.online_features.feast_keys import (
    feature_field,
    key_serializer,
    timestamp_field,
)
from freshet_serving.processor.extensions.online_features.group_sections import parse_group
from freshet_serving.processor.extensions.online_features.online_columns import Status
from freshet_serving.processor.extensions.online_features.online_store import Loss
from freshet_serving.processor.extensions.online_features.reader import MAX_ROWS, OnlineFeatures
from tests.processor.extensions.online_features.stores import (
    HASHES,
    MemoryStore,
    features_of,
    opened,
    peek,
    plain,
    read,
    users,
)
from tests.processor.extensions.online_features.value_messages import value_of
from tests.support.counters import counted
from tests.support.waiting import until

DAY_S = 86_400
FEAST = {
    "key": "user_id",
    "project": "shop",
    "features": ["profile:age", "profile:segment", "history:items"],
    "types": {"profile:age": "int64", "profile:segment": "string", "history:items": "int64_list"},
    "ttl_s": {"profile": DAY_S},
}
DEFAULTS = {"age": 30, "segment": "none", "items": [1]}


def feast_key(user):
    return key_serializer("shop", ["user_id"], ["int64"])([np.array(user, "<i8").tobytes()])


def feast_hash(view, written_unix_s, **values):
    hashed = {feature_field(view, name): value.SerializeToString() for name, value in values.items()}
    return hashed | {timestamp_field(view): Timestamp(seconds=int(written_unix_s)).SerializeToString()}


def statuses(column):
    return [Status(int(status)).name for status in column.status]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store():
    store = MemoryStore()
    store.hashes = {b"user:7": {b"age": b"41", b"tags": b'["a", "b"]'}, b"user:8": {b"age": b"20"}}
    return store


def test_rows_get_their_values_and_the_rest_its_default(store, clock):
    found = read(features_of(store, clock, age=30, tags=["x"]), users(7, 8, 9, 7))
    assert plain(found.columns["age"]) == [41, 20, 30, 41]
    assert statuses(found.columns["age"]) == ["PRESENT", "PRESENT", "NOT_FOUND", "PRESENT"]
    assert plain(found.columns["tags"]) == [[b"a", b"b"], [b"x"], [b"x"], [b"a", b"b"]]
    assert found.defaulted == {"age": "not_found", "tags": "not_found"}
    assert found.problem == ""
    assert len(store.fetches) == 1
    assert len(store.fetches[0][0]) == 3


def test_without_a_default_it_is_nought_or_empty(store, clock):
    found = read(features_of(store, clock), users(9))
    assert (plain(found.columns["age"]), plain(found.columns["tags"])) == ([0], [[]])


def test_all_groups_and_views_take_one_round_trip(clock):
    store, other = MemoryStore(), MemoryStore()
    groups = [
        parse_group("user", FEAST),
        parse_group(
            "place", HASHES | {"key": "city", "key_types": {"city": "string"}, "names": {"age": "a", "tags": "t"}}
        ),
        parse_group("more", HASHES | {"store": "other", "names": {"age": "b", "tags": "u"}}),
    ]
    features = OnlineFeatures(groups, opened(store) | {"other": opened(other)["main"]}, {}, clock)
    found = read(features, users(1, 2) | {"city": Strings.of(["x", "y"])})
    assert set(found.columns) == {"age", "segment", "items", "a", "t", "b", "u"}
    assert [len(store.fetches), len(other.fetches)] == [1, 1]
    assert len(store.fetches[0][0]) == 4
    assert len(store.fetches[0][0][0].fields) == 5


def test_a_group_whose_key_was_not_sent_is_left_out(store, clock):
    groups = [
        parse_group("user", HASHES),
        parse_group("x", HASHES | {"key": ["user_id", "b"], "names": {"age": "a", "tags": "t"}}),
    ]
    assert set(read(OnlineFeatures(groups, opened(store), {}, clock), users(7)).columns) == {"age", "tags"}
    assert read(OnlineFeatures(groups, opened(store), {}, clock), {}).columns == {}


def test_cached_value_expires_by_its_views_ttl(clock):
    store = MemoryStore()
    written_s = clock.unix_s() - DAY_S + 5
    store.hashes[feast_key(7)] = feast_hash(
        "profile", written_s, age=value_of("int64", 41), segment=value_of("string", "a")
    ) | feast_hash("history", 0, items=value_of("int64_list", [5, 6]))
    features = features_of(store, clock, FEAST, ttl_s=1000, **DEFAULTS)
    found = read(features, users(7))
    assert (plain(found.columns["age"]), plain(found.columns["segment"])) == ([41], [b"a"])
    assert plain(found.columns["items"]) == [[5, 6]]
    clock.advance(6)
    found = read(features, users(7))
    assert (plain(found.columns["age"]), statuses(found.columns["age"])) == ([30], ["EXPIRED"])
    assert plain(found.columns["items"]) == [[5, 6]]
    assert len(store.fetches) == 1
    assert peek(features, users(7)).defaulted == {"age": "expired", "segment": "expired"}


def test_null_is_told_from_missing_and_damage_from_both(clock):
    store = MemoryStore()
    present = feast_hash("profile", clock.unix_s(), age=value_of("int64", 1))
    store.hashes = {
        feast_key(1): present,
        feast_key(2): feast_hash(
            "profile", clock.unix_s(), age=value_of("string", "x"), segment=value_of("string", "")
        ),
        feast_key(3): present | {timestamp_field("profile"): b"\xff"},
        feast_key(4): {feature_field("profile", "age"): value_of("int64", 1).SerializeToString()},
        feast_key(5): present | {feature_field("profile", "age"): b""},
    }
    found = read(features_of(store, clock, FEAST, **DEFAULTS), users(1, 2, 3, 4, 5, 6))
    assert statuses(found.columns["age"]) == ["PRESENT", "DAMAGED", "DAMAGED", "EXPIRED", "NULL", "NOT_FOUND"]
    assert statuses(found.columns["segment"]) == ["NULL", "PRESENT", "NULL", "NOT_FOUND", "NULL", "NOT_FOUND"]
    assert plain(found.columns["age"]) == [1, 30, 30, 30, 30, 30]


@pytest.mark.parametrize("loss", list(Loss))
def test_every_loss_becomes_a_counted_default(store, clock, loss):
    store.down = loss
    features = features_of(store, clock, age=30)
    found = read(features, users(7, 9))
    assert plain(found.columns["age"]) == [30, 30]
    expected = "DAMAGED" if loss in (Loss.WRONG_TYPE, Loss.TOO_LARGE) else "LATE"
    assert statuses(found.columns["age"]) == [expected] * 2
    assert found.problem == loss.value
    stats = counted(features)
    assert stats[f"losses.{loss.name.lower()}"] == 2
    assert stats[f"values.{expected.lower()}"] == 4
    store.down = None
    clock.advance(0.1)
    again = read(features, users(7))
    # What lies in the store is not read again at once; what passes is.
    assert plain(again.columns["age"]) == ([30] if expected == "DAMAGED" else [41])
    clock.advance(11)
    assert plain(read(features, users(7)).columns["age"]) == [41]


def test_read_ends_by_timeout_or_request_deadline(store, clock):
    features = features_of(store, clock, ttl_s=0)
    clock.advance(100)
    read(features, users(7))
    read(features, users(7), end_s=100.01)
    assert [end_s for _, end_s in store.fetches] == [pytest.approx(100.05), 100.01]
    read(features, users(7), end_s=math.inf)
    assert store.fetches[-1][1] == pytest.approx(100.05)


def test_hot_and_absent_keys_are_served_from_memory(store, clock):
    features = features_of(store, clock)
    assert peek(features, users(7, 9)) is None
    read(features, users(7, 9))
    store.down = Loss.LATE
    assert statuses(peek(features, users(7, 9, 7)).columns["age"]) == ["PRESENT", "NOT_FOUND", "PRESENT"]
    assert plain(read(features, users(9, 7)).columns["age"]) == [0, 41]
    assert len(store.fetches) == 1
    clock.advance(10.1)
    assert peek(features, users(7)) is None
    stats = counted(features)
    assert [stats[name] for name in ("reads", "store_reads", "entities", "cached")] == [3, 1, 6, 4]
    assert stats["cache_nbytes"] > 0


def test_requests_at_the_same_time_share_one_read(clock):
    begun, go = threading.Event(), threading.Event()

    class SlowStore(MemoryStore):
        def fetch(self, reads, end_s):
            begun.set()
            assert go.wait(60)
            return super().fetch(reads, end_s)

    store = SlowStore()
    store.hashes = {b"user:7": {b"age": b"41"}}
    features = features_of(store, clock, HASHES | {"timeout_ms": 10_000}, ttl_s=0)
    got, claims = [], []
    cache = features._sources[0].cache
    claim = cache.claim

    def watched(keys):
        found = claim(keys)
        claims.append(found)
        return found

    def ask():
        got.append(plain(read(features, users(7)).columns["age"]))

    cache.claim = watched
    threads = [threading.Thread(target=ask) for _ in range(4)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(claims) == 4)
    go.set()
    for thread in threads:
        thread.join()
    assert got == [[41]] * 4
    assert len(store.fetches) == 1
    assert counted(features)["joined"] == 3


def test_a_store_that_raises_leaves_no_flight_behind(store, clock):
    class BrokenStore(MemoryStore):
        def fetch(self, reads, end_s):
            raise MemoryError

    features = features_of(BrokenStore(), clock)
    for _ in range(2):
        with pytest.raises(MemoryError):
            read(features, users(7))


def test_a_key_beyond_its_type_is_nobodys(clock):
    store = MemoryStore()
    section = HASHES | {"key_types": {"user_id": "int32"}}
    found = read(features_of(store, clock, section), users(2**31, 7))
    assert statuses(found.columns["age"]) == ["NOT_FOUND", "NOT_FOUND"]
    assert len(store.fetches[0][0]) == 1


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ({"user_id": Strings.of(["a"])}, r"user_id: expected one integer in each row"),
        ({"user_id": np.array([1.5], np.float32)}, r"user_id: expected one integer in each row"),
        ({"user_id": np.zeros((2, 2), np.int64)}, r"user_id: expected one integer in each row"),
        (users(1) | {"other": np.zeros(2, np.int64)}, r"expected as many values in each, got \[1, 2\]"),
    ],
)
def test_keys_that_are_none_are_the_callers_mistake(store, clock, entities, message):
    with pytest.raises(BadInput, match=message):
        read(features_of(store, clock), entities)


def test_string_keys_are_strings(store, clock):
    with pytest.raises(BadInput, match=r"user_id: expected strings, which are the key of online features, got numbers"):
        read(features_of(store, clock, HASHES | {"key_types": {"user_id": "string"}}), users(7))


@pytest.mark.parametrize(
    ("groups", "defaults", "message"),
    [
        ([HASHES | {"store": "mayn"}], {}, r"g0.store: 'mayn' is not a store of this server \(did you mean"),
        ([HASHES, HASHES], {}, r"online_features.g1: the input 'age' is filled by another group already"),
        ([HASHES], {"age": "x"}, r"online_features.g0: input 'age': expected a default of type int64, got 'x'"),
    ],
)
def test_groups_that_cannot_be_served_are_refused_by_name(store, clock, groups, defaults, message):
    with pytest.raises(BadInput, match=message):
        OnlineFeatures([parse_group(f"g{n}", g) for n, g in enumerate(groups)], opened(store), defaults, clock)


@pytest.mark.parametrize(
    ("kind", "text", "present"),
    [
        ("float", b"inf", False),
        ("double", b"-inf", False),
        ("double", b"3.5e38", False),
        ("double_list", b"[1.0, 1e300]", False),
        ("double", b"3.4028235e38", True),
        ("float", b"nan", True),
        ("double_list", b"[-1.5]", True),
        ("int64", b"9223372036854775807", True),
    ],
)
def test_numbers_infinite_as_float32_are_damaged(clock, kind, text, present):
    store = MemoryStore()
    store.hashes[b"user:7"] = {b"x": text}
    found = read(features_of(store, clock, HASHES | {"features": ["x"], "types": {"x": kind}}), users(7))
    assert statuses(found.columns["x"]) == ["PRESENT" if present else "DAMAGED"]


def test_an_infinite_number_of_feast_is_damaged(clock):
    store = MemoryStore()
    store.hashes[feast_key(7)] = feast_hash("profile", clock.unix_s(), age=value_of("double", math.inf))
    section = FEAST | {"features": ["profile:age"], "types": {"profile:age": "double"}}
    found = read(features_of(store, clock, section, age=1.0), users(7))
    assert (plain(found.columns["age"]), statuses(found.columns["age"])) == ([1.0], ["DAMAGED"])


def test_more_keys_than_a_request_may_have_are_too_large(store, clock):
    with pytest.raises(TooLarge, match=rf"expected at most {MAX_ROWS} rows, got {MAX_ROWS + 1}; ask for fewer"):
        read(features_of(store, clock), {"user_id": np.zeros(MAX_ROWS + 1, np.int64)})
