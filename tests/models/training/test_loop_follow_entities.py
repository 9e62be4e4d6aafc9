"""Runs that follow a stream and the tables that are joined to it: changed entities become deltas, after any kill."""

import threading

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving import Publisher
from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.publishing.entity_rows import entity_rows
from freshet_serving.models.training import entity_deltas
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.repository.log.change_log import ChangeLog
from tests.models.training.event_files import Clicks, put, stop_when
from tests.models.training.streams import Notes
from tests.models.training.test_loop_follow import ledger_of
from tests.support.waiting import until

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

ITEMS = range(30)


@pytest.fixture
def clicks(tmp_path):
    return Clicks(tmp_path / "clicks")


def write_items(path, prices):
    """A file with a price for each item; its kind follows from the price."""
    prices = dict(prices)
    kinds = [f"k{int(price) % 5}" for price in prices.values()]
    table = {"item": list(prices), "price": [float(price) for price in prices.values()], "kind": kinds}
    put(path, table)


def config_of(tmp_path, path="items.parquet", user_table=False, **publish):
    raw = {
        "model": {"name": "ctr", "arch": "deepfm", "hidden": [8]},
        "data": {"path": str(tmp_path / "clicks"), "label": "clicked", "time": "ts", "follow": True},
        "features": {
            "user": {"kind": "id", "dim": 4, "side": "user"},
            "item": {"kind": "id", "dim": 4, "side": "item"},
            "price": {"kind": "float", "side": "item"},
            "kind": {"kind": "string", "dim": 4, "side": "item"},
        },
        "entities": {"item": {"key": "item", "path": str(tmp_path / path), "columns": ["price", "kind"]}},
        "train": {"batch_rows": 100, "learning_rate": 0.1, "shuffle_rows": 0, "seed": 1},
        "guard": {"enabled": False},
        "publish": {"repository": str(tmp_path / "repository"), "full_rows": 300, "delta_seconds": 0.05} | publish,
    }
    if user_table:
        raw["user_table"] = {"people": {"key": "user", "path": str(tmp_path / "people.csv")}}
    return parse_config(raw)


def begin(config, **options):
    return TrainingRun(config, reporter=Notes(), start_options=StartOptions(**options))


def started(tmp_path, clicks, **publish):
    """A run that has published a version in which all prices are 1."""
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 1))
    clicks.send(300)
    run = begin(config_of(tmp_path, **publish))
    run.full()
    return run


def served(tmp_path):
    """Price by item, as the newest generation has it."""
    publisher = Publisher(tmp_path / "repository", "ctr")
    (entity,) = publisher.manifest.entities
    keys, records = publisher.served().table(entity.table)
    prices = {record.tobytes(): price for price, record in enumerate(records_of_prices(publisher.manifest, entity))}
    return {key: prices[record.tobytes()] for key, record in zip(keys.tolist(), records)}


def records_of_prices(manifest, entity):
    columns = {"price": [float(price) for price in range(200)], "kind": [f"k{price % 5}" for price in range(200)]}
    return entity_rows(manifest, entity, columns, 200)


def stream_until(run, condition):
    stop_when(run, condition)
    return [str(generation) for generation in run.stream()]


def test_changed_file_becomes_a_delta_of_its_own(tmp_path, clicks):
    run = started(tmp_path, clicks)
    assert served(tmp_path) == dict.fromkeys(ITEMS, 1)
    write_items(tmp_path / "items.parquet", dict.fromkeys(range(1, 30), 1) | {3: 7, 99: 8})
    assert stream_until(run, lambda: run.status().deltas == 1) == ["1.1"]
    wanted = dict.fromkeys(range(1, 30), 1) | {3: 7, 99: 8}
    assert served(tmp_path) == wanted
    delta = ledger_of(tmp_path).history.head
    assert delta.step == 1
    # A run that starts has nothing to add.
    again = begin(config_of(tmp_path))
    clicks.send(100)
    assert stream_until(again, lambda: again.state.position == 400)[-1] == "1.2"
    assert served(tmp_path) == wanted


