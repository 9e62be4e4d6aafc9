"""Requests about kept users through a predictor: what is computed, what nobody sees, and when a user is forgotten."""

import threading

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Expired, UserGone
from freshet_serving.processor.features.user_calls import PREPARE, SCORE, UserCall
from freshet_serving.processor.sessions.user_requests import released_before, with_blank_candidates
from tests.support.ranked import DIM, MODEL, write_ranked

USER, ITEMS = {"history.item": Ragged.of([[1, 2]])}, {"item": np.arange(3)}


def opened(folder, **options):
    write_ranked(folder)
    return Processor.initialize(ProcessorConfig(str(folder), sessions=1, **{"user_state_mb": 4, **options}))


@pytest.fixture
def processor(tmp_path):
    with opened(tmp_path) as processor:
        yield processor


def ask(processor, inputs, change=SCORE, **options):
    return processor.process(PredictRequest(MODEL, inputs, user_call=UserCall(b"u", change, **options)))


def test_prepare_is_computed_and_seen_by_no_observer(processor):
    seen = []
    processor.predictor.observers.watching = (lambda request, replica, bound, done: seen.append(request) or done,)
    reply = ask(processor, USER, PREPARE)
    assert {name: array.shape for name, array in reply.outputs.items()} == {"score": (0, 1), "user_vector": (0, DIM)}
    assert reply.timing.rows == 1
    assert not seen
    ask(processor, ITEMS)
    assert len(seen) == 1


def test_append_alone_is_answered_without_a_batch(processor):
    ask(processor, USER, PREPARE)
    reply = ask(processor, USER)
    assert reply.outputs["score"].shape == (0, 1)
    assert reply.outputs["score"].dtype == np.float32
    assert reply.timing is None
    assert reply.generation == processor.predictor.replica(MODEL).generation


def test_user_is_forgotten_after_the_reply_and_not_after_an_error(processor):
    ask(processor, USER, PREPARE)
    with pytest.raises(BadInput):
        ask(processor, {"item": np.array([["a"]])}, releases=True)
    assert ask(processor, ITEMS, releases=True).outputs["score"].shape == (3, 1)
    with pytest.raises(UserGone):
        ask(processor, ITEMS)


def test_error_of_forgetting_is_the_answer():
    class Users:
        def release(self, call, model):
            raise Expired("late")

    answers = []
    request = PredictRequest("m", {}, user_call=UserCall(b"u", releases=True))
    done = released_before(request, Users(), answers.append)
    done("reply")
    done(BadInput("wrong"))
    assert [type(answer) for answer in answers] == [Expired, BadInput]
    assert released_before(PredictRequest("m", {}), Users(), answers.append) == answers.append


def test_request_is_completed_once(processor):
    ask(processor, USER, PREPARE)
    request = PredictRequest(MODEL, {**USER, **ITEMS}, user_call=UserCall(b"u"))
    predictor, answered = processor.predictor, threading.Event()
    replica = predictor.select_replica(MODEL, None, None, None)
    assert predictor.fill_from_memory(request, replica)
    predictor.submit(request, lambda _: answered.set(), replica)
    assert answered.wait(10)
    assert request.inputs["history.item"].values.tolist() == [1, 2, 1, 2]


def test_blank_candidates_stand_beside_the_user(processor):
    replica = processor.predictor.replica(MODEL)
    blank = with_blank_candidates(replica, USER)
    assert blank["history.item"] is USER["history.item"]
    assert blank["item"].tolist() == [0] * replica.graphs.fewest_divided


def test_whole_request_is_answered_where_no_users_are_kept(tmp_path):
    with opened(tmp_path, user_state_mb=0) as processor:
        whole = processor.process(PredictRequest(MODEL, {**USER, **ITEMS}))
        np.testing.assert_array_equal(ask(processor, {**USER, **ITEMS}).outputs["score"], whole.outputs["score"])
        with pytest.raises(BadInput, match="freshet serve --user-state-mb"):
            ask(processor, ITEMS)
