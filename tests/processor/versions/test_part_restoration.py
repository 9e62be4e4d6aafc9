"""Features go back without rows and weights, or those without the features; what is there already publishes nothing."""

import numpy as np
import pytest

from freshet_serving import Publisher
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.processor.generation import Generation
from tests.support import entities
from tests.support.packages import make_weights, rows_of

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
