"""What is evidence against a canary, and what is none: who asked, what was asked, and what the baseline made of it."""

import threading
import time

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.trials import canary_trial as trials
from freshet_serving.processor.extensions.trials.canary_judge import CanaryEvidence
from freshet_serving.processor.sessions import background_worker
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.processor.engines import watch_scores
from tests.support import waiting
from tests.support.packages import make_inputs, make_weights, write_package

USERS = range(6)
GIVE_UP_S = 60
POLICY = {
    "labels": {"stable": 1, "canary": 2},
    "split": {"stable": 50, "canary": 50},
    "guard": {"min_requests": 20, "min_scores": 20},
}


def broken(seed):
    """A network whose every score is NaN."""
    weights = make_weights(seed)
    weights["mlp_out/kernel"][:] = np.nan
    return weights


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Makes a processor of a baseline and a canary, by their weights."""
    monkeypatch.setattr(trials, "SETTLE_S", 0.0)
    processors = []

    def make(baseline=make_weights, canary=make_weights, options=None, **policy):
        root = tmp_path / "repository"
        write_package(root, users=USERS, weights=baseline)
        write_package(root, 2, users=USERS, weights=canary)
        policies = {"small": ModelPolicy.parse({**POLICY, **policy}, "model.small")}
        config = ProcessorConfig(repository=str(root), policies=policies, **(options or {"sessions": 2}))
        processors.append(Processor.initialize(config, FakeClock()))
        return processors[-1]

    yield make
    for processor in processors:
        processor.close()


def request(seed=0, users=(0, 1, 2, 3), **more):
    return PredictRequest("small", make_inputs(list(users), seed=seed), **more)


def canarys_key(processor):
    """A key on the canary's side."""
    keys = (b"user-%d" % n for n in range(1000))
    return next(key for key in keys if processor.predictor.route("small", key=key).manifest.version == 2)


def observer(processor):
    return processor.predictor.observers.offered[trials.CANARY]


def evidence(processor):
    (sides,) = observer(processor).evidence().values()
    return CanaryEvidence.from_json(1, sides)


def until(processor, condition, ask=lambda: None):
    """The evidence, once it is like that."""
    return waiting.until(lambda: condition(found := evidence(processor)) and found, ask)


def out(processor):
    watch_scores(processor)
    return processor.info()["models"]["small"]["out"]


@pytest.mark.parametrize("options", [{"sessions": 2}, {"compute": "inline"}])
def test_canary_and_baseline_scores_cover_the_same_requests(opened, options):
    processor = opened(options=options)
    key = canarys_key(processor)
    found = until(
        processor, lambda e: e.baseline.requests >= 20, lambda: processor.process(request(key=key, seed=time.time_ns()))
    )
    mine, theirs = found.canary.scores(0), found.baseline.scores(0)
    assert mine.count == theirs.count == 4 * found.baseline.requests
    np.testing.assert_array_equal(mine.bins, theirs.bins)
    assert (mine.shift(theirs), mine.lost, found.canary.failed) == (0.0, 0, 0)
    assert found.canary.requests >= found.baseline.requests
    assert found.canary.rows == 4 * found.canary.requests


def test_explicit_version_or_label_requests_are_no_canary_evidence(opened):
    processor = opened(canary=broken)
    watch_scores(processor)
    for n in range(30):
        processor.process(request(n, version=2))
        processor.process(request(n, label="canary"))
    assert out(processor) == {}
    assert (evidence(processor).canary.requests, len(observer(processor)._worker._queue)) == (0, 0)
    key = canarys_key(processor)
    for n in range(trials.USUAL):
        processor.process(request(n, key=key))
    until(processor, lambda e: e.canary.scores(0).lost == 4 * trials.USUAL)
    assert out(processor)["2"]["reason"].startswith("nonfinite: 32 of 32 scores are NaN or infinite")


def test_scores_non_finite_on_the_baseline_too_are_no_evidence(opened):
    processor = opened(baseline=broken, canary=broken)
    key = canarys_key(processor)
    watch_scores(processor)
    for n in range(10):
        processor.process(request(n, key=key))
    until(processor, lambda e: observer(processor)._session.stats.requests == 10)
    assert out(processor) == {}
    assert evidence(processor).canary.scores(0).lost == 0


def bearing(factor):
    """Weights of a network that bears numbers up to some size."""

    def weights(seed):
        made = make_weights(seed)
        made["mlp_0/kernel"] *= factor
        return made

    return weights


def test_only_rows_with_finite_baseline_scores_count(opened):
    processor = opened(canary=bearing(1e34))
    key = canarys_key(processor)
    inputs = make_inputs([0, 1, 2, 3])
    inputs["floats"][2] = 1e5
    reply = processor.process(PredictRequest("small", inputs, version=2)).outputs["score"]
    lost = int((~np.isfinite(reply)).sum())
    assert 0 < lost < 4, "the canary has to bear some rows and not others"
    for _ in range(trials.USUAL):
        processor.process(PredictRequest("small", inputs, key=key))
    until(processor, lambda e: e.canary.scores(0).lost == trials.USUAL * lost)


