"""publish.dense_every: rows with every delta, dense weights with every Nth; nothing is lost in between."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.training.checkpoint import newest_state
from freshet_serving.models.training.lineage import rebuild
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.streams import MixedSource, Notes, differing, make_batch, snapshot
from tests.models.training.test_lineage import (
    DELTA_ROWS,
    FULL_ROWS,
    advance,
    assert_at_head,
    chain,
    config,
    foreign,
    roll_back,
)

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

EVERY = 3
PROBE = make_batch(40, seed=5).columns


def start(repository, rows=FULL_ROWS + 7 * DELTA_ROWS, every=EVERY, replay=False, **options):
    """A run that has published its version, or has resumed, and its stream."""
    made = config(repository, **options)
    made = dataclasses.replace(made, publish=dataclasses.replace(made.publish, dense_every=every))
    run = TrainingRun(made, MixedSource(rows), reporter=Notes(), start_options=StartOptions(replay))
    run.full()
    return run, run.stream()


def deltas(repository):
    """The deltas on the way to the newest generation, oldest first."""
    change_log = chain(repository)
    links = [link for link in change_log.history.back(change_log.history.head) if link.record is not None]
    return [change_log.read_delta(link) for link in reversed(links)]


def with_weights(repository):
    """The steps of the deltas that have dense weights."""
    return [delta.step for delta in deltas(repository) if delta.dense]


def head(run):
    version = Repository(run.config.publish.repository).version("mixed", run.state.version)
    change_log = ChangeLog.of(version)
    return VersionContents(version, change_log, change_log.history.head)


def assert_rows_at_head(run):
    """The head has the trainer's rows, and its dense weights are those that the trainer takes for published."""
    contents = head(run)
    for name, table in run.trainer.tables.items():
        keys, rows = contents.table(name)
        export = table.export()
        assert export.keys.tolist() == keys.tolist(), name
        assert export.rows.tobytes() == rows.tobytes(), name
    taken = run._open_chain()._dense
    assert {n: a.tobytes() for n, a in contents.dense.items()} == {n: a.tobytes() for n, a in taken.items()}
    if not run.state.withheld:
        assert_at_head(run)


def as_bytes(delta):
    tables = {n: (t.keys.tobytes(), t.rows.tobytes(), t.removed.tobytes()) for n, t in delta.tables.items()}
    return tables, {n: a.tobytes() for n, a in delta.dense.items()}, delta.events, delta.event_time


def killed(stream, monkeypatch):
    """Run a stream until its next delta is saved and not published."""
    with monkeypatch.context() as patch:
        patch.setattr(ChangeLog, "publish", lambda *_: (_ for _ in ()).throw(NotReady("killed here")))
        with pytest.raises(NotReady):
            next(stream)


def test_every_nth_delta_and_the_last_one_have_weights(tmp_path):
    run, stream = start(tmp_path)
    for step in range(1, 8):
        assert advance(stream, 1) == [f"1.{step}"]
        assert run.state.withheld == step % EVERY
        assert_rows_at_head(run)
    assert list(map(str, stream)) == ["1.8"]
    assert with_weights(tmp_path) == [3, 6, 8]
    assert all(delta.tables for delta in deltas(tmp_path)[:7])
    assert (deltas(tmp_path)[7].tables, deltas(tmp_path)[7].events) == ({}, 0)
    assert_at_head(run)


def test_each_delta_has_weights_by_default_and_learning_equals(tmp_path):
    learned = []
    for every in (0, 1, EVERY):
        run, stream = start(tmp_path / str(every), every=every)
        published = list(map(str, stream))
        learned.append(snapshot(run.trainer))
        if every != EVERY:
            assert published == [f"1.{step}" for step in range(1, 8)]
            assert with_weights(tmp_path / str(every)) == list(range(1, 8))
            assert_at_head(run)
    assert differing(learned[0], learned[1]) == differing(learned[0], learned[2]) == []


def test_servers_score_new_rows_with_the_weights_last_published(tmp_path):
    run, stream = start(tmp_path)
    twin = Trainer(run.trainer.manifest, run.config.train, run.config.network, run.config.fusion, run.config.tables)
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1, delta_guard="off")) as processor:
        for step in range(1, 6):
            advance(stream, 1)
            processor.poll()
            rebuild(twin, head(run))
            reply = processor.process(PredictRequest("mixed", PROBE))
            served = reply.outputs["score"].reshape(-1)
            assert str(reply.generation) == f"1.{step}"
            np.testing.assert_allclose(served, twin.score(PROBE), atol=1e-5)
            newest = np.abs(served - run.trainer.score(PROBE)).max()
            assert newest < 1e-5 if step == 3 else newest > 1e-4


_WHOLE = []


def whole_run(repository):
    """The deltas of a run to its end; made once."""
    if not _WHOLE:
        list(start(repository)[1])
        _WHOLE[:] = map(as_bytes, deltas(repository))
    return _WHOLE


