"""Requests in, replies out: scores, errors each in its place, deadlines, and who computes."""

import queue
import threading
import time
from functools import partial

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictReply, PredictRequest
from freshet_serving.processor.errors import (
    BadInput,
    Expired,
    NotFound,
    NotReady,
    Overloaded,
    UnknownModel,
    UnknownVersion,
)
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.sessions.observers import Observer
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.versions.routes import Routes
from freshet_serving.processor.versions.traffic import Traffic
from tests.processor.engines import TIMEOUT_S, USERS, Replies, assert_reply, request, scores
from tests.processor.sessions.fakes import NoGroups
from tests.support.extensions import needs
from tests.support.packages import make_inputs, make_weights, reference, tag_id, write_package
from tests.support.waiting import Background, at_once


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 256, 257, 1000])
def test_request_of_any_size_is_answered_in_order(open_processor, rows):
    users = [n % 30 for n in range(rows)]
    assert_reply(open_processor().process(request(users)), "1.0", scores(users))


def test_one_user_is_broadcast_to_all_candidates(open_processor):
    floats = make_inputs(range(40))["floats"]
    inputs = {"user": np.array([7]), "tags": Ragged(Strings.of(["b", "c"]), np.array([0, 2])), "floats": floats}
    reply = open_processor().process(PredictRequest("small", inputs))
    tag_model = dict.fromkeys([tag_id(t) for t in "abc"], 0)
    wanted = reference({7: 0}, tag_model, make_weights(0), [7] * 40, [["b", "c"]] * 40, floats)
    assert_reply(reply, "1.0", wanted)


@pytest.mark.parametrize(
    "options",
    [
        {"sessions": 1},
        {"sessions": 3},
        {"compute": "inline"},
        pytest.param({"sessions": 2, "device_stages": 1}, marks=needs("device_stages")),
    ],
)
def test_infinite_number_fails_its_request_and_not_its_batch(open_processor, options):
    def with_float(row, column, value, users=(1, 2, 3)):
        made = request(list(users))
        made.inputs["floats"][row, column] = value
        return made

    requests = [
        request([1, 2]),
        with_float(1, 2, np.inf),
        request([3], seed=5),
        with_float(0, 3, -3.3e38),
        with_float(299, 0, np.inf, range(300)),
        with_float(2, 1, 3.3e38),
        with_float(2, 0, np.nan),
        request(range(300)),
    ]
    processor = open_processor(**options)
    replies = processor.batch_process(requests)
    assert_reply(replies[0], "1.0", scores([1, 2]))
    assert_reply(replies[2], "1.0", scores([3], seed=5))
    assert_reply(replies[7], "1.0", scores(range(300)))
    assert [type(replies[n]) for n in (5, 6)] == [PredictReply] * 2, "log1p bears it; NaN is a missing value"
    assert [str(replies[n]) for n in (1, 3, 4)] == [
        "input 'floats': expected finite numbers (or NaN), got inf in row 1, column 2",
        "input 'floats': expected a number that is finite after scaling, got -3.3e+38 in row 0, column 3",
        "input 'floats': expected finite numbers (or NaN), got inf in row 299, column 0",
    ]
    assert all(isinstance(replies[n], BadInput) for n in (1, 3, 4))
    stats = processor.host.group_stats()["default"].work
    assert stats.failed == 0


def test_batch_returns_replies_and_errors_in_request_order(open_processor):
    requests = [
        request([1, 2]),
        request([1], model="nobody"),
        request([3], seed=5),
        PredictRequest("small", {"user": np.array([1])}),
        request([4], timeout_s=0.0),
        request([5], version=9),
        request(range(300)),
    ]
    replies = open_processor().batch_process(requests)
    assert_reply(replies[0], "1.0", scores([1, 2]))
    assert_reply(replies[2], "1.0", scores([3], seed=5))
    assert_reply(replies[6], "1.0", scores(range(300)))
    kinds = [type(r) for r in replies]
    assert kinds == [PredictReply, UnknownModel, PredictReply, BadInput, Expired, UnknownVersion, PredictReply]
    assert open_processor().batch_process([]) == []


def test_requests_of_two_models_in_one_batch_do_not_mix(root, open_processor):
    write_package(root, users=USERS, model="other", seed=9)
    replies = open_processor(sessions=1).batch_process(
        [request([n], model=m) for n in range(5) for m in ("small", "other")]
    )
    for n in range(5):
        assert_reply(replies[2 * n], "1.0", scores([n]))
        assert_reply(replies[2 * n + 1], "1.0", scores([n], dense_seed=9))
    assert [r.model for r in replies[:2]] == ["small", "other"]


def test_done_is_called_once_per_request_on_a_session_thread(open_processor):
    processor, replies = open_processor(), Replies()
    for number in range(50):
        processor.predictor.submit(request([number]), replies.done(number))
    got = replies.wait(50)
    assert sorted(n for n, _ in replies.calls) == list(range(50))
    for number, reply in got.items():
        assert_reply(reply, "1.0", scores([number]))
    assert all(name.startswith("freshet-session-") for name in replies.threads)


