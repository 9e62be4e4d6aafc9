"""A run with histories in a store, a followed entity and users' table: kills, full disks, rollbacks, new versions.

Whatever happens, the run that goes on learns what an undisturbed one learns, the store has what users did in the rows
that were learned, and the newest generation has the items as they are.
"""

import itertools
import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving import Publisher
from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.streams import history_writer
from freshet_serving.models.streams.history_writer import HistoryWriter
from freshet_serving.models.training.checkpoint import Checkpoints
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.extensions.online_features.list_writer import ListWriter
from freshet_serving.processor.features.input_lookup import parse_stores
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.serving.commands.error_lines import system_line
from tests.models.training.event_files import Events, put, stream_to
from tests.models.training.streams import Notes, differing, snapshot
from tests.processor.extensions.online_features.stores import MemoryStore, MemoryWriter
from tests.support.failing_calls import FailingCalls

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

FULL, DELTA, MOST = 300, 100, 4
STORES = parse_stores({"main": "redis://127.0.0.1:1"})


class Shop:
    """A folder with a log that grows, a file of items and one of users, a store, and runs over them."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.events = folder, Events(folder / "events")
        self.store = MemoryWriter(MemoryStore())
        self.price(1)
        put(folder / "users.parquet", {"user": list(range(25)), "city": [n % 4 for n in range(25)]})
        monkeypatch.setattr(history_writer, "list_writer", lambda _, *args: ListWriter("main", self.store, *args))

    def price(self, price):
        items = list(range(30))
        put(self.folder / "items.parquet", {"item": items, "price": [float(price + n % 3) for n in items]})

    def begin(self, **options):
        config = parse_config({
            "model": {"name": "shop", "arch": "din", "hidden": [8]},
            "data": {"path": str(self.folder / "events"), "label": "clicked", "time": "ts", "follow": True},
            "features": {
                "user": {"kind": "id", "dim": 4, "side": "user"},
                "item": {"kind": "id", "dim": 4, "side": "item"},
                "city": {"kind": "id", "dim": 4, "side": "user"},
                "price": {"kind": "float", "side": "item", "transform": "none"},
            },
            "sequences": {"h": {
                "columns": {"item": "item", "kind": "kind"}, "tables": {"item": "item"}, "from_events": "user",
                "max_length": MOST, "dim": 4, "store": "main",
            }},
            "entities": {"item": {
                "key": "item", "path": str(self.folder / "items.parquet"), "columns": ["price"],
            }},
            "user_table": {"people": {"key": "user", "path": str(self.folder / "users.parquet")}},
            "train": {"batch_rows": 50, "learning_rate": 0.1, "shuffle_rows": 0, "seed": 1},
            "guard": {"enabled": False},
            "publish": {"repository": str(self.folder / "repository"), "full_rows": FULL, "delta_rows": DELTA},
        })  # fmt: skip
        config = replace(config, online_stores={one.name: one for one in STORES})
        return TrainingRun(config, reporter=Notes(), start_options=StartOptions(**options))

    def story(self, run=None):
        """Publish a version, and two deltas; before the second all prices change. Goes on where it ended."""
        run = run or self.begin()
        run.full()
        for price, rows in ((1, 100), (2, 200)):
            if self.events.sent < FULL + rows:
                self.price(price)
                self.events.send(100)
            while run._tables[0].mark < price:
                run._tables[0].refresh()
            stream_to(run, FULL + rows)
        return run

    def log(self, version=1):
        return ChangeLog.of(Repository(self.folder / "repository").version("shop", version), whole=True)

    def stored(self):
        """Each user's items in the store."""
        return {int(key.rpartition(b":")[2]): json.loads(v[b"item"]) for key, v in self.store.store.hashes.items()}

    def learned(self, rows=None):
        """Each user's newest items in the first rows that were sent."""
        tables = [pq.read_table(path).to_pylist() for path in sorted(self.events.folder.glob("*.parquet"))]
        items = {}
        for row in list(itertools.chain(*tables))[:rows]:
            items.setdefault(row["user"], []).append(row["item"])
        return {user: newest[-MOST:] for user, newest in items.items()}

    def records(self, run):
        """The bytes of items' records in the newest generation."""
        contents = run._open_chain()._served()
        (entity,) = contents.base.manifest.entities
        keys, rows = contents.table(entity.table)
        return keys.tolist(), rows.tobytes()


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.setattr(history_writer, "MOST_S", 0.01)

    def made(name):
        (tmp_path / name).mkdir()
        shop = Shop(tmp_path / name, monkeypatch)
        shop.events.send(FULL)
        return shop

    return made


_UNDISTURBED = []


@pytest.fixture
def undisturbed(shop):
    """Return the end of the story: weights, the store, records; made once."""
    if not _UNDISTURBED:
        calm = shop("calm")
        run = calm.story()
        assert calm.stored() == calm.learned()
        _UNDISTURBED[:] = outcome(calm, run)
    return _UNDISTURBED


def outcome(shop, run):
    return snapshot(run.trainer), shop.stored(), shop.records(run)


def check(shop, run, undisturbed):
    weights, *others = outcome(shop, run)
    assert differing(weights, undisturbed[0]) == []
    assert others == undisturbed[1:]


