"""What a worker process makes of what it is told, without the process."""

import pytest

from processor.clock import FakeClock
from processor.errors import NotFound, NotReady
from processor.features.limits import RequestLimits
from processor.versions.routes import VersionStatus
from processor.versions.traffic import Traffic
from serving.workers.worker import WorkerPredictor

ROUTES = {
    "loaded": True,
    "ready": True,
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
    """changes.Receiver."""

    def __init__(self, replica):
        self.replica = replica


@pytest.fixture
def predictor():
    predictor = WorkerPredictor(None, FakeClock())
    predictor.reroute(ROUTES, {11: Held("three"), 14: Held("twelve")})
    return predictor


def test_requests_are_answered_by_what_the_supervisor_names(predictor):
    assert predictor.ready
    assert predictor.models() == ["ctr", "new"]
    assert predictor.replica("ctr") == "twelve"
    assert predictor.replica("ctr", label="stable") == "three"
    assert predictor.status("ctr")[-1] == VersionStatus(2, "END", "why")


def test_a_models_own_limits_come_with_its_routes():
    predictor = WorkerPredictor(None, FakeClock(), RequestLimits(max_ids=7))
    own = {"ctr": {**ROUTES["models"]["ctr"], "traffic": Traffic(limits={"max_rows": 3}).to_json()}}
    predictor.reroute({**ROUTES, "models": own}, {11: Held("three"), 14: Held("twelve")})
    assert predictor.limits("ctr") == RequestLimits(max_rows=3, max_ids=7)
    assert predictor.limits("other") == RequestLimits(max_ids=7)
    predictor.reroute(ROUTES, {11: Held("three"), 14: Held("twelve")})
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
def test_what_is_not_served_is_refused_in_the_words_of_one_process(predictor, pick, error, words):
    with pytest.raises(error) as caught:
        predictor.replica(*pick)
    assert str(caught.value) == words


def test_routes_are_replaced_whole_and_a_version_unknown_here_replaces_nothing(predictor):
    wrong = {**ROUTES, "models": {"ctr": {**ROUTES["models"]["ctr"], "served": {"13": 99}}}}
    with pytest.raises(KeyError):
        predictor.reroute(wrong, {11: Held("three")})
    assert predictor.replica("ctr") == "twelve"
