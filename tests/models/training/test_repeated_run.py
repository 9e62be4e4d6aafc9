"""A followed run that is repeated over its rows: the same weights to the bit, whatever the run went through."""

from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.training.batch_borders import BORDERS, Entry, parse_entries, read_entries
from freshet_serving.models.training.checkpoint import newest_state
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.repeated_run import RepeatedRun
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.event_files import Events, stream_to
from tests.models.training.streams import Notes, differing, snapshot
from tests.models.training.test_loop_follow_histories import config_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ROWS = (37, 100, 5, 160, 1, 44)


@pytest.fixture
def events(tmp_path):
    events = Events(tmp_path / "events", late=True)
    events.send(450)
    return events


def begin(config, repeat=None):
    return TrainingRun(config, reporter=Notes(), start_options=StartOptions(repeat=repeat))


def checkpoints(tmp_path, repository="repository"):
    return tmp_path / repository / ".checkpoints" / "followed"


def steps(folder):
    return list(RepeatedRun(folder).entries())


def repeated(tmp_path, into="again", config=None):
    """A run that has repeated the one followed, into a repository of its own."""
    config = config or config_of(tmp_path, follow=False, repository=str(tmp_path / into))
    run = begin(config, checkpoints(tmp_path))
    run.run()
    return run


def check_repeated(tmp_path, run, into="again", config=None):
    again = repeated(tmp_path, into, config)
    assert differing(snapshot(run.trainer), snapshot(again.trainer)) == [], into
    return again


def follow(tmp_path, events, config=None, rows=ROWS):
    """A run that has learned rows as they came, a step for each few of them."""
    run = begin(config or config_of(tmp_path))
    run.full()
    for count in rows:
        events.send(count)
        stream_to(run, events.sent)
    return run


def test_repeated_run_has_the_weights_of_the_followed_one(tmp_path, events):
    run = follow(tmp_path, events)
    entries = steps(checkpoints(tmp_path))
    learned = [entry for entry in entries if entry.end > entry.first]
    assert learned[0].first == 400
    assert [entry.first for entry in learned[1:]] == [entry.end for entry in learned[:-1]]
    assert len({entry.end - entry.first for entry in learned}) > 3
    assert [str(e.generation) for e in entries if e.generation] == [f"1.{n}" for n in range(run.state.step + 1)]
    again = check_repeated(tmp_path, run)
    assert again.state.position == events.sent == 797
    # It has published what the other one did, and its own borders say the same.
    assert again.state.step == run.state.step
    assert steps(checkpoints(tmp_path, "again")) == steps(checkpoints(tmp_path))

    half = begin(config_of(tmp_path, follow=False, repository=str(tmp_path / "half")), checkpoints(tmp_path))
    half.full()
    next(half.stream())
    resumed = check_repeated(tmp_path, run, "half")
    assert any("resumed at row" in line for line in resumed._report.notes)

    # Rows that a rollback took back are skipped, or learned again.
    for replay in (False, True):
        change_log = ChangeLog.of(Repository(tmp_path / "repository").version("followed"), whole=True)
        change_log.rollback(change_log.history.line()[-3].step)
        run = TrainingRun(config_of(tmp_path), reporter=Notes(), start_options=StartOptions(replay))
        events.send(130)
        stream_to(run, events.sent)
        assert any("was rolled back" in line for line in run._report.notes)
        check_repeated(tmp_path, run, f"replay {replay}")


def contents(repository):
    """What each delta of a repository has, oldest first."""
    change_log = ChangeLog.of(Repository(repository).version("followed"), whole=True)
    read = [change_log.read_delta(link) for link in change_log.history.line() if link.record is not None]
    return [(sorted(d.tables), {n: a.tobytes() for n, a in d.dense.items()}, d.events) for d in read]


def test_repeated_run_publishes_weights_where_the_followed_one_did(tmp_path, events):
    run = follow(tmp_path, events, config_of(tmp_path, delta_rows=60, dense_every=3))
    published = contents(tmp_path / "repository")
    # When they were due, and where the run was stopped: there also alone, after the rows.
    assert {(bool(tables), bool(dense)) for tables, dense, _ in published} == {
        (True, True),
        (True, False),
        (False, True),
    }
    config = config_of(tmp_path, False, repository=str(tmp_path / "again"), delta_rows=60, dense_every=3)
    check_repeated(tmp_path, run, config=config)
    assert contents(tmp_path / "again") == published
    assert steps(checkpoints(tmp_path, "again")) == steps(checkpoints(tmp_path))