@pytest.mark.parametrize("first", [True, False], ids=["the first request", "the last"])
def test_number_at_the_overflow_limit_is_no_evidence(opened, first):
    processor = opened(canary=bearing(1e12))
    key = canarys_key(processor)
    watch_scores(processor)
    crafted = make_inputs([0, 1, 2, 3])
    crafted["floats"][:] = 1e30
    asked = [PredictRequest("small", crafted, key=key), *(request(n, key=key) for n in range(trials.USUAL))]
    for one in asked if first else reversed(asked):
        processor.process(one)
        until(processor, lambda e: not observer(processor)._worker._queue)
    until(processor, lambda e: observer(processor)._session.stats.requests == len(asked))
    found = until(processor, lambda e: e.baseline.requests == trials.USUAL)
    assert not np.isfinite(processor.process(PredictRequest("small", crafted, version=2)).outputs["score"]).all()
    assert np.isfinite(processor.process(PredictRequest("small", crafted, version=1)).outputs["score"]).all()
    assert found.canary.scores(0).lost == 0
    assert out(processor) == {}


def test_infinite_numbers_are_client_errors_and_no_evidence(opened):
    processor = opened()
    key = canarys_key(processor)
    watch_scores(processor)
    for value in (3.3e38, np.inf, -np.inf):
        inputs = make_inputs([0, 1])
        inputs["floats"][1, 0] = value
        with pytest.raises(BadInput, match="input 'floats': "):
            processor.process(PredictRequest("small", inputs, key=key))
    assert (evidence(processor).canary.requests, len(observer(processor)._worker._queue)) == (0, 0)
    assert out(processor) == {}


def fail(*_):
    raise RuntimeError("a broken executable")


def test_failure_counts_once_the_baseline_has_answered(opened, monkeypatch, caplog):
    processor = opened()
    key = canarys_key(processor)
    caplog.set_level("CRITICAL")
    monkeypatch.setattr(processor.predictor.replica("small", 2).graphs.undivided, "fill", fail)
    processor.batch_process([request(n, key=key) for n in range(9)])
    found = until(processor, lambda e: e.canary.failed == 9)
    assert found.canary.requests == 0
    monkeypatch.setattr(processor.predictor.replica("small", 1).graphs.undivided, "fill", fail)
    processor.batch_process([request(n, key=key) for n in range(9)])
    until(processor, lambda e: observer(processor)._session.stats.failed == 9)
    assert evidence(processor).canary.failed == 9


def test_client_chosen_keys_do_not_bias_the_comparison(opened):
    processor = opened(guard={"min_requests": 20, "min_scores": 80})
    key = canarys_key(processor)
    watch_scores(processor)
    strange = make_inputs([1000, 1001, 1002, 1003])
    strange["floats"][:] = 5e4

    def ask():
        processor.batch_process([request(n) for n in range(20)])
        processor.batch_process([PredictRequest("small", strange, key=key) for _ in range(20)])

    until(processor, lambda e: e.baseline.requests >= 60, ask)
    assert out(processor) == {}


def test_queue_for_the_baseline_is_bounded(opened, monkeypatch):
    processor = opened(canary=broken)
    key, gate = canarys_key(processor), threading.Event()
    monkeypatch.setattr(observer(processor), "_score_on_baseline", lambda exhibit: gate.wait(GIVE_UP_S))
    for n in range(trials.MAX_FAULTS + 20):
        processor.process(request(n, key=key))
    assert len(observer(processor)._worker._queue) == trials.MAX_FAULTS
    gate.set()


def test_memory_waiting_for_the_baseline_is_bounded(opened, monkeypatch):
    processor = opened(canary=broken)
    key, gate = canarys_key(processor), threading.Event()
    monkeypatch.setattr(observer(processor), "_score_on_baseline", lambda exhibit: gate.wait(GIVE_UP_S))
    monkeypatch.setattr(background_worker, "MAX_QUEUED_NBYTES", 1000)
    for n in range(20):
        processor.process(request(n, range(6), key=key))
    assert 1 <= len(observer(processor)._worker._queue) <= 5
    gate.set()


def test_baseline_scoring_takes_a_limited_share_of_the_time(opened, monkeypatch):
    processor, rests = opened(), []
    key = canarys_key(processor)
    monkeypatch.setattr(observer(processor)._worker, "rest", rests.append)

    def weigh(exhibit):
        processor.host._clock.advance(0.01)

    monkeypatch.setattr(observer(processor), "_score_on_baseline", weigh)
    waiting.until(lambda: len(rests) >= 3, lambda: processor.process(request(key=key)))
    assert rests[2] == pytest.approx(0.01 * (1 / trials.SHARE - 1))


def test_trial_ends_with_its_canary_and_restarts_per_baseline(opened):
    processor = opened()
    key = canarys_key(processor)
    until(processor, lambda e: e.baseline.requests >= 1, lambda: processor.process(request(key=key)))
    write_package(processor.host.repository.root, 3, users=USERS)
    processor.host.set_label("small", "stable", 3)
    assert evidence(processor).canary.requests == 0
    processor.host.set_policy("small", {"split": {"stable": 1}})
    assert observer(processor).evidence() == {}
    assert not processor.predictor.observers.watching
