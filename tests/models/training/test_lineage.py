"""The trainer and its version's chain: whatever others do to it, the trainer's weights are those of the head."""

import dataclasses
import io

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.training import checkpoint as saving
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.errors import Conflict, NotReady
from freshet_serving.processor.generation import UNDO_DEPTH
from freshet_serving.processor.package.delta import Delta, TableDelta, stream_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents, stored
from freshet_serving.processor.repository.log.damage import repair
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.streams import MixedSource, Notes, differing, make_config, snapshot, spread

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

FULL_ROWS, DELTA_ROWS, ROWS = 128, 32, 1600


def config(repository, snapshot_after=0, **options):
    made = make_config(repository, full_rows=FULL_ROWS, delta_rows=DELTA_ROWS, batch_rows=32, **options)
    return dataclasses.replace(made, publish=dataclasses.replace(made.publish, snapshot_after=snapshot_after))


def start(repository, replay=False, rows=ROWS, **options):
    """A run that has published its version, or has resumed -> (the run, its stream, its notes)."""
    heard = Notes()
    run = TrainingRun(
        config(repository, **options), MixedSource(rows), reporter=heard, start_options=StartOptions(replay)
    )
    run.full()
    return run, run.stream(), heard.notes


def advance(stream, count):
    return [str(next(stream)) for _ in range(count)]


def chain(repository, version=1):
    return ChangeLog.of(Repository(repository).version("mixed", version), whole=True)


def roll_back(repository, step):
    chain(repository).rollback(step)


def assert_at_head(run, dtype="float32"):
    """The trainer holds what the newest generation of the chain holds, to the bit."""
    version = Repository(run.config.publish.repository).version("mixed", run.state.version)
    change_log = ChangeLog.of(version)
    contents = VersionContents(version, change_log, change_log.history.head)
    for name, table in run.trainer.tables.items():
        keys, rows = contents.table(name)
        held = table.export()
        assert held.keys.tolist() == keys.tolist(), name
        assert stored(held.rows, dtype).tobytes() == rows.tobytes(), name
    weights = run.trainer.dense.weights()
    assert {n: a.tobytes() for n, a in contents.dense.items()} == {n: a.tobytes() for n, a in weights.items()}


def foreign(repository, dense=False):
    """Publishes a delta that no trainer made."""
    change_log = chain(repository)
    head, manifest = change_log.history.head, change_log.manifest
    keys = np.sort(spread([1, 3, 500 + change_log.history.top]))
    rows = np.full((3, 4), 0.25 + change_log.history.top / 64, np.float32)
    tables = {"user": TableDelta(keys, rows, spread([2]))}
    weights = {}
    if dense:
        name = min(manifest.dense)
        weights = {name: np.full(manifest.dense[name], 0.125, np.float32)}
    return change_log.publish(
        Delta("mixed", 1, change_log.history.top + 1, head.step, tables, weights, published_at=1.0)
    )


def damage(repository, number):
    folder = repository / "mixed" / "1" / "chain"
    (folder / f"{number:010}.json").write_bytes(b"{}")
    return repair(ChangeLog(Repository(repository).version("mixed", 1)), number)


def test_trainer_continues_from_the_last_good_generation_after_repair(tmp_path):
    run, stream, notes = start(tmp_path)
    assert advance(stream, 4) == ["1.1", "1.2", "1.3", "1.4"]
    damage(tmp_path, 3)
    assert advance(stream, 2) == ["1.5", "1.6"]
    assert [link.step for link in chain(tmp_path).history.line()] == [0, 1, 2, 5, 6]
    assert notes[-1] == "1.4 was rolled back to 1.2: went back, skipped 64 rows"
    assert_at_head(run)


@pytest.mark.parametrize("number", [2, 4])
def test_trainer_started_after_a_repair_continues_from_it(tmp_path, number):
    _, stream, _ = start(tmp_path)
    advance(stream, 4)
    damage(tmp_path, number)
    run, stream, _ = start(tmp_path)
    advance(stream, 2)
    steps = [link.step for link in chain(tmp_path).history.line()]
    assert steps[:number] == list(range(number))
    assert all(step > 4 for step in steps[number:])
    assert_at_head(run)


