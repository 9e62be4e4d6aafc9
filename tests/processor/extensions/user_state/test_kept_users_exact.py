"""Kept users of a divided model: replies are those of whole requests without a store, over deltas and rollbacks."""

import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.user_state import user_states
from freshet_serving.processor.extensions.user_state.state_counters import BLOCK
from freshet_serving.processor.features.user_calls import PREPARE, REMOVE, REPLACE, SCORE, UserCall
from tests.models.zoo.sequence_models import make_batch, of_request, publish_untrained
from tests.processor.extensions.user_state.random_deltas import ITEMS, Log

LONG = pytest.mark.long
pytestmark = [pytest.mark.tensorflow, pytest.mark.unguarded("deltas of random rows")]

LENGTH, ROWS, USERS = 24, 8, 4
COLUMNS = ("history.item", "history.action", "history.time")


@pytest.fixture(scope="module", params=["hstu", pytest.param("stca", marks=LONG)])
def package(request, tmp_path_factory):
    folder, timed = tmp_path_factory.mktemp(request.param), request.param == "hstu"
    publish_untrained(request.param, folder / "r", LENGTH, timed, (1, ROWS), units=8, layers=2)
    columns = make_batch(ROWS, (LENGTH,), seed=7, items=ITEMS + 10, timed=timed).columns
    return folder / "r", [of_request(columns, ROWS, user) for user in range(USERS)]


@pytest.fixture(autouse=True)
def _every_user_is_worth_a_look(monkeypatch):
    monkeypatch.setattr(user_states, "LEAST_S", 0.0)


def opened(repository, megabytes, **options):
    config = {"sessions": 1, "delta_guard": "off", "undo_depth": 2, "user_state_mb": megabytes, **options}
    processor = Processor.initialize(ProcessorConfig(str(repository), **config))
    processor.predictor.replica("m").graphs.pays = lambda parts, rows: True
    return processor


class Users:
    """The users' histories as lists of events, and the requests that tell them."""

    def __init__(self, requests):
        self.requests = requests
        self.columns = [name for name in COLUMNS if name in requests[0]]
        self.events = [list(zip(*(r[name].values.tolist() for name in self.columns))) for r in requests]

    def history(self, events):
        columns = list(zip(*events)) if events else [()] * len(self.columns)
        return {n: Ragged(np.array(v, np.int64), np.array([0, len(v)])) for n, v in zip(self.columns, columns)}

    def user(self, user):
        return {"user": self.requests[user]["user"][:1]}

    def candidates(self, user):
        return {name: self.requests[user][name] for name in ("item", "price")}


def ask(processor, inputs, user=None, change=SCORE):
    call = None if user is None else UserCall(b"%d" % user, change)
    return processor.process(PredictRequest("m", inputs, user_call=call))


def counted(processor):
    return by_name(processor.predictor.replica("m").counted(), BLOCK)


def test_prepare_computes_the_user_that_a_score_needs(package):
    folder, requests = package
    users = Users(requests)
    with opened(folder, 4) as kept:
        ask(kept, {**users.user(0), **users.history(users.events[0])}, 0, PREPARE)
        before = counted(kept)
        assert (before["kept"], before["hits"]) == (1, 0)
        ask(kept, users.candidates(0), 0)
        assert counted(kept)["hits"] == 1
        # What is kept is computed ahead again after a change.
        ask(kept, users.history(users.events[1][-1:]), 0)
        ask(kept, {}, 0, PREPARE)
        ask(kept, users.candidates(0), 0)
        after = counted(kept)
        assert (after["hits"], after["kept"]) == (2, 2)


@pytest.mark.parametrize("compute", ["threads", "inline"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=LONG), pytest.param(2, marks=LONG)])
def test_replies_are_those_of_whole_requests(package, tmp_path, compute, seed):
    folder, requests = package
    shutil.copytree(folder, tmp_path / "r")
    users, dice = Users(requests), np.random.default_rng(seed)
    timed = "history.time" in users.columns
    histories = [list(events[:10]) for events in users.events]
    with opened(tmp_path / "r", 4, compute=compute) as kept, opened(tmp_path / "r", 0, compute=compute) as plain:
        log = Log(tmp_path / "r", kept, seed)
        for user in range(USERS):
            ask(kept, {**users.user(user), **users.history(histories[user])}, user, PREPARE)
        for turn in range(80):
            user, action = int(dice.integers(0, USERS)), dice.integers(0, 8)
            sent, change = {}, SCORE
            if action == 0:
                log.publish({"item": log.some(6), "user": log.some(4)}, dense=turn % 3 == 0)
            elif action == 1:
                log.roll_back()
            elif action in (2, 3, 4):
                event = users.events[user][int(dice.integers(0, LENGTH))]
                if not timed or event not in histories[user]:
                    histories[user].append(event)
                sent = users.history([event])
            elif action == 5 and histories[user]:
                event = histories[user][int(dice.integers(0, len(histories[user])))]
                places = [n for n, one in enumerate(histories[user]) if one == event]
                del histories[user][places[-1]]
                sent, change = users.history([event]), REMOVE
            elif action == 6 and histories[user] and timed:
                event = histories[user][-1]
                other = (event[0] + 1, *event[1:])
                histories[user] = [one for one in histories[user] if one[-1] != event[-1]] + [other]
                sent, change = users.history([other]), REPLACE
            if timed:
                histories[user].sort(key=lambda event: event[-1])
            histories[user] = histories[user][-LENGTH:]
            for processor in (kept, plain):
                processor.poll()
            mine = ask(kept, {**sent, **users.candidates(user)}, user, change)
            whole = {**users.user(user), **users.history(histories[user]), **users.candidates(user)}
            theirs = ask(plain, whole)
            assert mine.generation == theirs.generation
            np.testing.assert_allclose(mine.outputs["score"], theirs.outputs["score"], rtol=1e-5, atol=1e-6)
        figures = counted(kept)
    assert figures["hits"] > 5
    assert figures["misses.rows"] > 0
