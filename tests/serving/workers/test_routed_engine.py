"""What a worker makes of the routes that the supervisor sends."""

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import NotFound, NotReady
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.processor.versions.traffic import Traffic
from freshet_serving.serving.workers.routed_engine import RoutedEngine
from tests.processor.sessions.fakes import NoGroups

ROUTES = {
    "loaded": True,
    "ready": True,
    "missing": "",
    "draining": False,
    "models": {
        "ctr": {
            "served": {"3": 11, "12": 14},
            "labels": {"stable": 3},
            "states": [[3, "AVAILABLE", ""], [12, "AVAILABLE", ""], [2, "END", "why"]],
            "traffic": Traffic().to_json(),
        },
        "new": {"served": {}, "labels": {}, "states": [[1, "LOADING", ""]], "traffic": Traffic().to_json()},
    },
}


class Held:
    """frame_transfer.FrameReceiver."""

    def __init__(self, replica):
        self.replica = replica


@pytest.fixture
def engine():
    engine = RoutedEngine(Predictor(NoGroups(), FakeClock()))
    engine.reroute(ROUTES, {11: Held("three"), 14: Held("twelve")})
    return engine


def test_requests_are_answered_by_the_routed_version(engine):
    assert engine.ready
    predictor = engine.predictor
    assert predictor.models() == ["ctr", "new"]
    assert predictor.replica("ctr") == "twelve"
    assert predictor.replica("ctr", label="stable") == "three"
    assert predictor.status("ctr")[-1] == VersionStatus(2, "END", "why")


def test_request_limits_of_a_model_arrive_with_its_routes():
    predictor = Predictor(NoGroups(), FakeClock(), RequestLimits(max_ids=7))
    engine = RoutedEngine(predictor)
    own = {"ctr": {**ROUTES["models"]["ctr"], "traffic": Traffic(limits={"max_rows": 3}).to_json()}}
    engine.reroute({**ROUTES, "models": own}, {11: Held("three"), 14: Held("twelve")})
    assert predictor.limits("ctr") == RequestLimits(max_rows=3, max_ids=7)
    assert predictor.limits("other") == RequestLimits(max_ids=7)
    engine.reroute(ROUTES, {11: Held("three"), 14: Held("twelve")})
    assert predictor.limits("ctr") == RequestLimits(max_ids=7)


@pytest.mark.parametrize(
    ("pick", "error", "words"),
    [
        (("other",), NotFound, "model 'other' is not in the repository, which holds ctr, new"),
        (("new",), NotReady, "no version of model 'new' is loaded"),
        (("ctr", 2), NotFound, "version 2 of model 'ctr' is not loaded"),
        (("ctr", None, "gold"), NotFound, "label 'gold' of model 'ctr' is not set"),
    ],
)
def test_unserved_version_is_refused_as_in_a_single_process(engine, pick, error, words):
    with pytest.raises(error) as caught:
        engine.predictor.replica(*pick)
    assert str(caught.value) == words


def test_routes_with_an_unknown_version_replace_nothing(engine):
    wrong = {**ROUTES, "models": {"ctr": {**ROUTES["models"]["ctr"], "served": {"13": 99}}}}
    with pytest.raises(KeyError):
        engine.reroute(wrong, {11: Held("three")})
    assert engine.predictor.replica("ctr") == "twelve"