def test_first_weights_do_not_depend_on_rows_that_came_later(tmp_path, events):
    """The first bias, scaling and settings are measured on what was there."""
    run = begin(config_of(tmp_path))
    run.full()
    events.send(1000)
    stream_to(run, 600)
    check_repeated(tmp_path, run)


def test_steps_that_a_kill_lost_are_not_repeated(tmp_path, events, monkeypatch):
    follow(tmp_path, events, rows=(37,))
    for borders_saved in (False, True):
        run = begin(config_of(tmp_path))
        killed = run._checkpoints

        def dying(trainer, state, changes, killed=killed, borders_saved=borders_saved):
            if borders_saved:
                killed.borders.commit(state.borders)
            raise ZeroDivisionError

        monkeypatch.setattr(killed, "save_changes", dying)
        events.send(90)
        with pytest.raises(ZeroDivisionError):
            stream_to(run, events.sent)
        events.send(250)
        run = begin(config_of(tmp_path, delta_rows=70))
        stream_to(run, events.sent)
        check_repeated(tmp_path, run, f"borders saved {borders_saved}")


EVICTING = {
    "model": {"name": "followed", "arch": "deepfm", "hidden": [8]},
    # The seeds of kinds are drawn at random.
    "features": {
        "user": {"kind": "id", "dim": 4},
        "item": {"kind": "id", "dim": 4},
        "kind": {"kind": "string", "dim": 4},
    },
    "tables": {"user": {"evict_after_steps": 1}},
    "train": {"batch_rows": 64},
}


def test_eviction_happens_where_deltas_were_published(tmp_path, events):
    def config(followed, repository):
        data = {"path": str(events.folder), "label": "clicked", "time": "ts", "follow": followed}
        publish = {"repository": str(tmp_path / repository), "full_rows": 400, "delta_rows": 150}
        return parse_config(EVICTING | {"data": data, "publish": publish})

    run = follow(tmp_path, events, config(True, "repository"))
    check_repeated(tmp_path, run, config=config(False, "again"))
    assert len(run.trainer.tables["user"]) < 25


def test_run_that_an_older_release_began_is_refused(tmp_path, events):
    run = follow(tmp_path, events, rows=(50,))
    run.state.borders = []
    run._checkpoints.save_full(run.trainer, run.state)
    events.send(60)
    stream_to(begin(config_of(tmp_path)), events.sent)
    mark = newest_state(checkpoints(tmp_path)).borders
    entries = list(parse_entries(read_entries(checkpoints(tmp_path) / BORDERS, mark)))
    assert entries[:2] == [Entry(500, 500), Entry(500, 560)]
    with pytest.raises(BadInput, match="--repeat: expected a run from its first row on"):
        repeated(tmp_path)


def test_runs_that_cannot_be_repeated_are_refused(tmp_path, events):
    run = follow(tmp_path, events, rows=(50,))
    folder = checkpoints(tmp_path)
    fewer = SimpleNamespace(batches=lambda rows, start: (b for b in run.source.batches(10, start) if b.end < 450))
    with pytest.raises(BadInput, match="data: expected the 500 rows that the repeated run learned, got 4"):
        list(RepeatedRun(folder).batches(fewer, 400))
    other = config_of(tmp_path, follow=False, repository=str(tmp_path / "again"), sequence={"max_length": 5})
    with pytest.raises(BadInput, match=r"--repeat: .*sequences\.h\.max_length was 6 and is 5, "):
        repeated(tmp_path, config=other)
    with pytest.raises(BadInput, match="--repeat: not allowed with"):
        StartOptions(replay=True, repeat=folder)
    # Another writer published.
    run._checkpoints.borders.interrupted(run.state.position)
    events.send(60)
    stream_to(run, events.sent)
    with pytest.raises(BadInput, match="at row 500 the run went on with weights that are not its own"):
        repeated(tmp_path)
    with pytest.raises(BadInput, match="--repeat: expected the folder of a followed run's checkpoints"):
        RepeatedRun(tmp_path)
    (folder / BORDERS).unlink()
    with pytest.raises(BadInput, match="--repeat: expected the file 'borders'"):
        RepeatedRun(folder)