def test_change_without_rows_brings_withheld_weights(tmp_path, clicks):
    run = started(tmp_path, clicks, dense_every=1000)
    clicks.send(100)
    stream = run.stream()
    while run.state.position < 400:
        next(stream)
    assert run.state.withheld > 0
    write_items(tmp_path / "items.parquet", {3: 7})
    next(stream)
    assert run.state.withheld == 0
    change_log = ledger_of(tmp_path)
    delta = change_log.read_delta(change_log.history.head)
    assert (delta.events, [*delta.tables]) == (0, ["entities.item"])
    weights = run.trainer.dense.weights()
    assert delta.dense
    assert all(delta.dense[name].tobytes() == weights[name].tobytes() for name in delta.dense)


def test_new_item_is_scored_by_its_columns(tmp_path, clicks):
    (tmp_path / "items").mkdir()
    write_items(tmp_path / "items" / "1.parquet", {item: item % 7 for item in ITEMS})
    clicks.send(300)
    run = begin(config_of(tmp_path, "items"))
    run.full()
    request = {"user": np.arange(4), "item": np.full(4, 1234)}
    with Processor.initialize(
        ProcessorConfig(str(tmp_path / "repository"), sessions=1, delta_guard="off")
    ) as processor:
        unknown = processor.process(PredictRequest("ctr", request)).outputs["score"]
        write_items(tmp_path / "items" / "2.parquet", {1234: 50})
        assert stream_until(run, lambda: run.status().deltas == 1) == ["1.1"]
        processor.poll()
        reply = processor.process(PredictRequest("ctr", request))
        columns = {"price": np.full(4, 50, np.float32), "kind": Strings.of(["k0"] * 4)}
        whole = processor.process(PredictRequest("ctr", request | columns)).outputs["score"]
    assert str(reply.generation) == "1.1"
    np.testing.assert_array_equal(reply.outputs["score"], whole)
    assert (reply.outputs["score"] != unknown).all()


def test_training_joins_what_is_known_when_events_arrive(tmp_path, clicks):
    run = started(tmp_path, clicks)
    seen = []
    (table,) = run._tables

    def change():
        until(lambda: seen)
        write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 9))
        until(lambda: table.mark == 2)
        clicks.send(100)

    clicks.send(100)
    threading.Thread(target=change, daemon=True).start()
    stop_when(run, lambda: run.state.position >= 500)
    for _ in run.stream(before=lambda batch: seen.append(set(batch.columns["price"].tolist()))):
        # What a delta was trained with is served with it, or was before.
        assert min(served(tmp_path).values()) >= max(seen[-1] if seen else [0])
    assert (seen[0], seen[-1]) == ({1.0}, {9.0})
    assert set(served(tmp_path).values()) == {9}


def kill_at(monkeypatch, method, when):
    """Raise, as a kill would end the process, before or after a method of the change log."""
    real = getattr(ChangeLog, method)

    def dying(self, *args, **options):
        if when == "after":
            real(self, *args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(ChangeLog, method, dying)
    return lambda: monkeypatch.setattr(ChangeLog, method, real)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("rows", [0, 100])
def test_no_change_is_lost_between_checkpoint_and_publication(tmp_path, clicks, monkeypatch, when, rows):
    run = started(tmp_path, clicks)
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 2))
    if rows:
        clicks.send(rows)
    revive = kill_at(monkeypatch, "publish", when)
    # The file has been read by the time of the first delta.
    while run._tables[0].mark < 2:
        run._tables[0].refresh()
    with pytest.raises(KeyboardInterrupt):
        list(run.stream())
    revive()
    again = begin(config_of(tmp_path))
    clicks.send(100)
    assert stream_until(again, lambda: again.state.position == 400 + rows)
    assert set(served(tmp_path).values()) == {2}
    assert again.state.position == 400 + rows


def test_repository_that_was_away_gets_the_changes(tmp_path, clicks, monkeypatch):
    run = started(tmp_path, clicks)
    real = ChangeLog.publish

    def away(self, *args):
        raise NotReady("read-only for now")

    monkeypatch.setattr(ChangeLog, "publish", away)
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 2))
    with pytest.raises(NotReady):
        list(run.stream())
    monkeypatch.setattr(ChangeLog, "publish", real)
    run = begin(config_of(tmp_path))
    assert stream_until(run, lambda: set(served(tmp_path).values()) == {2}) == []