def test_undone_rows_are_skipped_after_a_rollback(tmp_path):
    run, stream, notes = start(tmp_path / "a")
    assert advance(stream, 4) == ["1.1", "1.2", "1.3", "1.4"]
    roll_back(tmp_path / "a", 2)

    assert advance(stream, 2) == ["1.5", "1.6"]

    line = chain(tmp_path / "a").history.line()
    assert [link.step for link in line] == [0, 1, 2, 5, 6]
    assert notes[-1] == "1.4 was rolled back to 1.2: went back, skipped 64 rows"
    assert run.state.position == FULL_ROWS + 6 * DELTA_ROWS
    assert_at_head(run)
    kept = snapshot(run.trainer)
    twin, _, _ = start(tmp_path / "b")
    advance(twin.stream(), 2)
    twin.state.position += 2 * DELTA_ROWS
    advance(twin.stream(), 2)
    assert differing(snapshot(twin.trainer), kept) == []


def test_replay_learns_undone_rows_again_with_equal_weights(tmp_path):
    run, stream, notes = start(tmp_path / "a", replay=True)
    advance(stream, 4)
    wanted = snapshot(run.trainer)
    roll_back(tmp_path / "a", 2)

    assert advance(stream, 2) == ["1.5", "1.6"]

    assert notes[-1] == "1.4 was rolled back to 1.2: went back, trains on 64 rows again"
    assert run.state.position == FULL_ROWS + 4 * DELTA_ROWS
    assert differing(snapshot(run.trainer), wanted) == []
    assert_at_head(run)


@pytest.mark.parametrize("replay", [False, True])
def test_run_that_missed_the_rollback_resumes_equally(tmp_path, replay):
    _, stream, _ = start(tmp_path, replay)
    advance(stream, 4)
    roll_back(tmp_path, 1)

    run, stream, notes = start(tmp_path, replay)

    assert notes[:2] == [
        "resumed at row 256, generation 1.4",
        f"1.4 was rolled back to 1.1: went back, {'trains on' if replay else 'skipped'} 96 rows{' again' * replay}",
    ]
    assert_at_head(run)
    assert run.state.position == FULL_ROWS + (1 if replay else 4) * DELTA_ROWS
    # Once back, it stays back: a kill here changes nothing.
    again, stream, notes = start(tmp_path, replay)
    assert notes == [f"resumed at row {run.state.position}, generation 1.1"]
    assert advance(stream, 1) == ["1.5"]
    assert_at_head(again)


def test_chunk_unpublished_before_the_rollback_is_not_skipped(tmp_path):
    run, stream, notes = start(tmp_path)
    advance(stream, 3)
    seen = []

    def before(batch):
        seen.append(batch.start)
        if len(seen) == 1:
            roll_back(tmp_path, 2)

    assert str(next(run.stream(before=before))) == "1.4"

    assert notes[-1] == "1.3 was rolled back to 1.2: went back, skipped 32 rows"
    assert seen == [FULL_ROWS + 3 * DELTA_ROWS] * 2
    assert_at_head(run)


def test_trainer_ignores_a_delta_undone_and_reapplied_by_others(tmp_path):
    run, stream, notes = start(tmp_path)
    advance(stream, 3)
    change_log = chain(tmp_path)
    third = change_log.read_delta(change_log.history.head)
    change_log.rollback(2)
    change_log.publish(third)

    assert advance(stream, 1) == ["1.4"]

    assert not any("rolled back" in note for note in notes)
    assert_at_head(run)


@pytest.mark.parametrize("dense", [False, True])
def test_foreign_delta_is_adopted_and_built_upon(tmp_path, dense):
    run, stream, notes = start(tmp_path)
    advance(stream, 2)
    foreign(tmp_path, dense)

    assert advance(stream, 2) == ["1.4", "1.5"]

    assert notes[-1] == "1.3 was published by another writer: continuing from there"
    assert_at_head(run)
    roll_back(tmp_path, 3)
    assert advance(stream, 1) == ["1.6"]
    assert_at_head(run)
    assert_at_head(start(tmp_path)[0])


