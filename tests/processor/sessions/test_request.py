"""Rows whose key the model has no features for: scored with missing values, marked, or dropped."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving import Publisher
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import left_out
from freshet_serving.processor.kernels.pool import FLAGS, INPUT_FIELDS
from freshet_serving.processor.package.entities import DEFAULT, DROP, MARK
from freshet_serving.processor.sessions.observers import Observer
from freshet_serving.processor.sessions.request import PredictRequest
from tests.support import entities

KEYS = [0, 99, 3, 42, 7]
UNKNOWN_AT = (1, 3)


@pytest.fixture
def opened(tmp_path):
    """Processors of models with a policy; closed at the end."""
    made = []

    def open_(policy):
        entities.write_package(tmp_path / policy, entity=replace(entities.ENTITY, unknown=policy))
        made.append(Processor.initialize(ProcessorConfig(repository=str(tmp_path / policy), delta_guard="off")))
        return made[-1]

    yield open_
    for processor in made:
        processor.close()


def request(keys, **columns):
    return PredictRequest("small", {"user": np.array(keys, np.int64), **columns})


def scores(reply):
    return reply.outputs["score"][:, 0]


def test_marked_rows_are_scored_and_named(opened):
    plain, marked = (opened(policy).process(request(KEYS)) for policy in (DEFAULT, MARK))
    assert (plain.unknown_rows, plain.dropped_rows) == ((), ())
    assert (marked.unknown_rows, marked.dropped_rows) == (UNKNOWN_AT, ())
    np.testing.assert_array_equal(scores(marked), scores(plain))


def test_dropped_rows_have_no_output_and_are_named(opened):
    plain, dropped = (opened(policy).process(request(KEYS)) for policy in (DEFAULT, DROP))
    assert (dropped.unknown_rows, dropped.dropped_rows) == ((), UNKNOWN_AT)
    np.testing.assert_array_equal(scores(dropped), np.delete(scores(plain), UNKNOWN_AT))


def test_request_of_unknown_keys_alone_has_no_outputs(opened):
    reply = opened(DROP).process(request([99, 98]))
    assert (reply.outputs["score"].shape, reply.dropped_rows) == ((0, 1), (0, 1))


def test_rows_that_bring_their_features_are_not_unknown(opened):
    floats = np.zeros((2, 4), np.float32)
    processor = opened(DROP)
    sent = entities.sent([99, 3], {})
    assert processor.process(request([99, 3], tags=sent["tags"], floats=floats)).dropped_rows == ()
    # What is looked up of them is still missing.
    assert processor.process(request([99, 3], floats=floats)).dropped_rows == (0,)


def test_each_request_of_a_batch_has_its_own_rows(opened):
    replies = opened(MARK).predictor.batch_process([request(KEYS), request([3]), request([99]), request([1, 98])])
    assert [reply.unknown_rows for reply in replies] == [UNKNOWN_AT, (), (0,), (1,)]


def test_rows_of_a_split_request_are_those_of_the_whole(opened):
    keys = np.arange(3000) % 100
    reply = opened(DROP).process(request(keys))
    assert reply.dropped_rows == tuple(np.flatnonzero(keys >= len(entities.KNOWN)).tolist())
    assert len(scores(reply)) == 3000 - len(reply.dropped_rows)


def test_delta_and_rollback_change_who_is_known(opened, tmp_path):
    processor = opened(MARK)
    publisher = Publisher(tmp_path / MARK, "small")
    publisher.publish(entities={"profile": ([99], entities.columns([99], 1))}, removed={"entities.profile": [3]})
    processor.poll()
    reply = processor.process(request(KEYS))
    assert (str(reply.generation), reply.unknown_rows) == ("1.1", (2, 3))
    processor.rollback("small", replace(reply.generation, step=0))
    assert processor.process(request(KEYS)).unknown_rows == UNKNOWN_AT


def test_sampled_request_has_no_flags_for_a_preview_to_write(opened, monkeypatch):
    processor, sampled = opened(MARK), []
    sample = processor.predictor.replica("small").sample
    monkeypatch.setattr(sample, "take", lambda bound, inputs: sampled.append(bound))
    bound = processor.predictor.replica("small").plan.bind_inputs(request(KEYS).inputs)
    assert processor.process(request(KEYS)).unknown_rows == UNKNOWN_AT
    (taken,) = sampled
    assert taken.unknown == ()
    words, whole = (np.frombuffer(one.words, np.int64).reshape(-1, INPUT_FIELDS) for one in (taken, bound))
    assert whole[left_out(whole), FLAGS].all()
    assert not words[left_out(words), FLAGS].any()


class Rows(Observer):
    """Keeps the rows of requests and replies."""

    def __init__(self):
        self.seen = []

    def __call__(self, request, replica, bound, done):
        def finished(reply):
            self.seen.append((len(reply.outputs["score"]), bound.rows))
            done(reply)

        return finished


def test_observers_see_whole_replies(opened):
    processor, rows = opened(DROP), Rows()
    processor.predictor.observers.add(rows)
    assert len(scores(processor.process(request(KEYS)))) == 3
    assert rows.seen == [(5, 5)]


def test_an_unknown_policy_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"entities\[profile\].unknown: expected one of default, drop, mark, got 'keep'"):
        entities.write_package(tmp_path, entity=replace(entities.ENTITY, unknown="keep"))


def test_manifests_without_a_policy_stay_as_they_were(tmp_path):
    folder = entities.write_package(tmp_path)
    assert '"unknown"' not in (folder / "model.json").read_text()
