"""Rank 0's trainer, as the run and its checkpoints use it."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.parallel.rank_loop import LeadTrainerFactory
from freshet_serving.models.training.checkpoint import Checkpoints, RunState
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.errors import BadInput
from tests.models.parallel.fakes import Together, thread_ranks
from tests.models.parallel.test_rank_trainer import arguments, assert_alike, batches
from tests.models.training.streams import make_batch

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]


def test_checkpoints_are_restored_by_any_number_of_processes(tmp_path):
    given = arguments(optimizer="adam")
    stream = list(batches(60))
    with Together(3, *given) as first:
        saved = Checkpoints(tmp_path)
        for n, batch in enumerate(stream[:40]):
            first.learn(batch)
            if n % 13 == 12:
                saved.save(first, RunState("", {}))
        saved.save(first, RunState("", {}))
        scores = first.score(stream[-1].columns)
        for processes in (1, 4):
            if processes == 1:
                one = Trainer(*given)
                Checkpoints(tmp_path).restore(one)
                assert np.allclose(one.score(stream[-1].columns), scores, atol=1e-6)
                assert_alike(one, first, 0)
                continue
            with Together(processes, *given) as second:
                second.learn(stream[0])
                Checkpoints(tmp_path).restore(second)
                assert second.steps == first.steps == 40
                assert np.allclose(second.score(stream[-1].columns), scores, atol=1e-6)
                assert_alike(first, second, 0)
                for batch in stream[40:]:
                    second.learn(batch)
                for batch in stream[40:]:
                    one.learn(batch)
                assert np.allclose(second.score(stream[-1].columns), one.score(stream[-1].columns), atol=1e-5)


def test_prefetched_but_unlearned_batches_are_dropped():
    given = arguments(tables={})
    one = Trainer(*given)
    stream = list(batches(12))
    with Together(2, *given) as many:
        works = [many.transform(batch) for batch in stream]
        for n in (1, 4, 5, 11):
            assert np.allclose(many.score(works[n]), one.score(stream[n].columns), atol=1e-6)
            assert many.learn(works[n]) == pytest.approx(one.learn(stream[n]), abs=1e-6)
        assert many.profile.measured()["exchange"].times > 0


def test_assigned_weights_reach_all_ranks_before_the_next_batch():
    given = arguments(tables={})
    one = Trainer(*given)
    batch = make_batch(64, 1)
    with Together(3, *given) as many:
        for trainer in (one, many):
            trainer.learn(batch)
            trainer.dense.set_initial_bias([1.5])
        assert np.allclose(many.score(batch.columns), one.score(batch.columns), atol=1e-6)
        weights = {name: 0.5 * weight for name, weight in one.dense.weights().items()}
        for trainer in (one, many):
            trainer.dense.begin_with(weights)
        assert many.learn(batch) == pytest.approx(one.learn(batch), abs=1e-6)
        assert np.allclose(many.score(batch.columns), one.score(batch.columns), atol=1e-6)


def test_clearing_drops_the_rows_of_all_processes():
    with Together(2, *arguments()) as many:
        many.learn(make_batch(64, 1))
        assert len(many.tables["city"]) > 0
        many.clear()
        assert sum(map(len, many.tables.values())) == 0


def test_bad_row_on_another_rank_fails_rank_0():
    given = arguments()
    bad = make_batch(64, 1)
    bad.columns["price"][60] = np.inf
    with pytest.raises(BadInput, match="price"), Together(2, *given) as many:
        many.learn(bad)


def test_run_failing_before_its_trainer_ends_the_others():
    ranks = thread_ranks(2)
    LeadTrainerFactory(*ranks[:1], thread_ranks(2)[0]).close("no file")
    with pytest.raises(BadInput, match="no file"):
        ranks[1].receive(0)