STEPS = {
    "histories": (HistoryWriter, "write"),
    "checkpoint": (Checkpoints, "save_full"),
    "increment": (Checkpoints, "save_changes"),
    "delta": (ChangeLog, "publish"),
}


@pytest.mark.long
def test_run_killed_at_any_step_goes_on_as_if_nothing_had_been(shop, undisturbed, monkeypatch):
    for number, (step, when) in enumerate(itertools.product(STEPS, ("before", "after"))):
        owner, name = STEPS[step]
        real = getattr(owner, name)

        def dying(*args, real=real, when=when, **options):
            if when == "after":
                real(*args, **options)
            raise KeyboardInterrupt

        disturbed = shop(f"killed-{number}")
        with monkeypatch.context() as patches:
            patches.setattr(owner, name, dying)
            with pytest.raises(KeyboardInterrupt):
                disturbed.story()
        if number % 2:
            # The store comes up empty.
            disturbed.store.restart()
        check(disturbed, disturbed.story(), undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("point", range(10))
def test_run_on_a_full_disk_ends_in_one_line_and_goes_on_later(shop, undisturbed, tmp_path, monkeypatch, point):
    disturbed = shop("full")
    calls = FailingCalls(tmp_path / "full" / "repository", monkeypatch)
    # A run that nothing disturbs makes about 160 calls.
    calls.begin(1 + 15 * point, lasting=True)
    run = None
    try:
        run = disturbed.story()
    except Exception as error:
        line = str(error) if isinstance(error, FreshetError) else system_line(error)
        assert line
        assert "\n" not in line
        run = None
    calls.at = None
    check(disturbed, run or disturbed.story(), undisturbed)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(("again", "replay"), [(False, False), (True, True)])
def test_rollback_takes_back_weights_and_no_history(shop, undisturbed, again, replay, lost):
    disturbed = shop("back")
    run = disturbed.story()
    disturbed.log().rollback(1)
    if lost:
        disturbed.store.restart()
    if again:
        run = disturbed.begin(replay=replay)
    if replay:
        assert stream_to(run, FULL + 200)[-1] == "1.3"
        check(disturbed, run, undisturbed)
        return
    disturbed.events.send(100)
    assert stream_to(run, FULL + 300)[-1] == "1.3"
    assert f"skipped {DELTA} rows" in "".join(run._report.notes)
    assert disturbed.stored() == disturbed.learned()


@pytest.mark.parametrize("again", [False, True])
def test_rows_of_a_second_publisher_stay_until_they_change(shop, again):
    disturbed = shop("two")
    run = disturbed.story()
    keys, before = disturbed.records(run)
    publisher = Publisher(disturbed.folder / "repository", "shop")
    user = publisher.manifest.features[0]
    publisher.publish({user.table: ([1000], np.ones((1, 4), np.float32))}, entities={"item": ([5], {"price": [99.0]})})
    if again:
        run = disturbed.begin()
    disturbed.events.send(100)
    assert stream_to(run, FULL + 300) == ["1.4"]
    assert 1000 in run.trainer.tables[user.table].export().keys
    assert disturbed.stored() == disturbed.learned()
    other = disturbed.records(run)[1]
    width = len(before) // len(keys)
    rows = [other[n * width : (n + 1) * width] == before[n * width : (n + 1) * width] for n in range(len(keys))]
    assert [key for key, same in zip(keys, rows) if not same] == [5]
    disturbed.price(4)
    while run._tables[0].mark < 3:
        run._tables[0].refresh()
    disturbed.events.send(100)
    assert stream_to(run, FULL + 400) == ["1.5"]
    # The record is the file's again: to publish it changes nothing.
    publisher.publish(entities={"item": ([5], {"price": [4.0 + 5 % 3]})})
    last = disturbed.records(run)
    assert Publisher(disturbed.folder / "repository", "shop").served().table("entities.item")[1].tobytes() == last[1]


def test_new_version_keeps_histories_and_has_the_newest_items(shop):
    disturbed = shop("new")
    disturbed.story()
    disturbed.price(3)
    run = disturbed.begin(new_version=True)
    assert run.state.version == 2
    assert disturbed.stored() == disturbed.learned()
    disturbed.events.send(100)
    assert stream_to(run, FULL + 300) == ["2.1"]
    assert disturbed.stored() == disturbed.learned()


@pytest.mark.long
@pytest.mark.parametrize("replay", [False, True])
def test_run_after_a_withdrawn_version_has_the_histories_of_its_rows(shop, replay):
    disturbed = shop("withdrawn")
    disturbed.story()
    run = disturbed.begin(new_version=True)
    disturbed.events.send(100)
    assert stream_to(run, FULL + 300) == ["2.1"]
    repository = Repository(disturbed.folder / "repository")
    repository.version_records("shop").add(2, repository.root_of("shop", 2), "withdraw", "bad night", "rollback")
    run = disturbed.begin(replay=replay, new_version=True)
    assert (run.state.version, run.state.position) == (3, FULL + (200 if replay else 300))
    if not replay:
        assert disturbed.stored() == disturbed.learned()
    disturbed.events.send(100)
    assert stream_to(run, FULL + 400)[-1] == ("3.2" if replay else "3.1")
    assert disturbed.stored() == disturbed.learned()
