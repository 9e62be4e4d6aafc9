"""Batches that arrive ahead, and the life of a rank."""

import numpy as np
import pytest

from freshet_serving.models.parallel.batch_slices import encoded
from freshet_serving.models.parallel.lead_trainer import NO_MORE
from freshet_serving.models.parallel.rank_loop import KEPT, ArrivingBatches, serve
from freshet_serving.models.parallel.ranks import RankFailed
from freshet_serving.models.runs.step_profile import StepProfile
from freshet_serving.processor.errors import BadInput
from tests.models.parallel.fakes import thread_ranks

LABEL = np.array([0, 1], np.float32)


class Plan:
    """Binds what is not negative."""

    def bind_inputs(self, columns):
        if columns["user"][0] < 0:
            raise BadInput("user: no")
        return columns["user"].tolist()


class Trainer:
    def __init__(self):
        self.plan, self.profile = Plan(), StepProfile(lambda: 0.0)
        self.manifest = type("Manifest", (), {"inputs": [type("Input", (), {"name": "user"})()]})()


def numbered(number, user):
    column = np.array([user, user])
    message = encoded({"user": column}, ["user"], LABEL, LABEL, 0, 2)
    return np.concatenate([np.array([number]).view(np.uint8), message])


@pytest.fixture
def lead_and_batches():
    ranks = thread_ranks(2)
    batches = ArrivingBatches(ranks[1], Trainer())
    yield ranks[0], batches
    ranks[0].send(1, np.array([NO_MORE]))
    batches.close()


def test_batches_can_be_taken_repeatedly_until_a_much_later_one(lead_and_batches):
    lead, batches = lead_and_batches
    for number in (1, 2, 3 + KEPT):
        lead.send(1, numbered(number, 10 * number))
    for number in (1, 1, 2, 1, 3 + KEPT, 3 + KEPT):
        assert batches.take(number)[0] == [10 * number] * 2
    assert sorted(batches._arrived) == [3 + KEPT]


def test_bad_batch_raises_when_it_is_taken(lead_and_batches):
    lead, batches = lead_and_batches
    lead.send(1, numbered(1, -1))
    lead.send(1, numbered(2, 7))
    with pytest.raises(BadInput, match="user: no"):
        batches.take(1)
    assert batches.take(2)[0] == [7, 7]


def test_lead_failure_reaches_a_rank_waiting_for_a_batch():
    ranks = thread_ranks(2)
    batches = ArrivingBatches(ranks[1], Trainer())
    ranks[0].fail("gone")
    with pytest.raises(RankFailed, match="gone"):
        batches.take(1)


def test_error_of_a_rank_reaches_all_ranks():
    ranks, batches = thread_ranks(3), thread_ranks(3)
    # No description of a trainer.
    ranks[0].send(1, np.zeros(0, np.uint8))
    with pytest.raises(RankFailed, match="process 1: ValueError"):
        serve(ranks[1], batches[1])
    for other in (0, 2):
        with pytest.raises(RankFailed, match="process 1: ValueError"):
            ranks[other].receive(1)