@pytest.mark.parametrize("published", [1, 2, 3, 7])
def test_run_killed_before_any_delta_publishes_the_same(tmp_path, monkeypatch, published):
    """Deltas have rows (2, 4), rows and the weights that are due (3), and weights alone, at the end (8)."""
    _, stream = start(tmp_path / "killed")
    advance(stream, published)
    killed(stream, monkeypatch)
    digest = newest_state(tmp_path / "killed" / ".checkpoints" / "mixed").digest
    run, stream = start(tmp_path / "killed")
    assert chain(tmp_path / "killed").history.head.digest == digest
    assert_rows_at_head(run)
    list(stream)
    assert_at_head(run)
    same = [a == as_bytes(b) for a, b in zip(whole_run(tmp_path / "whole"), deltas(tmp_path / "killed"))]
    assert same == [True] * 8


def test_resumed_run_with_no_rows_left_publishes_what_was_withheld(tmp_path):
    _, stream = start(tmp_path)
    advance(stream, 7)
    run, stream = start(tmp_path)
    assert advance(stream, 1) == ["1.8"]
    assert_at_head(run)
    assert list(start(tmp_path)[1]) == []


def test_run_that_withholds_no_longer_publishes_all(tmp_path):
    _, stream = start(tmp_path)
    advance(stream, 1)
    run, stream = start(tmp_path, every=0)
    advance(stream, 1)
    assert with_weights(tmp_path) == [2]
    assert_at_head(run)


def test_stopped_run_publishes_what_was_withheld(tmp_path):
    run, stream = start(tmp_path)
    advance(stream, 1)
    run.stop()
    assert list(map(str, stream)) == ["1.2"]
    assert with_weights(tmp_path) == [2]
    assert_at_head(run)


def test_full_version_has_what_was_withheld(tmp_path):
    made, _ = start(tmp_path)
    advance(made.stream(), 2)
    made._begin_version()
    assert (made.state.version, made.state.withheld) == (2, 0)
    assert_at_head(made)


def test_rollback_takes_published_weights_back_and_publishes_withheld_ones_again(tmp_path):
    run, stream = start(tmp_path, replay=True)
    advance(stream, 4)
    learned = snapshot(run.trainer)
    roll_back(tmp_path, 2)
    assert advance(stream, 1) == ["1.5"]
    assert with_weights(tmp_path) == [5]
    assert_at_head(run)
    advance(stream, 1)
    assert run.state.withheld == 1
    assert differing(learned, snapshot(run.trainer)) == []
    assert_rows_at_head(run)


def test_killed_run_whose_delta_came_second_publishes_all_weights(tmp_path, monkeypatch):
    """Two increments have the same changes then: the weights before them are those of neither."""
    _, stream = start(tmp_path, every=0)
    advance(stream, 1)
    publish, calls = ChangeLog.publish, []

    def slow(change_log, delta):
        calls.append(1)
        if len(calls) == 1:
            foreign(tmp_path)
        if len(calls) == 3:
            raise NotReady("killed here")
        return publish(change_log, delta)

    with monkeypatch.context() as patch:
        patch.setattr(ChangeLog, "publish", slow)
        with pytest.raises(NotReady):
            next(stream)
    assert_at_head(start(tmp_path, every=0)[0])


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("back"), st.integers(1, 6)),
        st.tuples(st.just("resume"), st.booleans()),
        st.tuples(st.just("foreign"), st.booleans()),
    ),
    min_size=3,
    max_size=12,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=ACTIONS,
    every=st.sampled_from([0, 2, 3, 4]),
    optimizer=st.sampled_from(["adagrad", "adam"]),
    snapshot_after=st.sampled_from([0, 2]),
)
def test_head_is_the_trainer_after_any_publications_and_rollbacks(
    tmp_path_factory, actions, every, optimizer, snapshot_after
):
    """All rows at once, and all weights where they are due and in the end."""
    repository = tmp_path_factory.mktemp("any")
    options = {"rows": 1600, "every": every, "optimizer": optimizer, "snapshot_after": snapshot_after}
    run, stream = start(repository, **options)
    published = []
    for action, value in actions:
        if action == "publish":
            for _ in range(value):
                published.append(next(stream))
                assert_rows_at_head(run)
        elif action == "back":
            line = chain(repository).history.line()
            roll_back(repository, line[max(0, len(line) - 1 - value)].step)
        elif action == "foreign":
            foreign(repository, value)
        else:
            run, stream = start(repository, replay=value, **options)
            assert_rows_at_head(run)
    assert len(published) == len(set(published))
    # It looks at the records before it learns.
    generation = next(stream)
    assert_rows_at_head(run)
    assert generation == Generation(1, chain(repository).history.top)
    run.stop()
    list(stream)
    assert_at_head(run)
