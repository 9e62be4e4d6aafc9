"""Rows that were asked for lately, scored under a state that nobody is served yet."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.extensions.guard.request_scoring import extent
from freshet_serving.processor.extensions.guard.sample_scoring import runs
from freshet_serving.processor.package.delta import TableDelta
from freshet_serving.processor.sessions.request import Work
from freshet_serving.processor.sessions.session import Session
from freshet_serving.processor.versions.erasure import ErasedUser, erase
from freshet_serving.processor.versions.sample import SampleRows
from tests.support.guarded import NONE, Stream, as_inputs, write_guarded
from tests.support.packages import open_version, rows_of

COSTS = {1: 1e-5, 4: 2e-5, 16: 4e-5}


class Staged(Exception):
    """Nothing is to be flipped."""


@pytest.fixture
def version(tmp_path):
    return open_version(write_guarded(tmp_path))


def sampled(version, requests=10, rows=8):
    replica = version.replicas
    for seed in range(requests):
        inputs = as_inputs(rows, seed)
        replica.sample.take(replica.plan.bind_inputs(inputs), inputs)
    return replica


def previewed(version, delta, max_rows=256, max_s=1.0):
    """What the delta would do; it is not served."""
    told = []

    def examine(change):
        told.append(version.preview(change, max_rows, max_s))
        raise Staged

    with pytest.raises(Staged):
        version.apply(delta, examine=examine)
    return told[0]


def scored(replica, requests):
    """What a session would answer."""
    return np.concatenate([_answer(replica, as_inputs(8, seed)) for seed in range(requests)])


def _answer(replica, inputs):
    answers = []
    bound = replica.plan.bind_inputs(inputs)
    Session(0, SystemClock()).run([Work(bound.rows, bound.ids, replica=replica, bound=bound, done=answers.append)])
    return answers[0].outputs["score"]


def test_preview_scores_equal_the_scores_before_and_after_serving(version):
    replica, stream = sampled(version), Stream()
    before, delta = scored(replica, 10), stream.good(rate=30.0)
    told = previewed(version, delta)
    assert told.rows == 80
    np.testing.assert_array_equal(scored(replica, 10), before)
    version.apply(delta)
    after = scored(replica, 10)
    bias = next(f.value for f in told.figures if f.kind == "bias")
    assert bias == pytest.approx(abs(after.mean() - before.mean()) / before.mean(), rel=1e-3)
    assert bias > 0


def test_preview_changes_no_counters_and_leaves_no_pin(version):
    replica = sampled(version)
    previewed(version, Stream().good())
    assert replica.costs.cost.keys() == {1, 4, 16}
    assert all(buffers.counts.sum() == 0 for buffers in replica._buffer_pool)
    assert version.control.oldest_pin() > version.change.publish_seq


def test_newest_scores_are_reused_for_the_next_comparison(version):
    replica, stream = sampled(version), Stream()
    looked = []
    scorer = replica._scorer
    score = scorer._score
    scorer._score = lambda *args: looked.append(args[0].digest) or score(*args)
    for _ in range(3):
        version.apply(stream.good(), examine=lambda change: version.preview(change, 256, 1.0))
    assert len(looked) == 4


def test_scores_of_a_sample_are_forgotten_with_a_user(version):
    replica, stream = sampled(version), Stream()
    version.apply(stream.good(), examine=lambda change: version.preview(change, 256, 1.0))
    scorer = replica._scorer
    assert scorer._scored is not None
    erase(user := ErasedUser(version.manifest.model, ("user",), "3"))
    assert scorer._scored is None
    score = scorer._score

    def meanwhile(*args):
        scorer.erase_user(user)
        return score(*args)

    scorer._score = meanwhile
    previewed(version, stream.good())
    assert scorer._scored is None


def test_previewed_but_unserved_delta_is_not_compared_with(version):
    replica, stream = sampled(version), Stream()
    previewed(version, stream.fault("times_1.7"))
    told = previewed(version, stream.good())
    assert max(f.value for f in told.figures if f.kind == "bias") < 0.05
    assert str(replica.generation) == "1.0"


def test_preview_needs_enough_sample_rows(version):
    sampled(version, requests=3)
    assert previewed(version, Stream().good()) is None


def test_preview_without_a_replica_returns_nothing(tmp_path):
    version = open_version(write_guarded(tmp_path))
    version._replicas = None
    assert version.preview(version.change, 256, 1.0) is None


@given(st.integers(0, 5000), st.floats(1e-6, 1.0))
def test_sampled_rows_are_whole_runs_within_the_time_limit(rows, max_s):
    bucket, fit = extent(COSTS, rows, max_s)
    assert bucket == 16
    assert fit <= rows
    assert fit == rows or fit == 32 or (fit % bucket == 0 and fit / bucket * COSTS[bucket] <= max_s)


def test_preview_prefers_a_smaller_bucket_over_one_others_wait_for():
    assert extent({1: 1e-4, 64: 1e-3, 256: 1e-3}, 256, 0.002) == (64, 128)
    assert extent({256: 1e-3}, 100, 0.002) == (256, 100)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=40), st.integers(1, 100), st.sampled_from([1, 4, 16]))
def test_every_sampled_row_is_in_one_run_in_order(counts, most, bucket):
    sample = [SampleRows(number, count) for number, count in enumerate(counts)]
    rows = min(most, sum(counts))
    seen = []
    for part, spans in runs(sample, rows, bucket):
        assert 0 < spans[:, 1].sum() <= bucket
        for number, (first, count) in zip(part, spans.tolist()):
            seen += [(number, row) for row in range(first, first + count)]
    assert seen == [(number, row) for number, count in enumerate(counts) for row in range(count)][:rows]


def test_rows_unchanged_by_a_delta_are_not_scored_again(version):
    replica, stream = sampled(version), Stream()
    scorer, ran = replica._scorer, []
    scorer._buffers = replica._new_buffers()
    get = scorer._buffers.get

    def counted(executable, subgraph):
        inputs, outputs, run = get(executable, subgraph)
        return inputs, outputs, lambda: (ran.append(executable.bucket), run())

    scorer._buffers.get = counted
    users = np.unique(np.concatenate([as_inputs(8, seed)["user"] for seed in range(10)]))
    one = users[:1]
    moved = rows_of(one, 0) + np.float32(1)
    before = scored(replica, 10)
    delta = stream._delta({"user": TableDelta(one, moved, NONE)}, {})
    told = previewed(version, delta)
    # 80 rows under the state that is served, and one run for those that have the user.
    assert ran == [16] * 5 + [16]
    version.apply(delta)
    after = scored(replica, 10)
    assert 0 < (before != after).sum() < 16
    bias = next(f.value for f in told.figures if f.kind == "bias")
    assert bias == pytest.approx(abs(after.mean() - before.mean()) / before.mean(), rel=1e-3)
    # Nothing that was asked for has changed: no run at all.
    ran.clear()
    version.apply(
        stream._delta({"user": TableDelta(one, moved, NONE)}, {}), examine=lambda c: version.preview(c, 256, 1.0)
    )
    ran.clear()
    previewed(version, stream._delta({"user": TableDelta(one, moved, NONE)}, {}))
    assert ran == []
