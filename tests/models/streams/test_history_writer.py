"""Histories in an online store are those that the next rows of the log see, whatever fails on the way."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.compiler.progress import SilentReporter
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data import user_events
from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.data.source import Batch, Field, Schema
from freshet_serving.models.streams import history_writer
from freshet_serving.models.streams.history_writer import HistoryWriter
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.extensions.online_features.feature_lookup import FeatureLookup
from freshet_serving.processor.extensions.online_features.list_writer import ListWriter
from tests.models.data.sources import plain
from tests.processor.extensions.online_features.stores import MemoryStore, MemoryWriter, opened

COLUMNS = ("h.item", "h.kind", "h.watched", "h.time")
FEAST = {
    "key": "user",
    "project": "shop",
    "features": ["history:item", "history:kind", "history:watched", "history:time"],
    "types": {
        "history:item": "int64_list",
        "history:kind": "string_list",
        "history:watched": "double_list",
        "history:time": "unix_timestamp_list",
    },
    "names": {f"history:{name.partition('.')[2]}": name for name in COLUMNS},
    "timeout_ms": 50,
}


class Log:
    """A shop's events in memory: (user, time, clicked) by row."""

    def __init__(self, rows, text):
        self.rows, self._text = rows, text
        fields = Field("user", "string" if text else "id"), Field("item", "id"), Field("kind", "string")
        self.schema = Schema((*fields, Field("seconds", "float")), "clicked", "ts")

    def users(self, numbers):
        return Strings.of([f"ü{n}" for n in numbers]) if self._text else np.array(numbers, np.int64) - 1

    def count_rows(self):
        return len(self.rows)

    def batches(self, rows, start=0):
        for first in range(start, len(self.rows), rows):
            users, times, clicked = zip(*self.rows[first : first + rows])
            n = np.arange(first, first + len(users))
            columns = {
                "user": self.users(users),
                "item": n * 3 - 2**60,
                "kind": Strings.of([f"k{k % 3}" for k in n]),
                "seconds": np.where(n % 4, n / 7, np.nan).astype(np.float32),
            }
            yield Batch(columns, np.array(clicked, np.float32), np.array(times, np.float64), first)

    arriving = batches


def config_of(text=False, online=None, **section):
    return parse_config(
        {
            "model": {"name": "shop", "arch": "hstu"},
            "data": {"path": "log.parquet", "format": "parquet", "label": "clicked", "time": "ts"},
            "features": {
                "user": {"kind": "string" if text else "id", "side": "user"},
                "item": {"kind": "id", "side": "item"},
                "kind": {"kind": "string"},
            },
            "sequences": {
                "h": {
                    "columns": {"item": "item", "kind": "kind"},
                    "floats": {"watched": "seconds"},
                    "tables": {"item": "item"},
                    "from_events": "user",
                    "where": "clicked",
                    "time": "ts",
                    "store": "main",
                    "max_length": 3,
                }
                | section
            },
        }
        | ({"online_features": {"user": online}} if online else {})
    )


class Run:
    """What a run has: its rows, a state, a store, and the writer between them."""

    def __init__(self, rows, text=False, online=None, **section):
        self.config, self.log = config_of(text, online, **section), Log(rows, text)
        self.manifest = draft(self.config, {})
        self.source = SequenceSource(self.log, self.config.features)
        self.store = MemoryStore()
        self.target, self.waits = MemoryWriter(self.store), []
        self.state = SimpleNamespace(position=0, histories={})
        lists = ListWriter("main", self.target, self.manifest, COLUMNS)
        self.writer = HistoryWriter(
            self.config.sequences, {"h": lists}, self.source, SilentReporter(), lambda error: self.waits.append(error)
        )

    def learn(self, stop, ahead=0, batch_rows=4):
        """Read until a row, and perhaps further; learn until it."""
        for batch in self.source.arriving(batch_rows, self.state.position) if stop > self.state.position else ():
            if batch.end >= stop + ahead:
                break
        self.state.position = stop

    def seen(self, users, later_s):
        """What the next rows of users see, by column and user."""
        rows = [*self.log.rows[: self.state.position], *((user, later_s, 0) for user in users)]
        source = SequenceSource(Log(rows, self.log._text), self.config.features)
        (batch,) = source.batches(len(users), self.state.position)
        return {name: plain(batch.columns[name]) for name in COLUMNS}

    def served(self, users):
        """What a server fills for a request of each user's id."""
        found = {name: [] for name in COLUMNS}
        for user in users:
            lookup = FeatureLookup(self.manifest, opened(self.store), FakeClock(0.0, 10.0))
            inputs = lookup.fill({"user": self.log.users([user])}).inputs
            for name in COLUMNS:
                found[name] += plain(inputs[name])
        return found


@st.composite
def logs(draw):
    drawn = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=30))
    times = np.cumsum([step for _, step, _ in drawn])
    return [(user, float(time), int(click > 0)) for (user, _, click), time in zip(drawn, times.tolist())]


@settings(deadline=None, max_examples=40)
@given(
    logs(),
    st.booleans(),
    st.sampled_from([None, FEAST]),
    st.integers(1, 4),
    st.sampled_from(["newest", "oldest"]),
    st.data(),
)
def test_served_histories_are_those_that_the_next_rows_see(rows, text, online, most, keep, data):
    online = online if online is None or not text else online | {"key_types": {"user": "string"}}
    run = Run(rows, text, online, max_length=most, keep=keep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_writer, "CHUNK_USERS", data.draw(st.integers(1, 3)))
        while run.state.position < len(rows):
            run.learn(min(len(rows), run.state.position + data.draw(st.integers(1, 9))), data.draw(st.integers(0, 9)))
            if data.draw(st.integers(0, 4)) == 0:
                run.target.restart()
            run.target.fails = fails = data.draw(st.integers(0, 3))
            run.target.dies = data.draw(st.integers(-1, 4))
            waits = len(run.waits)
            run.writer.write(run.state)
            assert len(run.waits) - waits <= fails + 1
            run.target.dies = -1
            assert run.writer.trouble == ""
            assert run.served(range(5)) == run.seen(range(5), 100.0)


