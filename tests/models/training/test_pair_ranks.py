"""Rows are ranked among the recent items as they are, whose vectors are computed when it is time."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.evaluation.retrieval_ranking import RetrievalRanking
from freshet_serving.models.training import pair_ranks
from freshet_serving.models.training.pair_ranks import PairRanks
from tests.models.training.test_retrieval_trainer import make_trainer, pairs

pytestmark = pytest.mark.tensorflow


def plain_gains(trainer, work, top):
    """Each row's share of the NDCG by its product with every recent item."""
    users = trainer.user_vectors(work, np.arange(len(work.pairs)))
    items = trainer.item_vectors(np.arange(len(trainer.recent)))
    gains = []
    for user, key in zip(users, trainer.item_keys(work.bound).tolist()):
        places = np.flatnonzero(trainer.recent.keys == key)
        rank = (items @ user >= items[places[0]] @ user).sum() if len(places) else 0
        gains.append(np.nan if not len(places) else 1 / np.log2(rank + 1) if rank <= top else 0.0)
    return np.array(gains)


def test_rows_are_ranked_among_recent_items(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    for turn in range(3):
        trainer.learn(pairs(*((n % 5, 100 + (n + turn) % 20) for n in range(30))))
    ranks, ranking = PairRanks(trainer), RetrievalRanking(3)
    batch = pairs(*((n % 6, 98 + n) for n in range(12)), labels=[0] + [1] * 11)
    work, before = trainer.transform(batch), len(trainer.recent)
    gains = ranks.rank(work, ranking)
    np.testing.assert_allclose(gains, plain_gains(trainer, work, 3))
    assert np.isnan(gains).sum() == 1
    assert (ranking.targets, ranking.items) == (11, 20)
    assert len(trainer.recent) == before
    assert len(ranks.rank(work, RetrievalRanking(3), most=4)) == 4
    monkeypatch.setattr(pair_ranks, "MOST_SCORES", 60)
    assert len(ranks.rank(work, RetrievalRanking(3))) == 3


def test_item_vectors_are_computed_anew_after_as_many_rows_as_items(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.learn(pairs(*((n, 100 + n) for n in range(8))))
    ranks, computed = PairRanks(trainer), []
    compute = trainer.item_vectors
    trainer.item_vectors = lambda places: computed.append(len(places)) or compute(places)
    for _ in range(4):
        ranks.rank(trainer.transform(pairs((1, 100))), RetrievalRanking(3))
        trainer.learn(pairs((1, 100), (2, 101), (3, 102)))
    assert computed == [8, 8]
    # Weights that went back, too.
    trainer.dense.state.assign({})
    ranks.rank(trainer.transform(pairs((1, 100))), RetrievalRanking(3))
    assert computed == [8, 8, 8]


def test_batch_without_a_chosen_row_ranks_nothing(tmp_path):
    trainer = make_trainer(tmp_path)
    ranks = PairRanks(trainer)
    work = trainer.transform(pairs((1, 100), labels=[0]))
    assert len(ranks.rank(work, RetrievalRanking(3))) == 0
    assert len(ranks.rank_again([work], RetrievalRanking(3), 5)) == 0
    trainer.learn(pairs((1, 100), (2, 101)))
    assert len(ranks.rank(work, RetrievalRanking(3))) == 0


def test_rows_are_ranked_again_among_a_sample_that_has_their_items(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_ranks, "SAMPLED", 4)
    trainer = make_trainer(tmp_path)
    trainer.learn(pairs(*((n, 100 + n) for n in range(16))))
    work, ranking = trainer.transform(pairs((1, 101), (2, 113))), RetrievalRanking(3)
    gains = PairRanks(trainer).rank_again([work, work], ranking, 5)
    assert len(gains) == 4
    assert not np.isnan(gains).any()
    assert ranking.items == 6
