"""Tables and weights of a trainer, tracked by touched rows or by comparison, with a trainer of plain numpy."""

import logging

import numpy as np
import pytest

from freshet_serving.models.publishing.model_tracker import ModelTracker, PublishInterval, TrackedTable
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.errors import BadInput, NotReady, ParentRolledBack
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.support.packages import make_weights, row_of, rows_of, write_package

BIAS = "mlp_0/bias"
ROWS = 20


class Matrix:
    """Rows in memory. tells: whether it says which were touched."""

    def __init__(self, tells):
        self.values, self.tells, self.noted = rows_of(range(ROWS), 0), tells, set()

    def learn(self, rows, tag):
        self.values[list(rows)] = rows_of(rows, tag)
        self.noted |= set(rows)

    def read(self, rows):
        return self.values[rows]

    def write(self, rows, values):
        self.values[rows] = values

    def touched(self):
        if not self.tells:
            return None
        noted, self.noted = sorted(self.noted), set()
        return np.array(noted, np.int64)


class Weight:
    def __init__(self, value):
        self.value = value.copy()

    def read(self):
        return self.value

    def write(self, value):
        self.value[:] = value


class Trainer:
    """Row i has key KEYS[i]; the last row has none."""

    def __init__(self, root, tells, begin="model", generation=None, left_out=None):
        self.root, self.matrix, self.bias = root, Matrix(tells), Weight(make_weights(0)[BIAS])
        self.publisher = Publisher(root, "small", generation=generation)
        keys = np.arange(ROWS)[::-1].copy()
        table = TrackedTable(self.publisher.manifest.table("user"), keys, np.arange(ROWS)[::-1].copy(), self.matrix)
        self.tracked = ModelTracker(
            self.publisher, [table], {BIAS: self.bias}, PublishInterval(0.0, 2), begin, left_out
        )

    def served(self):
        contents = Publisher(self.root, "small").served()
        keys, rows = contents.table("user")
        return dict(zip(keys.tolist(), rows.tolist())), contents.dense[BIAS].tolist()

    def mine(self, without=()):
        return {i: r for i, r in enumerate(self.matrix.values.tolist()) if i not in without}, self.bias.value.tolist()


@pytest.fixture(params=[True, False], ids=["touched", "compared"])
def trainer(tmp_path, request):
    write_package(tmp_path, users=range(ROWS))
    return Trainer(tmp_path, request.param)


def roll_back(root, step):
    ChangeLog.of(Repository(root).version("small")).rollback(step)


def test_only_changed_rows_are_published(trainer, tmp_path):
    assert trainer.tracked.publish() == Generation(1, 0)
    trainer.matrix.learn([3, 4], 1)
    trainer.bias.value += 1
    assert trainer.tracked.publish() == Generation(1, 1)
    assert trainer.served() == trainer.mine()
    delta = read_delta(tmp_path / "small/1/deltas/1.safetensors")
    assert delta.tables["user"].keys.tolist() == [3, 4]
    trainer.matrix.learn([5], 2)
    trainer.tracked.publish()
    delta = read_delta(tmp_path / "small/1/deltas/2.safetensors")
    assert (delta.tables["user"].keys.tolist(), list(delta.dense)) == ([5], [])
    assert trainer.tracked.publish() == Generation(1, 2)


def test_changes_before_the_first_publication_are_found_by_comparison(trainer):
    trainer.matrix.values[7] = row_of(7, 9)
    trainer.tracked.publish()
    assert trainer.served() == trainer.mine()


def test_untracked_trainer_changes_are_compared_from_then_on(trainer):
    trainer.tracked.publish()
    trainer.matrix.tells = False
    trainer.matrix.values[2] = row_of(2, 5)
    trainer.tracked.publish()
    assert trainer.served() == trainer.mine()
    trainer.matrix.values[3] = row_of(3, 6)
    trainer.tracked.publish()
    assert trainer.served() == trainer.mine()


def test_removed_rows_are_served_again_only_when_restored(trainer):
    trainer.tracked.remove("user", [4, 5])
    trainer.tracked.publish()
    assert trainer.served() == trainer.mine(without={4, 5})
    trainer.matrix.learn([4, 6], 1)
    trainer.tracked.publish()
    assert trainer.served() == trainer.mine(without={4, 5})
    trainer.tracked.restore("user", [4])
    trainer.tracked.publish()
    assert trainer.served() == trainer.mine(without={5})
    with pytest.raises(BadInput, match="table 'user': expected one of the trainer's keys, got 77"):
        trainer.tracked.remove("user", [77])
    with pytest.raises(BadInput, match="table: expected one of user, got 'item'"):
        trainer.tracked.restore("item", [77])