def test_only_users_with_new_events_are_written_again():
    run = Run([(0, 1.0, 1), (1, 2.0, 1), (0, 3.0, 1), (2, 4.0, 0)])
    run.learn(2, batch_rows=2)
    run.writer.write(run.state)
    assert {command[1] for command in run.target.commands} == {b"shop:h:-1", b"shop:h:0"}
    run.target.commands.clear()
    run.learn(4)
    run.writer.write(run.state)
    assert {command[1] for command in run.target.commands} == {b"shop:h:-1"}
    run.target.commands.clear()
    run.writer.write(run.state)
    assert run.target.commands == []


def test_a_store_that_lost_all_gets_all_with_the_next_check(monkeypatch):
    monkeypatch.setattr(history_writer, "CHECK_S", 0.0)
    run = Run([(0, 1.0, 1), (1, 2.0, 1)])
    run.learn(2)
    run.writer.write(run.state)
    before = dict(run.store.hashes)
    run.target.restart()
    run.target.down = True
    run.writer.check(run.state)
    assert (run.store.hashes, run.writer.trouble) == ({}, "online store main cannot be reached")
    run.target.down = False
    run.writer.check(run.state)
    assert (run.store.hashes, run.writer.trouble) == (before, "")


@pytest.mark.parametrize("kept_rows", [0, 1000])
@pytest.mark.parametrize("lost", [False, True])
def test_a_store_keeps_what_users_did_when_weights_go_back(monkeypatch, lost, kept_rows):
    monkeypatch.setattr(user_events, "KEPT_ROWS", kept_rows)
    rows = [(n % 5, float(n), 1) for n in range(20)]
    run = Run(rows)
    run.learn(20)
    run.writer.write(run.state)
    newest = run.served(range(5))
    assert newest == run.seen(range(5), 100.0)
    # Rolled back: rows from 8 on are learned again.
    run.state.position = 8
    if lost:
        run.target.restart()
    run.writer.write(run.state)
    if kept_rows:
        assert run.served(range(5)) == newest
    for stop in (12, 16, 20):
        run.learn(stop)
        run.writer.write(run.state)
        served, least = (times["h.time"] for times in (run.served(range(5)), run.seen(range(5), 100.0)))
        assert all(there[-1] >= own[-1] for there, own in zip(served, least))
    assert run.served(range(5)) == newest


def test_a_run_that_resumes_writes_no_more_than_it_learns_again():
    run = Run([(0, 1.0, 1), (1, 2.0, 1), (0, 3.0, 1)])
    run.learn(2)
    run.writer.write(run.state)
    again = Run(run.log.rows)
    again.state, again.target.store = SimpleNamespace(position=2, histories=dict(run.state.histories)), run.store
    again.writer.write(again.state)
    assert {command[1] for command in again.target.commands} <= {b"shop:h:-1", b"shop:h:0"}
    again.learn(3)
    again.writer.write(again.state)
    again.store = run.store
    assert again.served(range(3)) == again.seen(range(3), 100.0)


def test_events_beyond_the_time_limit_are_not_written_and_keys_expire():
    run = Run([(0, 0.0, 1), (0, 8.0, 1), (1, 10.0, 1), (2, -5.0, 1)], ttl_s=10.0)
    run.learn(4)
    run.writer.write(run.state)
    served = run.served(range(3))
    assert [len(times) for times in served["h.time"]] == [1, 1, 0]
    assert run.target.left_ms == {b"shop:h:-1": 8000, b"shop:h:0": 10_000}


def test_a_run_that_does_not_wait_ends_with_the_reason():
    run = Run([(0, 1.0, 1)])

    def give_up(error):
        raise error

    run.writer._wait = give_up
    run.target.down = True
    run.learn(1)
    with pytest.raises(NotReady, match="cannot be reached"):
        run.writer.write(run.state)
    assert run.state.histories == {}
    assert run.writer.trouble


@pytest.mark.parametrize("text", [False, True])
def test_histories_of_erased_users_are_gone(text):
    run = Run([(0, 1.0, 1), (1, 2.0, 1)], text)
    run.learn(2)
    run.writer.write(run.state)
    (events,) = run.source.events_before(2).values()
    users = {key: user for user, key in zip(events.users().tolist(), plain(events.keys_of(events.users())))}
    gone, stays = run.log.users([0, 1]).tolist()
    assert run.writer.erase(np.array([users[gone], 12345]), run.state) == 1
    run.writer.write(run.state)
    assert len(run.store.hashes) == 1
    assert run.served([0, 1])["h.item"][0] == []
    assert stays in users


def test_a_followed_run_needs_the_address_of_its_store():
    config, log = config_of(), Log([(0, 1.0, 1)], False)
    source, manifest = SequenceSource(log, config.features), draft(config, {})
    quiet = HistoryWriter.of(config, manifest, source, SilentReporter(), threading.Event())
    quiet.write(SimpleNamespace(position=1, histories={}))
    followed = replace(config, data=replace(config.data, follow=True))
    with pytest.raises(BadInput, match=r"sequences\.h\.store: expected the address of 'main'.*--online-store main="):
        HistoryWriter.of(followed, manifest, source, SilentReporter(), threading.Event())
