"""Whole runs with [tables]: ids that wait, ids that leave, and what of that is trained, scored, served and resumed."""

import dataclasses
import shutil

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.data.source import Batch
from freshet_serving.models.embedding import tiered_rows
from freshet_serving.models.training import loop as running
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.published_baseline import PublishedBaseline
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.repository.version import table_file
from tests.models.training.streams import (
    FEATURES,
    SEQUENCES,
    MixedSource,
    Notes,
    differing,
    exported,
    make_batch,
    make_config,
    odd_batch,
    pooled_by,
    served_as_bytes,
    snapshot,
)

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ROWS, USERS, ITEMS = 640, 120, 400
TABLES = {
    "user": TableConfig(admit_after=2, evict_after_steps=3, init="normal", init_scale=0.1),
    "item": TableConfig(admit_after=3, admit_by="bloom", admit_ids=5_000, evict_below_norm=0.02),
    "tag": TableConfig(evict_after_steps=1, train={"optimizer": "adam", "learning_rate": 0.01}),
}
PROBES = {
    "coming": make_batch(ROWS, seed=0, users=USERS, items=ITEMS).slice(500, 560).columns,
    "unseen": make_batch(40, seed=8, users=600, items=1800).columns,
    "odd": odd_batch().columns,
}


HASHED = {
    "user": TableConfig(hash="quotient_remainder", hash_rows=30),
    "item": TableConfig(hash="binary_code", hash_rows=64),
    "tag": TableConfig(hash="k_way", hash_rows=21, hash_codes=3, train={"optimizer": "adam", "learning_rate": 0.01}),
    "city": TableConfig(hash_rows=5),
}


def begin(repository, tables=TABLES, features=FEATURES, **others):
    config = make_config(repository, features, full_rows=256, delta_rows=64)
    config = dataclasses.replace(config, tables=tables)
    return TrainingRun(config, MixedSource(ROWS, users=USERS, items=ITEMS), **others)


def admitted(run):
    """The filters of a run's tables, as bytes."""
    return {
        f"{name}/{part}": array.tobytes()
        for name, table in run.trainer.tables.items()
        for part, array in table.admission.export().items()
    }


_UNINTERRUPTED = []


def uninterrupted(repository):
    """What a run to the end holds, and its filters; made once."""
    if not _UNINTERRUPTED:
        whole = begin(repository)
        whole.run()
        _UNINTERRUPTED[:] = snapshot(whole.trainer), admitted(whole)
    return _UNINTERRUPTED


def assert_served(run, processor):
    for name, columns in PROBES.items():
        wanted = run.trainer.dense_inputs(columns)["x"]
        assert pooled_by(processor, columns).tobytes() == wanted.tobytes(), name
        scores = processor.process(PredictRequest("mixed", columns)).outputs["score"][:, 0]
        assert np.abs(scores - run.trainer.score(columns)).max() <= 1e-5
    held = served_as_bytes(processor.host.catalogue["mixed"].pick().export())
    assert held == served_as_bytes(exported(run.trainer))


def test_unadmitted_or_evicted_ids_use_the_default_row_everywhere(tmp_path):
    run = begin(tmp_path)
    run.full()
    user, item = run.trainer.tables["user"], run.trainer.tables["item"]
    met = set(make_batch(ROWS, seed=0, users=USERS, items=ITEMS).slice(0, 256).columns["user"].tolist())
    assert 0 < len(user) < len(met), "some wait"
    assert user.export().last_step.min() >= run.trainer.steps - 3
    published = PublishedBaseline(Repository(tmp_path).version("mixed", 1), run.trainer.dense)
    for columns in PROBES.values():
        assert np.abs(published.score(columns) - run.trainer.score(columns)).max() <= 1e-5
    left = set()
    # Ids leave by the dozen in so short a run, which no guard would serve.
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1, delta_guard="off")) as processor:
        assert_served(run, processor)
        for generation in run.stream():
            processor.poll()
            assert processor.predictor.manifest("mixed")[1] == generation
            assert_served(run, processor)
            change_log = ChangeLog.of(Repository(tmp_path).version("mixed", 1))
            delta = change_log.read_delta(change_log.history.line()[-1])
            for name, table in delta.tables.items():
                assert not set(table.keys.tolist()) & set(table.removed.tolist())
                assert (run.trainer.tables[name].find(np.array(table.removed)) < 0).all()
                left |= {name} if len(table.removed) else set()
        assert left == {"user", "item"}
        assert len(item), "not everything left"


