"""Tables whose rows a model reads in a second place: deltas reach every use of a table, or are refused."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import ImportedOnce, variable
from tests.compiler.imports.replies import started

ROWS, DIM = 40, 4
ITEM, PAST = tf.TensorSpec([None], tf.int64, "item"), tf.TensorSpec([None, None], tf.int64, "past")
A, B, OTHER = 7, 9, 3


class Items(tf.Module):
    """One matrix of items, read in several places. Each function: (inputs, score)."""

    def __init__(self):
        self.items = variable(1, ROWS, DIM, name="items")
        self.wide = variable(2, 2 * DIM, 1, name="wide")
        self.narrow = variable(3, DIM, 1, name="narrow")
        self.every = variable(4, ROWS, 1, name="every")

    @tf.function(input_signature=[ITEM, PAST])
    def highest_over_a_free_length(self, item, past):
        pooled = tf.reduce_max(tf.gather(self.items, past), 1)
        return {"score": tf.concat([tf.gather(self.items, item), pooled], 1) @ self.wide}

    @tf.function(input_signature=[ITEM, PAST])
    def matched_over_a_free_length(self, item, past):
        matches = tf.matmul(
            tf.gather(self.items, past), tf.tile(self.items[None], [tf.shape(past)[0], 1, 1]), transpose_b=True
        )
        return {"score": tf.gather(self.items, item) @ self.narrow + tf.reduce_max(matches, 1) @ self.every}

    @tf.function(input_signature=[ITEM])
    def tied(self, item):
        return {"score": tf.matmul(tf.gather(self.items, item), self.items, transpose_b=True) @ self.every}

    @tf.function(input_signature=[ITEM, tf.TensorSpec([None], tf.int64, "other")])
    def shared_and_hashed(self, item, other):
        rows = tf.gather(self.items, item), tf.gather(self.items, other % 10) * 2.0 + 1.0
        return {"score": tf.concat(rows, 1) @ self.wide}

    @tf.function(input_signature=[ITEM])
    def with_its_size_in_the_stage(self, item):
        size = tf.cast(tf.shape(self.items)[0], tf.int64)
        return {"score": tf.math.igamma(0.5, tf.abs(tf.gather(self.items, item % size))) @ self.narrow}

    @tf.function(input_signature=[ITEM])
    def stage_alone(self, item):
        return {"score": tf.math.igamma(0.5, tf.abs(tf.gather(self.items, item))) @ self.narrow}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    return ImportedOnce(tmp_path_factory.mktemp("items"), Items())


def scores(repository, name, *requests):
    """The score of each request, each of one row, as of the newest generation."""
    with started(repository) as processor:
        asked = [
            PredictRequest(name, {k: Ragged.of(v) if k == "past" else np.array(v, np.int64) for k, v in one.items()})
            for one in requests
        ]
        return [processor.process(one).outputs["score"].item() for one in asked]


def copied(repository, name, extra=None):
    """Publish row B of every table as the row of A, too."""
    publisher = Publisher(repository, name)
    tables = {t.name: publisher.served().rows(t.name, np.array([B], np.int64))[1] for t in publisher.manifest.tables}
    publisher.publish({table: (np.array([A]), rows) for table, rows in tables.items()}, dense=extra)


def test_table_that_a_stage_reads_takes_no_deltas(imported):
    repository, manifest, report = imported("matched_over_a_free_length")

    assert manifest.copies == {"items": ""}
    assert manifest.stage.lookups == []
    assert "no delta may change table 'items': the stage reads its rows too, as constants" in report["notes"]
    with pytest.raises(BadInput, match="cannot be changed by deltas: the model reads its rows in its stage too"):
        copied(repository, "matched_over_a_free_length")


@pytest.mark.parametrize(
    ("name", "other", "staged"),
    [
        ("highest_over_a_free_length", lambda id: {"past": [[OTHER, id]]}, [("past", "items")]),
        ("shared_and_hashed", lambda id: {"other": [id]}, []),
    ],
    ids=["inside the stage", "with computed ids"],
)
def test_delta_reaches_every_use_of_a_shared_table(name, other, staged, imported):
    repository, manifest, _ = imported(name)
    requests = [{"item": [i], **other(o)} for i in (A, B) for o in (A, B)]

    assert manifest.copies == {}
    assert [(one.input, one.table) for one in (manifest.stage.lookups if manifest.stage else [])] == staged
    assert len({round(score, 4) for score in scores(repository, name, *requests)}) == 4
    copied(repository, name)
    after = scores(repository, name, *requests)
    assert after == pytest.approx([after[3]] * 4, abs=1e-6)


def test_table_that_is_a_weight_changes_only_with_it(imported):
    repository, manifest, _ = imported("tied")
    items = VersionReader(repository / "tied" / "1").dense()["items"].copy()

    assert manifest.copies == {"items": "items"}
    with pytest.raises(BadInput, match="changes without dense weight 'items'"):
        copied(repository, "tied")
    items[A] = items[B]
    before = scores(repository, "tied", {"item": [A]}, {"item": [B]})
    copied(repository, "tied", {"items": items})
    after = scores(repository, "tied", {"item": [A]}, {"item": [B]})
    assert before[0] != pytest.approx(before[1], abs=1e-4)
    assert after[0] == pytest.approx(after[1], abs=1e-6)


@pytest.mark.parametrize("name", ["with_its_size_in_the_stage", "stage_alone"])
def test_table_that_only_the_stage_reads_takes_deltas(imported, name):
    repository, manifest, _ = imported(name)

    assert manifest.copies == {}
    assert [one.table for one in manifest.stage.lookups] == ["items"]
    before = scores(repository, name, {"item": [A]}, {"item": [B]})
    copied(repository, name)
    after = scores(repository, name, {"item": [A]}, {"item": [B]})
    assert before[0] != pytest.approx(before[1], abs=1e-5)
    assert after == pytest.approx([before[1]] * 2, abs=1e-6)