def test_invalid_request_raises_at_once_and_never_calls_done(open_processor):
    processor, replies = open_processor(), Replies()
    for bad, error in [
        (request([1], model="x" * 1000), NotFound),
        (request([1], label="stable"), NotFound),
        (request([1], version=2), NotFound),
        (PredictRequest("small", {}), BadInput),
    ]:
        with pytest.raises(error) as refused:
            processor.predictor.submit(bad, replies.done(0))
        assert len(str(refused.value)) < 200
    processor.process(request([1]))
    assert replies.calls == []


def test_request_whose_deadline_passes_in_the_queue_expires(open_processor):
    clock, replies = FakeClock(), Replies()
    processor = open_processor(clock, sessions=1)
    replies.hold(processor)
    processor.predictor.submit(request([1], timeout_s=1.0), replies.done("short"))
    processor.predictor.submit(request([2], timeout_s=60.0), replies.done("long"))
    processor.predictor.submit(request([3]), replies.done("patient"))
    clock.advance(2.0)
    replies.release()
    got = replies.wait(3)
    assert isinstance(got["short"], Expired)
    assert_reply(got["long"], "1.0", scores([2]))
    assert_reply(got["patient"], "1.0", scores([3]))


def test_full_queue_sheds_load_and_answers_its_requests(open_processor):
    processor, replies = open_processor(sessions=1, max_queue_rows=10), Replies()
    replies.hold(processor)
    processor.predictor.submit(request(range(6)), replies.done(0))
    with pytest.raises(Overloaded):
        processor.predictor.submit(request(range(6)), replies.done(1))
    replies.release()
    assert_reply(replies.wait(1)[0], "1.0", scores(range(6)))
    assert processor.host.group_stats()["default"].work.refused_full == 1


def test_inline_waiting_thread_computes_all_waiting_requests(open_processor):
    processor, replies = open_processor(compute="inline"), Replies()
    processor.predictor.submit(request([4]), replies.done("before"))
    assert not replies.calls
    assert_reply(processor.process(request([1, 2])), "1.0", scores([1, 2]))
    assert_reply(replies.wait(1)["before"], "1.0", scores([4]))
    assert replies.threads == [threading.current_thread().name]


def test_inline_many_threads_may_wait_at_once(open_processor):
    processor, wrong = open_processor(compute="inline"), []

    def ask(number):
        for _ in range(20):
            reply = processor.process(request([number]))
            if not np.allclose(reply.outputs["score"][:, 0], scores([number]), atol=1e-5):
                wrong.append(number)

    at_once(ask, range(6))
    assert not wrong


def test_inline_owner_computes_requests_of_any_caller(open_processor):
    processor, calls, threads = open_processor(compute="inline"), queue.Queue(), []

    def own():
        assert processor.predictor.set_owner(calls.put, lambda done, reply: done(reply))
        while calls.get() is not None:
            threads.append(threading.get_ident())
            processor.predictor.run_once()

    owner = threading.Thread(target=own)
    owner.start()
    while processor.predictor.groups.inline.driven:
        time.sleep(0.001)
    assert_reply(processor.process(request([7])), "1.0", scores([7]))
    calls.put(None)
    owner.join(TIMEOUT_S)
    assert set(threads) == {owner.ident}


class Seen(Observer):
    """Keeps what it is asked about."""

    def __init__(self, seen):
        self._seen = seen

    def __call__(self, *args):
        self._seen.append(args)
        return args[-1]


def no_candidates(**shared):
    empty = request([1]).inputs
    inputs = {name: column[:0] for name, column in empty.items() if isinstance(column, np.ndarray)}
    inputs["tags"] = Ragged(Strings.of([]), np.zeros(1, np.int64))
    return PredictRequest("small", inputs | shared)


@pytest.mark.parametrize("options", [{"sessions": 1}, {"compute": "inline"}])
def test_no_candidates_have_no_scores(open_processor, options):
    processor = open_processor(**options)
    one, seen = processor.process(request([1])), []
    processor.predictor.observers.add(Seen(seen))
    for asked in (no_candidates(), no_candidates(user=np.array([7]))):
        reply = processor.process(asked)
        assert {name: array.shape for name, array in reply.outputs.items()} == {
            name: (0, *array.shape[1:]) for name, array in one.outputs.items()
        }
    assert not seen


def test_no_candidates_beside_several_users_are_refused(open_processor):
    with pytest.raises(BadInput, match="at least one row"):
        open_processor().process(no_candidates(user=np.array([7, 8])))


def test_wrong_input_is_refused_without_candidates_too(open_processor):
    with pytest.raises(BadInput, match="user"):
        open_processor().process(no_candidates(user=np.array([0.5], np.float32)))


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
    wrong, versions = [], set()

    def ask(**picked):
        while not askers.ended.is_set():
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
    askers = Background([partial(ask, **picked) for picked in picks])
    with askers:
        for turn in range(6):
            came, went = (2, 3) if turn % 2 else (3, 2)
            host.load("small", came)
            host.set_label("small", "moving", came)
            host.unload("small", went)
    assert not wrong
    assert versions >= {1, 2, 3}


class _Target:
    """A replica as far as routes need it."""

    def __init__(self, version):
        self.manifest = _Manifest(version)


class _Manifest:
    def __init__(self, version):
        self.version, self.inputs = version, ()
