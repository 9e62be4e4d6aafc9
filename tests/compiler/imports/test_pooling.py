"""Sums and means over the ids of a matrix with any number of columns are lookups of the engine."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.columns import Ragged
from tests.compiler.imports.foreign import ImportedOnce, variable
from tests.compiler.imports.replies import replies

ROWS, DIM, PADDING = 30, 4, 0
A, B, OTHER = 7, 9, 3
SIGNATURE = [tf.TensorSpec([None], tf.int64, "item"), tf.TensorSpec([None, None], tf.int64, "past")]


class Pools(tf.Module):
    """A target item and a history of one table, pooled in several ways. The padding has a row like any other."""

    def __init__(self):
        self.items = variable(1, ROWS, DIM, name="items")
        self.wide = variable(2, 2 * DIM, 1, name="wide")

    def score(self, item, pooled):
        return {"score": tf.concat([tf.gather(self.items, item), pooled], 1) @ self.wide}

    @tf.function(input_signature=SIGNATURE)
    def mean(self, item, past):
        return self.score(item, tf.reduce_mean(tf.gather(self.items, past), 1))

    @tf.function(input_signature=SIGNATURE)
    def total(self, item, past):
        return self.score(item, tf.reduce_sum(tf.gather(self.items, past), axis=-2))

    @tf.function(input_signature=SIGNATURE)
    def masked_mean(self, item, past):
        mask = tf.cast(tf.not_equal(past, PADDING), tf.float32)[:, :, None]
        total = tf.reduce_sum(tf.gather(self.items, past) * mask, 1)
        return self.score(item, total / tf.maximum(tf.reduce_sum(mask, 1), 1.0))

    @tf.function(input_signature=SIGNATURE)
    def mean_of_two(self, item, past):
        """Not of each id alone: the mean over both axes mixes rows of the request's history and numbers of a row."""
        return self.score(item, tf.tile(tf.reduce_mean(tf.gather(self.items, past), [1, 2])[:, None], [1, DIM]))

    @tf.function(input_signature=SIGNATURE)
    def weighted(self, item, past):
        """A weight by place is no function of the id."""
        rows = tf.gather(self.items, past)
        places = tf.cast(tf.range(tf.shape(past)[1]), tf.float32)[None, :, None]
        return self.score(item, tf.reduce_sum(rows * places, 1))


@pytest.fixture(scope="module")
def pools():
    return Pools()


@pytest.fixture(scope="module")
def imported(pools, tmp_path_factory):
    return ImportedOnce(tmp_path_factory.mktemp("pools"), pools)


def scores(repository, name, items, pasts):
    inputs = {"item": np.array(items, np.int64), "past": Ragged.of([np.array(past).tolist() for past in pasts])}
    return replies(repository, name, inputs)["score"].ravel()


PASTS = [[1, 2, 3, 4, 5], [A, PADDING, B, PADDING, PADDING], [OTHER, 2, PADDING, PADDING, 6]]


@pytest.mark.parametrize("name", ["mean", "total", "masked_mean"])
def test_pooled_history_needs_no_stage_and_scores_as_the_model(pools, imported, name):
    repository, manifest, _ = imported(name)

    assert (manifest.stage, manifest.copies) == (None, {})
    items = np.array([1, A, OTHER])
    expected = getattr(pools, name)(item=items, past=np.array(PASTS))["score"].numpy().ravel()
    assert scores(repository, name, items, PASTS) == pytest.approx(expected, abs=1e-6)
    if name == "masked_mean":
        shorter = [[1, 2, 3, 4, 5], [A, B], [OTHER, 2, 6]]
        assert scores(repository, name, items, shorter) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["mean", "total", "masked_mean"])
def test_delta_reaches_target_and_history(imported, name):
    """Row A becomes a copy of row B."""
    repository, manifest, _ = imported(name)
    a, b = [A, OTHER, 2], [B, OTHER, 2]
    before = scores(repository, name, [A, B, A, B], [a, a, b, b])
    assert len(set(before.round(4))) == 4
    assert {t.name: t.rows for t in manifest.tables if t.dim == DIM} == {"items": ROWS}
    publisher = Publisher(repository, name)
    row = publisher.served().rows("items", np.array([B], np.int64))[1]
    publisher.publish({"items": (np.array([A]), row)})

    after = scores(repository, name, [A, B, A, B], [a, a, b, b])
    assert after == pytest.approx([after[0]] * 4, abs=1e-6)


def test_masked_padding_row_counts_nowhere(imported):
    repository, _, _ = imported("masked_mean")
    before = scores(repository, "masked_mean", [1, A, OTHER], PASTS)
    Publisher(repository, "masked_mean").publish({"items": (np.array([PADDING]), np.full((1, DIM), 5.0, np.float32))})

    assert scores(repository, "masked_mean", [1, A, OTHER], PASTS) == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("name", ["mean_of_two", "weighted"])
def test_reduction_that_is_no_pooling_keeps_its_stage(pools, imported, name):
    repository, manifest, _ = imported(name)

    assert manifest.stage is not None
    expected = getattr(pools, name)(item=np.array([1, 2, 3]), past=np.array(PASTS))["score"].numpy().ravel()
    assert scores(repository, name, [1, 2, 3], PASTS) == pytest.approx(expected, abs=1e-5)
