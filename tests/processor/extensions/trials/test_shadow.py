"""Copies of requests, scored by another version: compared, never in the way, dropped first."""

import threading

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.trials.shadow import MAX_QUEUED, ThreadCpuUsage, shadow_comparison
from freshet_serving.processor.sessions.group import SessionGroup
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.support.packages import make_inputs, make_weights, write_package
from tests.support.waiting import until

USERS = range(6)
GIVE_UP_S = 60


@pytest.fixture
def opened(tmp_path):
    """Makes a processor of versions 1 and 2, the second in the shadow of the first."""
    processors = []

    def make(seed=0, weights=make_weights, options=None, **policy):
        root = tmp_path / "repository"
        write_package(root, users=USERS)
        write_package(root, 2, users=USERS, seed=seed, weights=weights)
        asked = {"versions": "all", "labels": {"stable": 1, "next": 2}, "split": {"stable": 1}, "shadow": "next"}
        policies = {"small": ModelPolicy.parse({**asked, "shadow_share": 1.0, **policy}, "model.small")}
        config = ProcessorConfig(repository=str(root), policies=policies, **(options or {"sessions": 2}))
        processors.append(Processor.initialize(config))
        return processors[-1]

    yield make
    for processor in processors:
        processor.close()


def ask(processor, count=1, **more):
    return [processor.process(PredictRequest("small", make_inputs([0, 1, 2], seed=n), **more)) for n in range(count)]


def shadow_comparisons(processor):
    return shadow_comparison(processor.host, processor.host.model("small").pick(2))


def wait_for(processor, requests):
    """What the shadow has done, once it has done so much."""

    def done():
        found = shadow_comparisons(processor)
        return found.differences.requests + found.differences.failed + found.dropped >= requests and found

    return until(done)


@pytest.fixture
def calm(monkeypatch):
    """Whatever else this machine does, nobody is busy."""
    monkeypatch.setattr(ThreadCpuUsage, "share", lambda self: 0.0)


@pytest.mark.parametrize("options", [{"sessions": 2}, {"compute": "inline"}])
def test_shadow_with_equal_weights_has_zero_difference(opened, calm, options):
    processor = opened(options=options)
    replies = ask(processor, 20)
    assert {str(reply.generation) for reply in replies} == {"1.0"}
    found = wait_for(processor, 20)
    scores = found.differences.scores(0)
    assert (found.dropped, found.differences.failed) == (0, 0)
    assert (scores.count, scores.total) == (60, 0.0)
    host = processor.host
    versions = [host.model("small").pick(number) for number in (1, 2)]
    assert shadow_comparison(host, versions[0]) is None
    assert [host.sketch(version).requests for version in versions] == [20, 0]


def test_difference_is_the_shadow_score_minus_the_answered_one(opened, calm):
    processor = opened(seed=5)
    inputs = make_inputs([0, 1, 2], seed=0)
    (reply,) = ask(processor)
    other = processor.process(PredictRequest("small", inputs, version=2))
    apart = other.outputs["score"] - reply.outputs["score"]
    scores = wait_for(processor, 1).differences.scores(0)
    assert scores.count == 3
    assert scores.total == pytest.approx(float(apart.sum()), abs=1e-6)


def test_shadow_with_non_finite_scores_is_reported(opened, calm):
    def broken(seed):
        weights = make_weights(seed)
        weights["mlp_out/kernel"][:] = np.nan
        return weights

    processor = opened(weights=broken)
    ask(processor, 2)
    assert wait_for(processor, 2).differences.scores(0).lost == 6


def test_share_of_unversioned_requests_is_copied_to_the_shadow(opened, calm):
    processor = opened(shadow_share=0.25)
    ask(processor, 20, version=1)
    ask(processor, 20, label="stable")
    ask(processor, 20)
    assert wait_for(processor, 5).differences.requests == 5


def test_copies_are_dropped_while_requests_wait(opened, calm, monkeypatch):
    processor = opened()
    monkeypatch.setattr(SessionGroup, "spare", False)
    ask(processor, 5)
    found = wait_for(processor, 5)
    assert (found.dropped, found.differences.requests) == (5, 0)


def test_copies_are_dropped_while_the_http_front_is_busy(opened, monkeypatch):
    processor = opened()
    monkeypatch.setattr(ThreadCpuUsage, "share", lambda self: 0.99)
    ask(processor, 5)
    assert wait_for(processor, 5).dropped == 5


def test_waiting_copies_are_bounded_and_delay_no_request(opened, monkeypatch):
    processor = opened()
    gate = threading.Event()
    monkeypatch.setattr(ThreadCpuUsage, "share", lambda self: gate.wait(GIVE_UP_S) and 0.0)
    count = MAX_QUEUED + 20
    assert len(ask(processor, count)) == count
    assert shadow_comparisons(processor).dropped >= 10
    gate.set()
    wait_for(processor, count)


def test_shadow_starts_and_ends_with_the_policy(opened, calm):
    processor = opened()
    ask(processor)
    wait_for(processor, 1)
    processor.host.set_policy("small", {"shadow": ""})
    assert shadow_comparisons(processor) is None
    ask(processor)
    processor.host.set_policy("small", {"shadow": "next"})
    ask(processor)
    assert wait_for(processor, 1).differences.requests == 1


def test_deltas_and_shadow_scoring_do_not_block_each_other(opened, calm):
    processor = opened()
    for _ in range(5):
        ask(processor, 5)
        generation = processor.predictor.replica("small", 2).generation
        processor.rollback("small", generation)
    wait_for(processor, 25)


def test_busy_time_includes_running_and_waiting_for_a_core():
    clock, ran = FakeClock(), {7: 0.0}
    busy = ThreadCpuUsage(clock, ran.get)
    busy.thread = 7
    assert busy.share() == 0
    clock.advance(0.1)
    ran[7] = 0.09
    assert busy.share() == pytest.approx(0.9)
    clock.advance(0.01)
    assert busy.share() == pytest.approx(0.9)
    clock.advance(0.1)
    assert busy.share() == pytest.approx(0.0)
    busy.thread = 8
    assert busy.share() == 0
