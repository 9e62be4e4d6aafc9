"""Features go back without rows and weights, or those without the features; what is there already publishes nothing."""

import threading

import numpy as np
import pytest

from freshet_serving import Publisher
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.repository import ChangeLog, VersionContents
from freshet_serving.processor.versions.part_restoration import publish_part
from tests.support import entities
from tests.support.packages import make_weights, rows_of, write_package

USERS = [0, 1, 2, 3]


def scores(processor):
    return processor.process(PredictRequest("small", {"user": np.array(USERS, np.int64)})).outputs["score"].ravel()


@pytest.fixture
def processor(tmp_path):
    """A model whose rows and features have moved together, in 1.1 and 1.2."""
    entities.write_package(tmp_path)
    publisher = Publisher(tmp_path, "small")
    for step in (1, 2):
        publisher.publish(
            rows={"user": (np.array(USERS), rows_of(USERS, step))},
            dense=make_weights(step),
            entities={"profile": (USERS, entities.columns(USERS, step))},
            removed={"entities.profile": [7]} if step == 1 else None,
        )
    with Processor.initialize(ProcessorConfig(repository=str(tmp_path), sessions=1, delta_guard="off")) as processor:
        yield processor


def test_features_and_model_go_back_one_after_the_other(processor):
    now = scores(processor)
    done = processor.rollback("small", Generation(1, 1), only="entities")
    assert (str(done.generation), done.undone, done.recorded) == ("1.3", [], True)
    features_back = scores(processor)
    assert not np.allclose(features_back, now)
    assert str(processor.rollback("small", Generation(1, 1), only="model").generation) == "1.4"
    both = scores(processor)
    assert not np.allclose(both, features_back)
    assert str(processor.rollback("small", Generation(1, 1)).generation) == "1.1"
    assert np.array_equal(scores(processor), both)


def test_part_that_has_not_changed_publishes_nothing(processor):
    assert str(processor.rollback("small", Generation(1, 2), only="model").generation) == "1.2"


def test_removed_key_comes_back_with_the_features(processor, tmp_path):
    processor.rollback("small", Generation(1, 0), only="entities")
    keys, _ = Publisher(tmp_path, "small").served().table("entities.profile")
    assert sorted(keys.tolist()) == list(entities.KNOWN)


def test_unknown_generation_or_part_is_refused(processor):
    with pytest.raises(NotFound, match=r"generation 1\.9 of model 'small' does not exist"):
        processor.rollback("small", Generation(1, 9), only="entities")
    with pytest.raises(BadInput, match="only: expected model or entities, got 'rows'"):
        processor.rollback("small", Generation(1, 1), only="rows")


def test_entities_of_a_model_that_has_none_are_refused(tmp_path):
    write_package(tmp_path, users=USERS)
    Publisher(tmp_path, "small").publish({"user": ([1], rows_of([1], 1))})
    with pytest.raises(BadInput, match="only: expected model, got entities: model 'small' has none"):
        Publisher(tmp_path, "small").restore("1.0", "entities")
    config = ProcessorConfig(repository=str(tmp_path), sessions=1, delta_guard="off")
    with Processor.initialize(config) as processor, pytest.raises(BadInput, match="model 'small' has none"):
        processor.rollback("small", Generation(1, 0), only="entities")


@pytest.fixture
def racing(tmp_path, monkeypatch):
    """Let another publisher be faster than each of the next operations, as often as is asked."""
    commit, left = ChangeLog.publish, []

    def publish(change_log, delta):
        if left:
            race = left.pop()
            with monkeypatch.context() as calm:
                calm.setattr(ChangeLog, "publish", commit)
                race()
        return commit(change_log, delta)

    monkeypatch.setattr(ChangeLog, "publish", publish)
    return left


def test_part_goes_back_on_top_of_deltas_that_came_meanwhile(processor, tmp_path, racing):
    other = Publisher(tmp_path, "small")
    racing += [
        lambda: other.publish(entities={"profile": ([1], entities.columns([1], 9))}),
        lambda: other.publish(rows={"user": ([3], rows_of([3], 9))}, removed={"entities.profile": [2]}),
    ]

    done = processor.rollback("small", Generation(1, 1), only="entities")

    assert str(done.generation) == "1.5"
    served = Publisher(tmp_path, "small")
    past = VersionContents(served._version, served._change_log, served._change_log.history.on_line(1))
    now = served.served()
    for mine, theirs in zip(now.table("entities.profile"), past.table("entities.profile")):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(now.rows("user", np.array([3]))[1], rows_of([3], 9))


def test_delta_holds_only_the_keys_that_changed_since(processor, tmp_path):
    Publisher(tmp_path, "small").publish(rows={"user": ([1, 40], rows_of([1, 40], 5))})
    processor.rollback("small", Generation(1, 2), only="model")
    delta = read_delta(tmp_path / "small" / "1" / "deltas" / "4.safetensors")
    assert list(delta.tables) == ["user"]
    assert (delta.tables["user"].keys.tolist(), delta.tables["user"].removed.tolist()) == ([1], [40])
    assert (delta.dense, delta.restores) == ({}, 2)


def test_model_is_not_locked_while_the_difference_is_computed(processor, monkeypatch):
    model, others = processor.host.model("small"), []

    def publish(*args):
        others.append(threading.Thread(target=model.poll))
        others[-1].start()
        others[-1].join(30)
        assert not others[-1].is_alive()
        return publish_part(*args)

    monkeypatch.setattr("freshet_serving.processor.versions.part_restoration.publish_part", publish)
    assert str(processor.rollback("small", Generation(1, 1), only="entities").generation) == "1.3"
    assert len(others) == 1


@pytest.mark.long
def test_every_part_goes_back_beside_a_feed(processor, tmp_path):
    model, stop = processor.host.model("small"), threading.Event()

    def feed():
        publisher, step = Publisher(tmp_path, "small"), 2
        while not stop.wait(0.05):
            step += 1
            publisher.publish(
                rows={"user": ([step % 20], rows_of([step % 20], step))},
                entities={"profile": ([step % 8], entities.columns([step % 8], step))},
            )
            model.poll()

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        reached = [processor.rollback("small", Generation(1, 1), only=only) for only in ("entities", "model") * 10]
    finally:
        stop.set()
        feeding.join()
    steps = [done.generation.step for done in reached]
    assert steps == sorted(steps)
    assert model.chain(1).state == "CURRENT"