def test_delta_may_remove_an_id_and_a_later_one_readmit(tmp_path):
    run = begin(tmp_path)
    generations = run.stream()
    run.full()
    removed, back = set(), set()
    # Ids leave by the dozen in so short a run, which no guard would serve.
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1, delta_guard="off")) as processor:
        for _ in generations:
            change_log = ChangeLog.of(Repository(tmp_path).version("mixed", 1))
            user = change_log.read_delta(change_log.history.line()[-1]).tables["user"]
            back |= removed & set(user.keys.tolist())
            removed = (removed | set(user.removed.tolist())) - set(user.keys.tolist())
            processor.poll()
        assert back
        assert_served(run, processor)


class Killed(BaseException):
    """Instead of a kill: nothing catches it."""


def run_until_killed(run, owner, name, number, monkeypatch):
    """Runs until owner's `name` is called for the so manieth time."""
    calls, left = getattr(owner, name), [number]

    def dies(*args, **kwargs):
        left[0] -= 1
        if not left[0]:
            raise Killed
        return calls(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dies)
        with pytest.raises(Killed):
            run.run()


@pytest.mark.parametrize("where", ["save_changes", "publish", "learn 3", "save_full"])
def test_killed_run_resumes_bitwise_equal_including_filters(where, tmp_path, monkeypatch):
    wanted, filters = uninterrupted(tmp_path / "whole")
    monkeypatch.setattr(running, "CHECKPOINT_SECONDS", 0.0)
    run = begin(tmp_path / "cut")
    what, _, number = where.partition(" ")
    owner, name = {
        "save_changes": (run._checkpoints, what),
        "compact": (run._checkpoints, what),
        "save_full": (run._checkpoints, what),
        "publish": (ChangeLog, "publish"),
        "learn": (run.trainer, what),
    }[what]
    run_until_killed(run, owner, name, int(number or 2), monkeypatch)
    again = begin(tmp_path / "cut")
    again.run()
    assert differing(snapshot(again.trainer), wanted) == []
    assert admitted(again) == filters
    with Processor.initialize(ProcessorConfig(str(tmp_path / "cut"), sessions=1)) as processor:
        assert_served(again, processor)


IN_TIERS = {name: dataclasses.replace(table, memory_mb=1) for name, table in TABLES.items()} | {
    "city": TableConfig(memory_mb=1)
}


