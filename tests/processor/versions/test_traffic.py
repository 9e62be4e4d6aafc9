"""Splitting traffic: shares are exact, sticky keys stay, and a change of weights moves no more than it says."""

import json
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.user_bounds import OldestUsers
from freshet_serving.processor.versions.traffic import BUCKETS, EjectedVersion, Router, Traffic, TrafficSplit, new_turns

LABELS = ("stable", "canary", "blue", "green")
weights = st.lists(st.integers(0, 1000), min_size=2, max_size=4).filter(any).map(lambda w: dict(zip(LABELS, w)))


def moved(a: TrafficSplit, b: TrafficSplit) -> int:
    """Buckets that have another owner in b than in a."""
    ends = sorted({*a.ends, *b.ends})
    return sum(end - start for start, end in zip([0, *ends], ends) if owner(a, start) != owner(b, start))


def owner(split: TrafficSplit, bucket: int) -> str:
    return split.owners[bisect_right(split.ends, bucket)]


def labels_of(split: TrafficSplit, keys: list[bytes]) -> list[str]:
    router = Router(split, split.owners, new_turns())
    return [router.pick(key) for key in keys]


def wanted(parts: dict[str, float]) -> dict[str, float]:
    return {label: weight / sum(parts.values()) for label, weight in parts.items()}


@settings(max_examples=40)
@given(weights)
def test_every_label_gets_its_share_of_the_buckets(parts):
    split = TrafficSplit.of(parts, 7)
    assert split.shares() == pytest.approx(wanted(parts), abs=1e-9)
    assert sum(split.sizes().values()) == BUCKETS


@settings(max_examples=40)
@given(st.lists(weights, min_size=2, max_size=6))
def test_weight_change_moves_only_the_necessary_share(history):
    split = TrafficSplit.of(history[0], 7)
    for parts in history[1:]:
        after = split.reweighted(parts)
        before, now = split.sizes(), after.sizes()
        gained = sum(max(0, size - before.get(label, 0)) for label, size in now.items())
        assert moved(split, after) == gained
        assert after.shares() == pytest.approx(wanted(parts), abs=1e-9)
        assert all(a != b for a, b in zip(after.owners, after.owners[1:]))
        split = after


@given(weights)
def test_equal_weights_move_nothing(parts):
    split = TrafficSplit.of(parts, 7)
    again = split.reweighted({label: 3 * weight for label, weight in parts.items()})
    assert again.ends == split.ends
    assert again.owners == split.owners


@given(weights, st.lists(st.binary(max_size=40), max_size=20))
def test_key_is_routed_to_the_same_label_in_every_process(parts, keys):
    split = TrafficSplit.of(parts, 7)
    there = TrafficSplit.from_json(json.loads(json.dumps(split.to_json())))
    assert there == split
    assert labels_of(split, keys) == labels_of(there, keys)


def test_sticky_keys_switch_only_as_far_as_weights_require():
    keys = [b"user-%d" % n for n in range(20_000)]
    split = TrafficSplit.of({"stable": 95, "canary": 5}, 11)
    first = labels_of(split, keys)
    assert first == labels_of(split, keys)
    wider = split.reweighted({"stable": 90, "canary": 10})
    second = labels_of(wider, keys)
    switched = [(a, b) for a, b in zip(first, second) if a != b]
    assert set(switched) == {("stable", "canary")}
    assert len(switched) / len(keys) == pytest.approx(0.05, abs=0.01)
    assert labels_of(wider.reweighted({"stable": 95, "canary": 5}), keys) == first


@pytest.mark.parametrize("sticky", [False, True])
def test_canary_at_five_percent_gets_five_percent_of_100000_requests(sticky):
    split = TrafficSplit.of({"stable": 95, "canary": 5}, 11)
    table = Router(split, split.owners, new_turns())
    picked = [table.pick(b"user-%d" % n if sticky else None) for n in range(100_000)]
    assert abs(picked.count("canary") / 1000 - 5) <= 0.3


def test_different_salt_reassigns_keys():
    a, b = (TrafficSplit.of({"stable": 1, "canary": 1}, salt) for salt in (1, 2))
    keys = [b"%d" % n for n in range(1000)]
    differ = sum(one != other for one, other in zip(labels_of(a, keys), labels_of(b, keys)))
    assert 400 < differ < 600


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "expected 1 to 16 labels, got 0"),
        ({"a": -1, "b": 2}, "expected a weight of 0 or more for 'a', got -1"),
        ({"a": 0, "b": 0}, "expected a weight above 0"),
        ({"a": float("nan")}, "expected a weight of 0 or more"),
        ({"a": float("inf")}, "expected a weight of 0 or more"),
        ({str(n): 1 for n in range(17)}, "expected 1 to 16 labels, got 17"),
    ],
)
def test_invalid_weights_are_refused(parts, words):
    with pytest.raises(BadInput, match=words):
        TrafficSplit.of(parts, 0)


def test_saved_split_is_validated_when_read():
    good = TrafficSplit.of({"a": 1, "b": 1}, 3).to_json()
    for broken in (
        None, {}, good | {"ends": []}, good | {"ends": [5, 4]}, good | {"ends": [1, 2]}, good | {"owners": ["a"]},
        good | {"owners": ["a", "c"]}, good | {"salt": "3"}, good | {"ends": [1.5, BUCKETS]}, good | {"salt": -1},
    ):  # fmt: skip
        with pytest.raises(BadInput):
            TrafficSplit.from_json(broken)


def test_traffic_round_trips_between_processes():
    traffic = Traffic(
        TrafficSplit.of({"a": 1, "b": 2}, 3),
        "user",
        "b",
        0.25,
        {4: EjectedVersion("nonfinite: all of them", 1.7e9)},
        {"max_rows": 5},
        users=OldestUsers(3, 1.5),
    )
    assert Traffic.from_json(json.loads(json.dumps(traffic.to_json()))) == traffic
    assert Traffic.from_json(json.loads(json.dumps(Traffic().to_json()))) == Traffic()
