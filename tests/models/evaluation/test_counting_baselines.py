"""Held-out rows scored by counting what was learned."""

import numpy as np
import pytest

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.data.sequence_columns import SequenceConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.evaluation import counting_baselines
from freshet_serving.models.evaluation.counting_baselines import LAST_ITEM, POPULARITY, CountingBaselines
from freshet_serving.processor.columns import Ragged, Strings

USER = FeatureConfig("user", "id", "user", 4, side="user")
KIND = FeatureConfig("category", "id", "category", 4, side="item")
ITEM = FeatureConfig("item", "id", "item", 4, side="item")
HISTORY = SequenceConfig("history", {"item": "item"}, {"item": "item"}, from_events="user")
EVENT = FeatureConfig("history.item", "ids", "item", 4, side="user", from_="item", sequence=HISTORY)
FEATURES = [USER, KIND, ITEM, EVENT]


def log(rows, seed=0, items=20, labels=None):
    """Rows whose label says whether the item follows the last one: the next number."""
    random = np.random.default_rng(seed)
    item, lengths = random.integers(0, items, rows), random.integers(0, 4, rows)
    history = [random.integers(0, items, n).tolist() for n in lengths]
    follows = np.array([bool(past) and past[-1] + 1 == now for past, now in zip(history, item)])
    chance = np.where(follows, 0.8, 0.02 + 0.3 * item / items)
    label = random.random(rows) < chance if labels is None else labels(item)
    columns = {
        "user": random.integers(0, 9, rows),
        "category": item // 10,
        "item": item,
        "history.item": Ragged.of(history),
    }
    return Batch(columns, label.astype(np.float32), None, 0)


def scored(features, *batches):
    baselines = CountingBaselines(features)
    for batch in batches[:-1]:
        baselines.learned(batch)
    baselines.score(batches[-1])
    return baselines


def test_scores_are_those_of_counts():
    learned, held_out = log(400), log(50, seed=1)
    scores = {}
    for name in (POPULARITY, LAST_ITEM):
        scores[name] = scored(FEATURES, learned, held_out).scored[name]
    rows = list(zip(learned.columns["item"], lasts(learned), learned.label))
    mean = learned.label.mean()
    expected = {POPULARITY: [], LAST_ITEM: []}
    for item, last in zip(held_out.columns["item"], lasts(held_out)):
        own = [label for other, _, label in rows if other == item]
        share = (sum(own) + 20 * mean) / (len(own) + 20)
        pairs = [label for other, before, label in rows if (other, before) == (item, last)]
        expected[POPULARITY].append(share)
        expected[LAST_ITEM].append((sum(pairs) + 3 * share) / (len(pairs) + 3))
    for name, values in expected.items():
        entries = scores[name].tally.counts()
        np.testing.assert_allclose(np.repeat(entries.scores, entries.rows), np.sort(values), rtol=1e-5)


def lasts(batch):
    ends, values = batch.columns["history.item"].row_splits, batch.columns["history.item"].values
    return [int(values[end - 1]) if end > begin else None for begin, end in zip(ends, ends[1:])]


def test_last_item_tells_more_where_items_follow_one_another():
    baselines = scored(FEATURES, *(log(5000, seed) for seed in range(4)), log(5000, 9))
    assert baselines.scored[POPULARITY].auc() < baselines.scored[LAST_ITEM].auc() - 0.02
    line = baselines.line()
    assert line.startswith("baseline: popularity AUC 0.")
    assert line.endswith(" over 5000 rows")
    assert ", last item AUC 0." in line
    popularity, last = baselines.lines("clicked")
    assert popularity == {
        "what": "baseline", "label": "clicked", "name": "popularity", "rows": 5000,
        "auc": baselines.scored[POPULARITY].auc(),
    }  # fmt: skip
    assert last["name"] == "last item"


@pytest.mark.parametrize(("above", "advises"), [(0.01, False), (0.0005, True), (-0.1, True)])
def test_network_that_counting_beats_is_named(above, advises):
    baselines = scored(FEATURES, log(2000), log(2000, 1))
    best = max(one.auc() for one in baselines.scored.values())
    advice = baselines.advice(best + above)
    assert advice.startswith("the network does not beat counting (last item, AUC 0.") if advises else not advice


def test_strings_are_counted_as_ids_are():
    numbers, texts = [log(1000), log(300, 1)], []
    for batch in numbers:
        columns = dict(batch.columns)
        columns["item"] = Strings.of([str(n) for n in columns["item"]])
        past = columns["history.item"]
        columns["history.item"] = Ragged(Strings.of([str(n) for n in past.values]), past.row_splits)
        texts.append(Batch(columns, batch.label, None, 0))
    item = FeatureConfig("item", "string", "item", 4, side="item")
    event = FeatureConfig("history.item", "strings", "item", 4, side="user", from_="item", sequence=HISTORY)
    assert scored([USER, KIND, item, event], *texts).line() == scored(FEATURES, *numbers).line()


def test_item_is_the_column_with_the_most_values():
    assert scored([USER, KIND, ITEM], log(500), log(99, 1)).line() == scored([ITEM], log(500), log(99, 1)).line()
    context = [FeatureConfig(f.name, "id", f.name, 4) for f in (KIND, ITEM)]
    assert scored(context, log(500), log(99, 1)).line() == scored([ITEM], log(500), log(99, 1)).line()


@pytest.mark.parametrize("features", [[USER], [FeatureConfig("price", "float")], []])
def test_model_without_an_item_has_no_baseline(features):
    baselines = scored(features, log(100), log(100, 1))
    assert (baselines.possible, baselines.line(), list(baselines.lines("y")), baselines.advice(0.4)) == (
        False,
        "",
        [],
        "",
    )


def test_nothing_learned_is_no_baseline():
    assert scored(FEATURES, log(100)).line() == ""


def test_one_label_has_no_figure_and_no_advice():
    baselines = scored(FEATURES, log(100), log(100, 1, labels=lambda item: np.ones(len(item))))
    assert "AUC nan" in baselines.line()
    assert baselines.advice(0.5) == ""


def test_only_the_newest_rows_are_kept(monkeypatch):
    monkeypatch.setattr(counting_baselines, "MOST_ROWS", 1000)
    old = log(5000, labels=lambda item: item < 10)
    new = [log(500, seed, labels=lambda item: item >= 10) for seed in range(2)]
    held_out = log(200, 9, labels=lambda item: item >= 10)
    assert scored(FEATURES, old, *new, held_out).scored[POPULARITY].auc() == 1


def test_rows_after_the_first_scored_ones_are_not_counted():
    first, later = scored(FEATURES, log(500), log(99, 1)), scored(FEATURES, log(500), log(99, 1))
    later.learned(log(500, 7))
    for baselines in (first, later):
        baselines.score(log(99, 2))
    assert first.line() == later.line()


def test_first_of_several_labels_counts():
    batches = [log(500), log(99, 1)]
    two = [Batch(b.columns, np.stack([b.label, 1 - b.label], 1), None, 0) for b in batches]
    assert scored(FEATURES, *two).line() == scored(FEATURES, *batches).line()