@pytest.mark.parametrize("where", [pytest.param("save_changes", marks=pytest.mark.long), "learn 7"])
def test_run_with_rows_on_disk_equals_one_in_memory(where, tmp_path, monkeypatch):
    wanted, filters = uninterrupted(tmp_path / "whole")
    monkeypatch.setattr(running, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(tiered_rows, "LEAST_ROWS", 8)
    monkeypatch.setattr(tiered_rows, "HOT_SHARE", 0.0)
    run = begin(tmp_path / "cut", IN_TIERS)
    name, _, number = where.partition(" ")
    owner = run.trainer if number else run._checkpoints
    run_until_killed(run, owner, name, int(number or 2), monkeypatch)
    # A budget may be another one after a stop.
    run = begin(tmp_path / "cut", {**IN_TIERS, "item": TABLES["item"]})
    run.run()
    for name in ("user", "tag", "city"):
        assert run.trainer.tables[name].tiers.most == 8
        run.trainer.tables[name].shrink_to_budget()
    assert len(run.trainer.tables["user"].tiers.cold) > 0
    assert differing(snapshot(run.trainer), wanted) == []
    assert admitted(run) == filters
    with Processor.initialize(ProcessorConfig(str(tmp_path / "cut"), sessions=1)) as processor:
        assert_served(run, processor)


def test_id_admitted_by_one_feature_learns_in_others_too(tmp_path):
    """item and history share a table: who is admitted by the second has its row in the pooling of both."""
    run = begin(tmp_path)
    batch = make_batch(1, seed=5)
    columns = dict(batch.columns)
    columns["item"] = np.array([77], np.int64)
    columns["history"] = dataclasses.replace(
        columns["history"], values=np.array([77, 77], np.int64), row_splits=np.array([0, 2])
    )
    table = run.trainer.tables["item"]
    run.trainer.learn(Batch(columns, batch.label, batch.time, 0))
    assert len(table) == 1
    assert table.export().counts.tolist() == [3]


def test_id_counts_are_published_with_the_full_version_only(tmp_path):
    run = begin(tmp_path)
    run.full()
    file = Repository(tmp_path).version("mixed", 1).tensors(table_file("user"))
    held = run.trainer.tables["user"].export()
    assert dict(zip(file["keys"].tolist(), file["frequencies"].tolist())) == dict(
        zip(held.keys.tolist(), held.counts.tolist())
    )
    assert held.counts.max() > run.trainer.steps, "lookups are counted, not batches"


def test_rollback_restores_filters_and_rows_as_of_then(tmp_path):
    wanted, filters = uninterrupted(tmp_path / "whole")
    run = begin(tmp_path / "undone", start_options=StartOptions(replay=True))
    run.full()
    stream, then = run.stream(), {}
    for generation in stream:
        then[generation.step] = (snapshot(run.trainer), admitted(run))
        if generation.step == 4:
            break
    ChangeLog.of(Repository(tmp_path / "undone").version("mixed", 1), whole=True).rollback(2)
    again = begin(tmp_path / "undone", start_options=StartOptions(replay=True))
    assert differing(snapshot(again.trainer), then[2][0]) == []
    assert admitted(again) == then[2][1] != then[4][1]
    for _ in again.stream():
        pass
    assert differing(snapshot(again.trainer), wanted) == []
    assert admitted(again) == filters


@pytest.mark.parametrize(
    "features", [pytest.param(FEATURES, marks=pytest.mark.long), SEQUENCES], ids=["pooled", "sequences"]
)
def test_hashed_tables_are_served_as_trained_and_resume_after_kills(features, tmp_path):
    notes = Notes()
    run = begin(tmp_path, HASHED, features, reporter=notes)
    assert any("hash of city binary_code (6 ids, 5 rows)" in note for note in notes.notes)
    run.full()
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        assert_served(run, processor)
        for _ in run.stream(stop_row=512):
            processor.poll()
            assert_served(run, processor)
        assert run.state.step == 4
        again = begin(tmp_path, HASHED, features)
        assert differing(snapshot(again.trainer), snapshot(run.trainer)) == []
        for _ in again.stream():
            processor.poll()
            assert_served(again, processor)
    for name, table in HASHED.items():
        rows = again.trainer.tables[name]
        assert 0 < len(rows) <= table.hash_rows
        assert rows.export().keys.min() >= 0
        assert rows.export().keys.max() < table.hash_rows
    assert not np.abs(again.trainer.score(PROBES["unseen"]) - 0.5).max() < 1e-3


def test_hash_method_belongs_to_the_model(tmp_path):
    tables = {"city": TableConfig(hash_rows=50)}
    begin(tmp_path, tables).full()
    assert begin(tmp_path, {}).config.tables == {}, "it was not: there are fewer ids than rows"
    with pytest.raises(BadInput, match=r"tables\.user\.hash was not set and is 'k_way'"):
        begin(tmp_path, {"user": TableConfig(hash="k_way", hash_rows=50)})
    shutil.rmtree(tmp_path / ".checkpoints")
    with pytest.raises(BadInput, match="the architecture, features or tables of version 1 differ"):
        begin(tmp_path, {"user": TableConfig(hash="k_way", hash_rows=50)}, start_options=StartOptions(new_version=True))
    taken = begin(tmp_path, tables, start_options=StartOptions(new_version=True))
    assert taken.config.tables["city"].hash == "none"
