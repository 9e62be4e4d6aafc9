"""Split traffic and bad canaries, from requests to the version that answers them."""

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.versions.overview import version_stats
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.processor.engines import watch_scores
from tests.support.extensions import needs
from tests.support.packages import make_inputs, make_weights, write_package
from tests.support.waiting import until

pytestmark = needs("trials")

USERS = range(6)
POLICY = {
    "labels": {"stable": 1, "canary": 2},
    "split": {"stable": 50, "canary": 50},
    "guard": {"min_requests": 20, "min_scores": 20},
}


def broken_weights(seed):
    """A network whose every score is NaN."""
    weights = make_weights(seed)
    weights["mlp_out/kernel"][:] = np.nan
    return weights


@pytest.fixture
def opened(tmp_path):
    """Makes a processor of versions 1 and 2 under a policy; weights: of version 2."""
    processors = []

    def make(weights=make_weights, **policy):
        root = tmp_path / "repository"
        if not root.exists():
            write_package(root, users=USERS)
            write_package(root, 2, users=USERS, weights=weights)
        parsed = ModelPolicy.parse({**POLICY, **policy}, "model.small")
        config = ProcessorConfig(repository=str(root), sessions=2, policies={"small": parsed})
        processors.append(Processor.initialize(config, FakeClock()))
        return processors[-1]

    yield make
    for processor in processors:
        processor.close()


def ask(processor, count=100, **more):
    """Versions that answered so many requests of 4 users."""
    requests = [PredictRequest("small", make_inputs([0, 1, 2, 3], seed=n), **more) for n in range(count)]
    return [reply.generation.version for reply in processor.batch_process(requests)]


def shares(processor):
    return processor.info()["models"]["small"]["shares"]


def ask_until_judged(processor):
    """Asks and looks until the canary is out: what it made of the requests is compared aside."""
    until(lambda: shares(processor) == {"1": 1.0}, lambda: (ask(processor, 10), watch_scores(processor)))


def test_requests_are_split_by_weight_and_sticky_ones_stay(opened):
    processor = opened()
    answered = ask(processor)
    assert answered.count(1) == pytest.approx(50, abs=2)
    assert len(set(ask(processor, key=b"user-7"))) == 1
    assert set(ask(processor, 10, version=2)) == {2}


def test_sticky_key_may_be_an_input(opened):
    processor = opened(sticky_input="user")
    by_user = {}
    for user in range(40):
        requests = [PredictRequest("small", make_inputs([user, user], seed=n)) for n in range(5)]
        (by_user[user],) = {reply.generation.version for reply in processor.batch_process(requests)}
    assert 8 < list(by_user.values()).count(1) < 32


def test_canary_with_non_finite_scores_is_ejected_permanently(opened):
    processor = opened(broken_weights)
    watch_scores(processor)
    assert shares(processor) == {"1": 0.5, "2": 0.5}
    assert 2 in ask(processor, 40)
    ask_until_judged(processor)
    assert set(ask(processor)) == {1}
    (out,) = processor.info()["models"]["small"]["out"].values()
    assert out["reason"].startswith("nonfinite: ")
    (_, stats) = version_stats(processor.host)
    assert (stats.version, stats.out, stats.share) == (2, out["reason"], 0.0)
    processor.close()
    again = opened()
    assert shares(again) == {"1": 1.0}
    again.host.readmit("small", 2)
    assert shares(again) == {"1": 0.5, "2": 0.5}


def test_good_canary_stays(opened):
    processor = opened()
    for _ in range(5):
        watch_scores(processor)
        ask(processor, 50)
    watch_scores(processor)
    assert shares(processor) == {"1": 0.5, "2": 0.5}


def test_guard_ejects_a_bad_canary_without_being_polled(opened):
    processor = opened(broken_weights)
    until(lambda: shares(processor) == {"1": 1.0}, lambda: ask(processor, 10))
    assert set(ask(processor)) == {1}