def test_changes_undone_by_a_rollback_are_restored_and_training_continues(trainer, tmp_path, caplog):
    trainer.tracked.publish()
    for tag in (1, 2, 3):
        trainer.matrix.learn([tag, 10], tag)
        trainer.bias.value += 1
        trainer.tracked.publish()
    trainer.tracked.remove("user", [3])
    trainer.tracked.publish()
    roll_back(tmp_path, 1)
    trainer.matrix.learn([15], 5)

    assert trainer.tracked.publish() == Generation(1, 5)
    assert "1.4 was rolled back: loading the weights of 1.1 into the model" in caplog.text
    assert trainer.matrix.values[[1, 2, 3, 10, 15]].tolist() == [
        row_of(key, tag).tolist() for key, tag in ((1, 1), (2, 0), (3, 0), (10, 1), (15, 5))
    ]
    assert trainer.bias.value.tolist() == (make_weights(0)[BIAS] + 1).tolist()
    assert trainer.served() == trainer.mine()


def test_row_no_longer_served_becomes_the_default(trainer, tmp_path):
    trainer.tracked.remove("user", [8])
    trainer.tracked.publish()
    trainer.tracked.restore("user", [8])
    trainer.matrix.learn([8], 3)
    trainer.tracked.publish()
    roll_back(tmp_path, 1)
    trainer.tracked.publish()
    assert not trainer.matrix.values[8].any()
    assert trainer.served() == trainer.mine(without={8})


def test_killed_trainer_continues_from_its_checkpoint(trainer, tmp_path):
    trainer.tracked.publish()
    trainer.matrix.learn([1], 1)
    generation, kept = str(trainer.tracked.publish()), trainer.matrix.values.copy()
    trainer.matrix.learn([1, 2], 2)
    trainer.tracked.publish()

    for undone in (False, True):
        if undone:
            roll_back(tmp_path, 0)
        again = Trainer(tmp_path, trainer.matrix.tells, generation=generation)
        again.matrix.values[:] = kept
        again.tracked.open()
        again.tracked.publish()
        assert again.matrix.values[1].tolist() == row_of(1, 0 if undone else 1).tolist()
        assert again.served() == again.mine()


def test_start_after_a_rollback_needs_served_weights_or_a_generation(trainer, tmp_path):
    trainer.matrix.learn([1], 1)
    trainer.bias.value += 1
    trainer.tracked.publish()
    trainer.tracked.remove("user", [2])
    trainer.tracked.publish()
    roll_back(tmp_path, 1)
    with pytest.raises(ParentRolledBack, match="pass the generation at which the weights were saved"):
        Trainer(tmp_path, trainer.matrix.tells).tracked.open()

    again = Trainer(tmp_path, trainer.matrix.tells, begin="served")
    again.tracked.open()
    assert again.mine() == again.served() == trainer.mine()
    assert again.tracked.publish() == Generation(1, 1)
    again.matrix.learn([9], 4)
    assert again.tracked.publish() == Generation(1, 3)
    assert again.served() == again.mine()
    with pytest.raises(BadInput, match="begin: expected one of model, served, got 'disk'"):
        Trainer(tmp_path, True, begin="disk")


def test_failed_publication_is_included_in_the_next(trainer, monkeypatch, caplog):
    trainer.tracked.publish()
    real = trainer.publisher.publish
    monkeypatch.setattr(trainer.publisher, "publish", lambda *_, **__: (_ for _ in ()).throw(NotReady("no room")))
    trainer.matrix.learn([3], 1)
    with caplog.at_level(logging.WARNING):
        trainer.tracked.tick(2)
    assert "could not publish, will retry: no room" in caplog.text
    trainer.matrix.learn([4], 2)
    monkeypatch.setattr(trainer.publisher, "publish", real)
    trainer.tracked.tick(2)
    assert trainer.served() == trainer.mine()


def test_changing_a_weight_that_deltas_cannot_update_is_refused(tmp_path):
    write_package(tmp_path, users=range(ROWS))
    state = Weight(np.zeros(3, np.float32))
    trainer = Trainer(tmp_path, True, left_out={"gru/kernel": state})
    trainer.tracked.publish()
    state.value += 1
    with pytest.raises(BadInput, match="weight 'gru/kernel' changed, but the package has no weight of that name"):
        trainer.tracked.publish()


def test_publish_interval_limits_the_publishing_time():
    now = [0.0]
    by_time, by_batches = PublishInterval(1.0, None, lambda: now[0]), PublishInterval(1.0, 3, lambda: now[0])
    assert not by_time.due()
    now[0] = 1.0
    assert by_time.due()
    # It took 0.5 s: a tenth of the time at most.
    now[0] = 1.5
    by_time.published(began_s=1.0)
    now[0] = 5.9
    assert not by_time.due()
    now[0] = 6.0
    assert by_time.due()
    assert [by_batches.due() for _ in range(3)] == [False, False, True]
    by_batches.published(began_s=6.0)
    assert not by_batches.due(2)
    for wrong in ({"every_s": -1.0, "every_batches": None}, {"every_s": 1.0, "every_batches": 0}):
        with pytest.raises(BadInput, match="every_"):
            PublishInterval(**wrong)
