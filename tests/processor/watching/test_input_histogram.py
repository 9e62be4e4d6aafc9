"""Histograms of training rows in a version's notes, and how far requests are from them."""

import json
import math

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.watching import input_histogram
from freshet_serving.processor.watching.input_histogram import (
    LEAST_VALUES,
    InputHistogram,
    input_histograms,
    training_shifts,
)


def rows(seed, count=4000, mean=0.0, missing=0.0, longest=5, words=50):
    """Rows of a number, an id and a list of words."""
    random = np.random.default_rng(seed)
    price = random.normal(mean, 1.0, count).astype(np.float32)
    price[random.random(count) < missing] = np.nan
    lengths = random.integers(0, longest, count)
    tags = Strings.of([f"tag-{n}" for n in random.geometric(5 / words, int(lengths.sum()))])
    splits = np.concatenate([[0], np.cumsum(lengths)])
    return {"price": price, "user": random.geometric(0.05, count), "tags": Ragged(tags, splits)}


@pytest.fixture(scope="module")
def notes():
    """As a manifest keeps them."""
    return json.loads(json.dumps(input_histograms([rows(1), rows(2)])))


def shifts(notes, **changes):
    return training_shifts(notes, [rows(seed, 64, **changes) for seed in range(3, 9)])


def test_requests_like_training_do_not_shift(notes):
    assert max(shifts(notes).values()) < 0.15
    assert shifts(notes).keys() == {"price", "tags", "user"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [("price", {"mean": 1.0}), ("price", {"missing": 0.2}), ("tags", {"longest": 40}), ("tags", {"words": 5})],
)
def test_only_the_input_that_changed_shifts(notes, name, changes):
    moved = shifts(notes, **changes)
    assert [one for one, shift in moved.items() if shift > 0.25] == [name]


def test_notes_hold_no_value_of_an_id_or_word(notes):
    assert notes["user"].keys() == notes["tags"].keys() == {"shares", "lengths"}
    assert len(json.dumps(notes["tags"])) < 400


def test_number_with_one_value_is_compared():
    notes = input_histograms([{"age": np.full(100, 3.0, np.float32)}])
    assert training_shifts(notes, [{"age": np.full(100, 3.0, np.float32)}]) == {"age": 0.0}
    assert training_shifts(notes, [{"age": np.full(100, 4.0, np.float32)}])["age"] > 0.25


def test_missing_throughout_is_compared():
    notes = input_histograms([{"age": np.full(100, np.nan, np.float32)}])
    assert training_shifts(notes, [{"age": np.full(100, 1.0, np.float32)}])["age"] > 0.25


def test_few_values_and_other_types_are_not_compared(notes):
    few, other = np.zeros(LEAST_VALUES - 1, np.float32), np.zeros(100, np.int64)
    assert training_shifts(notes, [{"price": few}]) == training_shifts(notes, [{"price": other}]) == {}
    assert input_histograms([{"price": few}]) == input_histograms([]) == {}


def test_inputs_beyond_the_limit_are_left_out(monkeypatch):
    monkeypatch.setattr(input_histogram, "MOST_INPUTS", 1)
    assert input_histograms([{"a": np.zeros(100), "b": np.zeros(100)}]).keys() == {"a"}


@pytest.mark.parametrize(
    "raw",
    [
        None, 7, [], "shares", {}, {"shares": [1.0], "lengths": []}, {"shares": [0.1] * 10, "lengths": [1.0]},
        {"shares": [0.2] * 10, "lengths": []}, {"shares": [math.nan] * 10, "lengths": []},
        {"shares": ["x"] * 10, "lengths": []}, {"shares": [[0.1] * 10], "lengths": []},
        {"shares": [-1.0, 2.0] + [0.0] * 8, "lengths": []},
        {"edges": [1.0, 1.0], "shares": [0.25] * 4, "lengths": []},
        {"edges": [math.inf], "shares": [1.0, 0.0, 0.0], "lengths": []},
        {"edges": list(range(40)), "shares": [1.0] + [0.0] * 41, "lengths": []},
        {"edges": [10**400], "shares": [1.0, 0.0, 0.0], "lengths": []},
    ],
)  # fmt: skip
def test_malformed_notes_count_as_none(raw):
    assert InputHistogram.from_notes(raw) is None
    assert training_shifts({"price": raw}, [rows(1)]) == training_shifts(raw, [rows(1)]) == {}