@pytest.mark.parametrize(("again", "replay"), [(False, False), (True, False), (True, True)])
def test_rollback_of_an_entity_is_undone_by_a_replay_alone(tmp_path, clicks, again, replay):
    run = started(tmp_path, clicks)
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 2))
    stream_until(run, lambda: run.status().deltas == 1)
    ledger_of(tmp_path).rollback(0)
    run = begin(config_of(tmp_path), replay=replay) if again else run
    run._stopped.clear()
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 2) | {3: 3})
    stream_until(run, lambda: run.status().deltas == 1 + (not again))
    assert served(tmp_path) == dict.fromkeys(ITEMS, 2 if replay else 1) | {3: 3}


def test_new_version_has_the_newest_rows(tmp_path, clicks):
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 1))
    clicks.send(300)
    begin(config_of(tmp_path)).full()
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 6))
    run = begin(config_of(tmp_path), new_version=True)
    assert run.state.version == 2
    assert set(served(tmp_path).values()) == {6}
    # Only what has changed since is in its deltas.
    assert not run._open_chain().entities_changed()


def test_entity_that_no_run_has_followed_is_made_equal(tmp_path, clicks):
    run = started(tmp_path, clicks)
    publisher = Publisher(tmp_path / "repository", "ctr")
    publisher.publish(entities={"item": ([500], {"price": [3.0], "kind": ["k3"]})}, removed={"entities.item": [4]})
    assert served(tmp_path) != dict.fromkeys(ITEMS, 1)
    for file in (tmp_path / "repository" / ".checkpoints" / "ctr" / "tables").rglob("*.safetensors"):
        file.unlink()
    run = begin(config_of(tmp_path))
    assert stream_until(run, lambda: run.status().deltas == 1) == ["1.2"]
    assert served(tmp_path) == dict.fromkeys(ITEMS, 1)


def test_row_that_does_not_fit_is_skipped_alone(tmp_path, clicks):
    run = started(tmp_path, clicks)
    notes = run._report
    prices = dict.fromkeys(ITEMS, 2)
    real = entity_deltas.make_records

    def picky(manifest, entity, columns, rows):
        if 7 in columns["price"]:
            raise BadInput("entity 'item': 'price': expected another number")
        return real(manifest, entity, columns, rows)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(entity_deltas, "make_records", picky)
        write_items(tmp_path / "items.parquet", prices | {5: 7})
        stream_until(run, lambda: run.status().deltas == 1)
    assert served(tmp_path) == prices | {5: 1}
    line = "entities.item: 1 rows were skipped; the last: entity 'item': 'price': expected another number"
    assert notes.notes.count(line) == 1


def test_entity_of_other_columns_than_the_version_waits_for_the_next_one(tmp_path, clicks):
    run = started(tmp_path, clicks)
    (table,) = run._tables
    table.fields = table.fields[:1]
    lineage = run._open_chain()
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 2))
    until(lambda: table.refresh() or table.trouble or table.mark == 2)
    assert not lineage.entities_changed()
    assert any("are published from the next full version on" in line for line in run._report.notes)


def test_user_table_is_read_again_when_it_changes(tmp_path, clicks):
    write_items(tmp_path / "items.parquet", dict.fromkeys(ITEMS, 1))

    def write_people(age):
        (tmp_path / ".people").write_text("user,age\n" + "".join(f"{user},{age}.5\n" for user in range(40)))
        (tmp_path / ".people").rename(tmp_path / "people.csv")

    write_people(20)
    clicks.send(300)
    run = begin(config_of(tmp_path, user_table=True))
    run.full()
    write_people(30)
    people = next(table for table in run._tables if table.section == "user_table.people")
    mark = people.mark
    seen = []

    def go_on():
        until(lambda: people.mark > mark)
        clicks.send(100)

    threading.Thread(target=go_on, daemon=True).start()
    stop_when(run, lambda: run.state.position >= 400)
    list(run.stream(before=lambda batch: seen.append(set(batch.columns["age"].tolist()))))
    assert seen == [{30.5}]
    # A table of users is no part of the version.
    assert not run._open_chain().entities_changed()
    (tmp_path / "people.csv").unlink()
    run._stopped.clear()
    stream_until(run, lambda: run.status().stale_tables == 1)
    assert people.news()[0].startswith("user_table.people.path: ")
