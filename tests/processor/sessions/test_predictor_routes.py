"""Routes of a predictor while they are replaced: no reply mixes versions, and none comes from what is gone."""

import queue
import threading

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import NotFound, NotReady, UnknownModel
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.versions.routes import Routes
from freshet_serving.processor.versions.traffic import Traffic
from tests.processor.engines import TIMEOUT_S, USERS, assert_reply, request, scores
from tests.processor.sessions.fakes import NoGroups
from tests.support.extensions import needs
from tests.support.packages import write_package


@pytest.fixture
def predictor():
    """A predictor without sessions."""
    return Predictor(NoGroups(), FakeClock(), RequestLimits(max_ids=7))


def test_pushed_routes_replace_all_earlier_ones(predictor):
    predictor.update_routes({"old": Routes("old", {1: _Target(1)}), "ctr": Routes("ctr", {1: _Target(1)})})
    predictor.update_routes({"ctr": Routes("ctr", {2: _Target(2)}, traffic=Traffic(limits={"max_rows": 3}))})
    assert predictor.models() == ["ctr"]
    assert predictor.route("ctr").manifest.version == 2
    assert predictor.limits("ctr") == RequestLimits(max_rows=3, max_ids=7)
    assert predictor.limits("old") == RequestLimits(max_ids=7)
    with pytest.raises(UnknownModel, match="'old'"):
        predictor.route("old")


def test_refusal_outlasts_later_routes_and_reasons(predictor):
    predictor.update_routes({"ctr": Routes("ctr", {1: _Target(1)})})
    predictor.refuse("the processor is closed")
    predictor.refuse("another reason")
    predictor.update_routes({"ctr": Routes("ctr", {1: _Target(1)})})
    with pytest.raises(NotReady, match="the processor is closed"):
        predictor.route("ctr")


def test_request_keeps_its_replica_when_the_model_goes(open_processor):
    processor = open_processor()
    held = processor.predictor.select_replica("small", None, None, None)
    processor.predictor.update_routes({})
    replies = queue.Queue()
    processor.predictor.submit(request([3]), replies.put, held)
    assert_reply(replies.get(timeout=TIMEOUT_S), "1.0", scores([3]))
    with pytest.raises(NotFound):
        processor.process(request([3]))


@needs("trials")
def test_ejection_reaches_requests_before_it_is_kept(open_processor, root, monkeypatch):
    write_package(root, version=2, users=USERS, seed=9)
    policy = {"split": {"stable": 50, "canary": 50}}
    processor = open_processor()
    for number, label in enumerate(("stable", "canary"), start=1):
        processor.host.load("small", number)
        processor.host.set_label("small", label, number)
    processor.host.set_policy("small", policy)
    model = processor.host.model("small")
    answering = []
    keep = model._keep

    def kept(*args):
        answering.extend({processor.predictor.route("small").manifest.version for _ in range(8)})
        keep(*args)

    monkeypatch.setattr(model, "_keep", kept)
    model.eject(2, "errors: too many")
    assert answering == [1]


def test_replies_stay_whole_while_versions_come_and_go(open_processor, root):
    """Versions 2 and 3 are loaded and unloaded, and labels move, under requests by default, number and label."""
    for number in (2, 3):
        write_package(root, version=number, users=USERS, seed=number)
    processor = open_processor()
    host, users = processor.host, [0, 3, 7, 11] * 9
    expected = {}
    for number in (1, 2, 3):
        host.load("small", number)
        expected[number] = processor.process(request(users, version=number)).outputs["score"]
    assert not np.allclose(expected[2], expected[3], atol=1e-3)
    host.set_label("small", "moving", 1)
    stop, wrong, versions = threading.Event(), [], set()

    def ask(**picked):
        while not stop.is_set():
            try:
                reply = processor.process(request(users, timeout_s=TIMEOUT_S, **picked))
            except NotFound as error:
                if picked.get("version") not in (2, 3):
                    wrong.append(error)
                continue
            except Exception as error:
                wrong.append(error)
                return
            number = reply.generation.version
            versions.add(number)
            own = np.allclose(reply.outputs["score"], expected[number], atol=1e-5)
            if not own or picked.get("version", number) != number:
                wrong.append((picked, number))

    picks = ({}, {"version": 1}, {"version": 2}, {"version": 3}, {"label": "moving"})
    askers = [threading.Thread(target=ask, kwargs=picked) for picked in picks]
    for asker in askers:
        asker.start()
    try:
        for turn in range(6):
            came, went = (2, 3) if turn % 2 else (3, 2)
            host.load("small", came)
            host.set_label("small", "moving", came)
            host.unload("small", went)
    finally:
        stop.set()
        for asker in askers:
            asker.join(TIMEOUT_S)
    assert not wrong
    assert versions >= {1, 2, 3}


class _Target:
    """A replica as far as routes need it."""

    def __init__(self, version):
        self.manifest = _Manifest(version)


class _Manifest:
    def __init__(self, version):
        self.version, self.inputs = version, ()
