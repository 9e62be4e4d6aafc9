"""A generation ranks chosen items by the vectors that a server answers, beside a plain loop."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.progress import SilentReporter
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.retrieval_evaluation import RetrievalRanker, nothing, rank_pairs
from freshet_serving.models.evaluation.retrieval_ranking import RetrievalRanking
from freshet_serving.models.training.retrieval_run import RetrievalRun
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Input
from tests.models.training.retrieval_logs import ITEMS, pairs_config, write_log

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_log(folder / "log.csv")
    config = pairs_config(folder, publish={"delta_rows": 0, "gate": {"mode": "off"}}, train={"epochs": 15})
    RetrievalRun(config).full()
    return config, folder


def scorer_of(folder):
    return GenerationScorer(str(folder / "repository"), "pairs")


def test_ranks_are_those_of_the_served_scores(story):
    config, folder = story
    with scorer_of(folder) as scorer:
        ranking = rank_pairs(scorer, config.data, config, 10, SilentReporter(), 1100, 60)
        batch = next(iter(open_source(config.data, config.features).batches(60, 1100)))
        hits, gain, events = {10: 0, 100: 0}, 0.0, 0
        items = np.arange(100, 100 + ITEMS)
        kinds = Strings.of([f"k{n % 3}" for n in range(ITEMS)])
        for user, item, label in zip(batch.columns["user_id"].tolist(), batch.columns["item_id"], batch.label):
            if label < 0.5:
                continue
            columns = {"user_id": Strings.of([user] * ITEMS), "item_id": items, "kind": kinds}
            scores = scorer.score(columns, ITEMS, ["score"])
            place = (scores >= scores[item - 100]).sum()
            events += 1
            hits = {top: count + (place <= top) for top, count in hits.items()}
            gain += 1 / np.log2(place + 1) if place <= 10 else 0.0
    assert ranking.targets == events
    assert ranking.items == ITEMS
    # By other users' vectors it is that of chance, 10 of 60.
    assert hits[10] / events > 0.4
    figures = {"recall@10": hits[10] / events, "recall@100": 1.0, "ndcg@10": gain / events}
    # Scores are sigmoids, of which few are equal in float32.
    assert ranking.figures() == pytest.approx(figures, abs=0.03)


def test_catalogue_has_each_item_with_its_newest_row(story):
    config, folder = story
    with scorer_of(folder) as scorer:
        ranker = RetrievalRanker(scorer, config)
        batches = list(open_source(config.data, config.features).batches(100))
        whole = ranker.catalogue(batches)
        assert whole.keys.tolist() == list(range(100, 100 + ITEMS))
        assert whole.columns["item_id"].tolist() == whole.keys.tolist()
        assert ranker.items(whole.columns).keys.tolist() == whole.keys.tolist()
        with pytest.raises(BadInput, match="items: expected a column 'kind'"):
            ranker.items({"item_id": whole.columns["item_id"]})
        assert len(ranker.catalogue([]).keys) == 0


def test_rows_without_a_choice_are_refused(story):
    config, folder = story
    with scorer_of(folder) as scorer:
        with pytest.raises(BadInput, match="data: expected a row after row 5,000"):
            rank_pairs(scorer, config.data, config, 10, SilentReporter(), 5000, 0)
        ranker, ranking = RetrievalRanker(scorer, config), RetrievalRanking(10)
        batch = next(iter(open_source(config.data, config.features).batches(9)))
        nobody = dataclasses.replace(batch, label=np.zeros(9, np.float32))
        assert len(ranker.rank(nobody, ranking).ranks) == ranking.targets == 0


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Input("a", "int64"), [0, 0]),
        (Input("a", "float32", columns=2), [[0.0, 0.0], [0.0, 0.0]]),
        (Input("a", "string"), [b"", b""]),
    ],
)
def test_nothing_is_zeros_and_empty_strings(spec, expected):
    assert nothing(spec, 2).tolist() == expected


@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_nothing_of_lists_is_empty_lists(dtype):
    column = nothing(Input("a", dtype, ragged=True), 3)
    assert (len(column), len(column.values)) == (3, 0)
