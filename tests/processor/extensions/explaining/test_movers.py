"""What moved a score, by a network whose parts are known."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.extensions.explaining import movers as module
from freshet_serving.processor.extensions.explaining.movers import ScoredRow, additions, comparable, movers
from freshet_serving.processor.package import Output, SequenceColumn, SequenceEntry
from tests.processor.backends.artefacts import WIDTH
from tests.support.packages import DIM, manifest


def scored(x, weight=1.0, outputs=("score",), **histories):
    """The score is the sum of the inputs, times a weight."""
    inputs = {name: np.array([row], np.float32) for name, row in {"x": x, **histories}.items()}

    def scores(rows):
        total = sum(part.sum(axis=1, keepdims=True) for part in rows.values())
        return {name: weight * (n + 1) * total for n, name in enumerate(outputs)}

    dense = {"weight": np.array([weight], np.float32)}
    sequences = [
        SequenceEntry(name, [SequenceColumn(f"{name}.i", "ids", f"{name}.i", "t", 0, len(row))], 1, len(row), [])
        for name, row in histories.items()
    ]
    made = replace(manifest(), outputs=[Output(name) for name in outputs], sequences=sequences)
    return ScoredRow(made, inputs, dense, {n: s[0] for n, s in scores(inputs).items()}, scores)


def row(user=0.0, tags=0.0, f0=0.0):
    return [user] + [0.0] * (DIM - 1) + [tags] + [0.0] * (DIM - 1) + [f0] + [0.0] * (WIDTH - 2 * DIM - 1)


def test_features_are_ranked_by_how_far_they_moved_the_score():
    found, left = movers(scored(row(user=1.0, tags=5.0, f0=2.0)), scored(row(user=1.5, tags=1.0, f0=2.0)))
    assert [(m["what"], m["feature"], float(m["score_change"])) for m in found] == [
        ("feature tags", "tags", 4.0),
        ("feature user", "user", -0.5),
    ]
    assert left == 0


def test_dense_weights_are_ranked_as_one_entry():
    found, _ = movers(scored(row(user=2.0), weight=3.0), scored(row(user=2.0), weight=1.0))
    assert [(m["what"], m["feature"], float(m["score_change"])) for m in found] == [("dense weights", None, 4.0)]


def test_histories_are_ranked_apart_from_dense_weights():
    side, other = scored(row(user=2.0), 3.0, hist=[1.0, 4.0]), scored(row(user=2.0), 1.0, hist=[1.0, 2.0])
    found, _ = movers(side, other)
    # The other side's dense weights score this side's history: 7 * 3 - 7 * 1.
    assert [(m["what"], m["feature"], float(m["score_change"])) for m in found] == [
        ("dense weights", None, 14.0),
        ("history hist", None, 6.0),
    ]


def test_same_generation_moves_nothing():
    assert movers(scored(row(user=2.0)), scored(row(user=2.0))) == ([], 0)


def test_output_that_moved_furthest_ranks_the_features():
    found, _ = movers(scored(row(user=2.0), outputs=("a", "b")), scored(row(user=1.0), outputs=("a", "b")))
    assert float(found[0]["score_change"]) == 2.0
    assert {name: values.tolist() for name, values in found[0]["outputs"].items()} == {"a": [1.0], "b": [2.0]}


def test_smallest_movers_are_omitted_and_counted(monkeypatch):
    monkeypatch.setattr(module, "MOST_MOVED", 1)
    found, left = movers(scored(row(user=1.0, tags=5.0, f0=2.0)), scored(row()))
    assert ([m["feature"] for m in found], left) == (["tags"], 2)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_score_is_not_an_error():
    found, _ = movers(scored(row(user=np.nan)), scored(row(user=1.0)))
    assert np.isnan(found[0]["score_change"])


def test_versions_with_equal_feature_columns_are_comparable():
    small = manifest(users=1)
    assert comparable(small, manifest(version=2, users=9))
    assert not comparable(small, replace(small, outputs=[Output("other")]))
    assert not comparable(small, replace(small, sequences=scored(row(), hist=[1.0]).manifest.sequences))
    assert not comparable(small, replace(small, features=small.features[:1], width=DIM))


def test_feature_adds_what_the_score_loses_without_its_rows():
    # f0 has no row, and tags' are zeros.
    added = additions(scored(row(user=2.0, f0=9.0), 3.0))
    assert {name: float(change) for name, change in added.items()} == {"user": 6.0}
    assert additions(scored(row(f0=9.0))) == {}
