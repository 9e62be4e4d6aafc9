"""Kept requests, scored by the version that kept them and by another."""

import numpy as np
import pytest

from freshet_serving.processor.extensions.guard.kept_requests import KeptRequest, dump_requests
from tests.processor.extensions.guard.test_sample_scoring import sampled, scored
from tests.support.guarded import Stream, as_inputs, write_guarded
from tests.support.packages import open_version

SECONDS = 60.0


@pytest.fixture
def version(tmp_path):
    return open_version(write_guarded(tmp_path))


def test_scores_are_those_that_a_session_answers(version):
    replica = sampled(version)
    scores = replica.score(replica.kept(), SECONDS)
    assert scores.scored.all()
    assert not scores.refused.any()
    # The newest requests come first.
    answered = scored(replica, 10).reshape(10, 8, 1)[::-1].reshape(80, 1)
    np.testing.assert_allclose(scores.outputs["score"], answered, rtol=1e-6)
    assert scores.lookups == (80 * 3, 0)


def test_scores_follow_the_served_generation(version):
    replica = sampled(version)
    requests = replica.kept()
    before = replica.score(requests, SECONDS).outputs["score"]
    version.apply(Stream().fault("times_2"))
    assert (replica.score(requests, SECONDS).outputs["score"] > before).all()
    assert version.control.oldest_pin() > version.change.publish_seq


def test_requests_that_cannot_be_read_are_refused_alone(version):
    good, bad = as_inputs(2), as_inputs(3)
    bad["floats"] = bad["floats"][:, :3]
    other_rows = KeptRequest(as_inputs(4), 5)
    infinite = as_inputs(1)
    infinite["floats"][0, 0] = np.inf
    requests = [KeptRequest(infinite, 1), other_rows, KeptRequest(bad, 3), KeptRequest({}, 1), KeptRequest(good, 2)]
    scores = version.replicas.score(dump_requests(requests), SECONDS)
    assert scores.refused.tolist() == [False] * 2 + [True] * 10
    assert scores.scored.tolist() == [True] * 2 + [False] * 10


def test_no_row_is_scored_or_refused_without_time(version):
    scores = version.replicas.score(dump_requests([KeptRequest(as_inputs(8), 8)]), 0.0)
    assert not scores.scored.any()
    assert not scores.refused.any()


def test_remembered_requests_are_kept_until_there_are_own_ones(tmp_path):
    old, new = (open_version(write_guarded(tmp_path, number)) for number in (1, 2))
    unreadable = KeptRequest({"user": np.array([1])}, 1)
    new.replicas.remember(dump_requests([unreadable, KeptRequest(as_inputs(8, 3), 8)]))
    assert new.replicas.score(new.replicas.kept(), SECONDS).scored.sum() == 8
    requests = sampled(old).kept()
    new.replicas.remember(requests)
    assert new.replicas.score(new.replicas.kept(), SECONDS).scored.sum() == 88