def test_delta_published_between_check_and_commit_is_built_upon(tmp_path, monkeypatch):
    run, stream, _ = start(tmp_path)
    advance(stream, 1)
    publish, calls = ChangeLog.publish, []

    def slow(change_log, delta):
        if not calls:
            calls.append(1)
            foreign(tmp_path)
        return publish(change_log, delta)

    monkeypatch.setattr(ChangeLog, "publish", slow)
    assert advance(stream, 1) == ["1.3"]
    assert_at_head(run)


def test_refusing_log_that_never_moves_ends_with_an_error(tmp_path, monkeypatch):
    _, stream, _ = start(tmp_path)

    def refuse(change_log, delta):
        raise Conflict("delta: no")

    monkeypatch.setattr(ChangeLog, "publish", refuse)
    with pytest.raises(Conflict, match="delta: no"):
        next(stream)


def test_hold_does_not_stop_the_trainer(tmp_path):
    run, stream, _ = start(tmp_path)
    advance(stream, 1)
    chain(tmp_path).hold("a look at it")
    assert advance(stream, 2) == ["1.2", "1.3"]
    assert chain(tmp_path).history.target.step == 1
    assert_at_head(run)


def test_killed_between_increment_and_delta_republishes_identical_bytes(tmp_path, monkeypatch):
    run, stream, _ = start(tmp_path / "a")
    advance(stream, 2)
    wanted = []

    def die(change_log, delta):
        file = io.BytesIO()
        stream_delta(file, delta)
        wanted.append(file.getvalue())
        raise NotReady("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(ChangeLog, "publish", die)
        with pytest.raises(NotReady):
            next(stream)
    files = len(list((tmp_path / "a" / ".checkpoints" / "mixed").iterdir()))

    run, stream, _ = start(tmp_path / "a")

    assert (tmp_path / "a" / "mixed" / "1" / "deltas" / "3.safetensors").read_bytes() == wanted[0]
    assert len(list((tmp_path / "a" / ".checkpoints" / "mixed").iterdir())) == files
    assert_at_head(run)
    assert advance(stream, 1) == ["1.4"]


@pytest.mark.parametrize("meanwhile", ["foreign", "rollback"])
def test_run_killed_before_publishing_follows_the_records(tmp_path, monkeypatch, meanwhile):
    _, stream, _ = start(tmp_path)
    advance(stream, 2)
    with monkeypatch.context() as patch:
        patch.setattr(ChangeLog, "publish", lambda *_: (_ for _ in ()).throw(NotReady("killed here")))
        with pytest.raises(NotReady):
            next(stream)
    foreign(tmp_path) if meanwhile == "foreign" else roll_back(tmp_path, 1)

    run, stream, notes = start(tmp_path)

    assert_at_head(run)
    if meanwhile == "foreign":
        # Step 3 is somebody else's now: what was to be it stands on it.
        assert run.state.step == 4
        assert run.state.position == FULL_ROWS + 3 * DELTA_ROWS
    else:
        assert notes[-1] == "1.2 was rolled back to 1.1: went back, skipped 32 rows"
        assert run.state.position == FULL_ROWS + 2 * DELTA_ROWS
    advance(stream, 1)
    assert_at_head(run)


def test_checkpoints_reach_as_far_back_as_the_undo_depth(tmp_path, monkeypatch):
    # Every delta is followed by a full checkpoint: as many as there could ever be.
    monkeypatch.setattr(saving.Checkpoints, "compact", lambda c, t, s, wanted=tuple: c.save_full(t, s, wanted()))
    run, stream, notes = start(tmp_path)
    advance(stream, UNDO_DEPTH + 6)
    fulls = list((tmp_path / ".checkpoints" / "mixed").glob("*.full.*"))
    assert UNDO_DEPTH < len(fulls) <= UNDO_DEPTH + 2

    roll_back(tmp_path, 6)
    advance(stream, 1)

    assert notes[-1] == f"1.{UNDO_DEPTH + 6} was rolled back to 1.6: went back, skipped {UNDO_DEPTH * DELTA_ROWS} rows"
    assert_at_head(run)


@pytest.mark.parametrize("optimizer", ["adam", "ftrl"])
def test_rollback_beyond_checkpoints_loads_weights_from_the_repository(tmp_path, optimizer):
    run, stream, notes = start(tmp_path, optimizer=optimizer)
    advance(stream, 2)
    for path in (tmp_path / ".checkpoints" / "mixed").iterdir():
        path.unlink()
    run._checkpoints.save_full(run.trainer, run.state)
    roll_back(tmp_path, 1)

    run, stream, notes = start(tmp_path, optimizer=optimizer)

    assert "no checkpoint is that old" in notes[-1]
    assert_at_head(run)
    held = {name: table.export() for name, table in run.trainer.tables.items()}
    position = run.state.position
    assert position == FULL_ROWS + 2 * DELTA_ROWS
    advance(stream, 3)
    assert_at_head(run)
    # Nothing jumps: a row that is learned on moves from where it was.
    for name, before in held.items():
        after = run.trainer.tables[name].export()
        common = np.isin(after.keys, before.keys)
        assert np.abs(after.rows[common] - before.rows[np.isin(before.keys, after.keys)]).max() < 0.5


def test_checkpoint_in_the_former_format_is_resumed(tmp_path, monkeypatch):
    def former(state):
        kept = dataclasses.asdict(state)
        return {name: value for name, value in kept.items() if name not in ("digest", "parent", "settings")}

    with monkeypatch.context() as patch:
        patch.setattr(saving, "as_saved", former)
        _, stream, _ = start(tmp_path)
        advance(stream, 3)

    run, stream, notes = start(tmp_path)
    assert notes == ["resumed at row 224, generation 1.3"]
    assert advance(stream, 1) == ["1.4"]
    roll_back(tmp_path, 2)
    assert advance(stream, 1) == ["1.5"]
    assert_at_head(run)


def test_log_is_compacted_periodically_and_rollback_resets_the_count(tmp_path):
    run, stream, notes = start(tmp_path, snapshot_after=3)
    advance(stream, 7)
    folded = [note for note in notes if "snapshot" in note]
    assert folded == [f"1.{n} is in a snapshot, from which servers start" for n in (3, 6)]
    assert chain(tmp_path).history.snapshot().step == 6
    assert_at_head(run)
    roll_back(tmp_path, 2)
    assert chain(tmp_path).history.snapshot() is None
    # Two deltas are on the line, and this is the third.
    advance(stream, 1)
    assert chain(tmp_path).history.snapshot().step == 8
    assert_at_head(run)


def test_unwritable_snapshot_does_not_stop_the_trainer(tmp_path, monkeypatch):
    run, stream, notes = start(tmp_path, snapshot_after=1)
    monkeypatch.setattr(
        "freshet_serving.models.training.lineage.compact", lambda *_: (_ for _ in ()).throw(NotReady("snapshot: full"))
    )
    assert advance(stream, 2) == ["1.1", "1.2"]
    assert notes[-1] == "could not write a snapshot: snapshot: full"
    assert_at_head(run)


@pytest.mark.parametrize("lost", [False, True])
def test_unreachable_repository_is_awaited_and_nothing_published_twice(tmp_path, monkeypatch, lost):
    run, stream, _ = start(tmp_path)
    advance(stream, 1)
    lineage, waited = run._open_chain(), []
    change_log, publish, look = lineage._change_log, lineage._change_log.publish, lineage._change_log.look
    outage = [3]

    def away(act, *arguments):
        if outage[0]:
            outage[0] -= 1
            if lost and act is publish:
                # The record is there, and its answer is not.
                act(*arguments)
            raise NotReady("repository: the object store cannot be reached: no answer in time")
        return act(*arguments)

    monkeypatch.setattr(lineage, "_wait", waited.append)
    monkeypatch.setattr(change_log, "publish", lambda delta: away(publish, delta))
    if not lost:
        monkeypatch.setattr(change_log, "look", lambda: away(look))
    else:
        outage[0] = 1
    assert advance(stream, 2) == ["1.2", "1.3"]
    assert len(waited) == (1 if lost else 3)
    assert (chain(tmp_path).history.number, chain(tmp_path).history.top) == (3, 3)
    assert_at_head(run)


def test_finite_run_fails_when_the_repository_is_unreachable(tmp_path, monkeypatch):
    run, stream, _ = start(tmp_path)
    advance(stream, 1)

    def away():
        raise NotReady("repository: the object store cannot be reached: no connection")

    monkeypatch.setattr(run._open_chain()._change_log, "look", away)
    with pytest.raises(NotReady, match="no connection"):
        advance(stream, 1)
