"""Runs that write the histories they learn to a redis-server: before each delta, and again to one that lost them."""

import json
import threading
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.streams import history_writer
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.features.input_lookup import parse_stores
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import Erasures
from freshet_serving.processor.repository.log.change_log import ChangeLog
from tests.models.training.event_files import Events, stream_to
from tests.models.training.streams import Notes
from tests.models.training.test_loop_follow_histories import config_of
from tests.processor.extensions.remote_rows.fakes import needs_redis
from tests.support.waiting import until

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick"), needs_redis]


@pytest.fixture
def events(tmp_path):
    return Events(tmp_path / "events")


def begin(tmp_path, server, follow=True):
    config = config_of(tmp_path, follow, sequence={"store": "main"})
    stores = {one.name: one for one in parse_stores({"main": f"redis://127.0.0.1:{server.port}"})}
    return TrainingRun(replace(config, online_stores=stores), reporter=Notes())


def started(tmp_path, events, server):
    """A run that has published a version of the first of 600 rows."""
    events.send(600)
    run = begin(tmp_path, server)
    run.full()
    return run


def learned(events, rows):
    """The newest six events of each user in the first rows of the files."""
    found = {}
    tables = [pq.read_table(path).to_pylist() for path in sorted(events.folder.glob("*.parquet"))]
    for row in [row for table in tables for row in table][:rows]:
        items, kinds = found.setdefault(f"followed:h:{row['user']}".encode(), ([], []))
        items.append(row["item"])
        kinds.append(row["kind"])
    return {key: {"item": items[-6:], "kind": kinds[-6:]} for key, (items, kinds) in found.items()}


def served(server):
    with server.client() as client:
        return {
            key: {field.decode(): json.loads(text) for field, text in client.hgetall(key).items()}
            for key in client.scan_iter()
        }


def test_histories_are_in_the_store_before_the_delta_that_learned_them(tmp_path, events, server, monkeypatch):
    events.send(400)
    run = begin(tmp_path, server)
    assert run.full() == Generation(1, 0)
    assert served(server) == learned(events, 400)
    published, publish = [], ChangeLog.publish

    def checked(log, delta):
        assert served(server) == learned(events, run.state.position)
        published.append(run.state.position)
        return publish(log, delta)

    monkeypatch.setattr(ChangeLog, "publish", checked)
    events.send(500)
    assert stream_to(run, 900) == ["1.1", "1.2", "1.3"]
    assert published == [600, 800, 900]
    # Nobody but the command, the environment and the file says where the store is.
    kept = [path.read_bytes() for path in (tmp_path / "repository").rglob("*") if path.is_file()]
    assert not any(str(server.port).encode() in content for content in kept)


def test_a_request_of_a_user_id_alone_reads_the_learned_history(tmp_path, events, server):
    run = started(tmp_path, events, server)
    stream_to(run, 600)
    store = {"name": "main", "url": f"redis://127.0.0.1:{server.port}"}
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), online_stores=[store])) as processor:

        def alone(inputs):
            """The scores, once the store has answered in time: the machine may be busy."""
            request = PredictRequest("followed", inputs)
            reply = processor.process(request)
            return None if request.filled.defaulted else [reply.outputs["score"]]

        for key, lists in learned(events, 600).items():
            asked = {"user": np.array([int(key.rpartition(b":")[2])]), "item": np.arange(5)}
            sent = asked | {f"h.{name}": Ragged.of([values]) for name, values in lists.items()}
            (scores,) = until(lambda asked=asked: alone(dict(asked)))
            np.testing.assert_array_equal(scores, processor.process(PredictRequest("followed", sent)).outputs["score"])


def test_a_store_that_is_away_holds_the_delta_back_and_then_gets_all(tmp_path, events, server, monkeypatch):
    run = started(tmp_path, events, server)
    server.kill()
    steps = iter(run.stream())
    wait = run._histories._wait

    def waited(error):
        assert run.status().store_trouble == "online store main cannot be reached"
        assert run.state.step == 0
        wait(error)
        server.start()

    monkeypatch.setattr(run._histories, "_wait", waited)
    assert next(steps) == Generation(1, 1)
    assert served(server) == learned(events, 600)
    assert run.status().store_trouble == ""
    assert any("online store main cannot be reached; waiting for it" in line for line in run._report.notes)
    run.stop()
    assert list(steps) == []


def test_a_store_that_lost_all_between_deltas_gets_all_while_nothing_arrives(tmp_path, events, server, monkeypatch):
    monkeypatch.setattr(history_writer, "CHECK_S", 0.0)
    run = started(tmp_path, events, server)
    steps = iter(run.stream())
    assert next(steps) == Generation(1, 1)
    server.kill()
    server.start()
    assert served(server) == {}

    threading.Thread(target=lambda: (until(lambda: served(server)), run.stop()), daemon=True).start()
    assert list(steps) == []
    assert served(server) == learned(events, 600)


@pytest.mark.long
def test_a_run_that_resumes_with_another_store_fills_it_first(tmp_path, events, server, monkeypatch):
    run = started(tmp_path, events, server)
    stream_to(run, 600)
    first = served(server)
    with server.client() as client:
        client.hset("followed:h:0", "item", "[1]")
    again = begin(tmp_path, server)
    # The same store is believed to have them.
    assert served(server)[b"followed:h:0"]["item"] == [1]
    again.stop()
    server.kill()
    server.start()
    begin(tmp_path, server)
    assert served(server) == first
    server.kill()
    monkeypatch.setattr(history_writer.Outages, "wait", lambda self, error: (_ for _ in ()).throw(error))
    with pytest.raises(NotReady, match="online store main cannot be reached"):
        begin(tmp_path, server)


def test_a_followed_run_needs_to_know_where_the_store_is(tmp_path, events):
    events.send(400)
    with pytest.raises(BadInput, match=r"sequences\.h\.store: expected the address of 'main'"):
        TrainingRun(config_of(tmp_path, sequence={"store": "main"}), reporter=Notes())


@pytest.mark.long
def test_a_run_with_an_end_writes_where_it_knows_the_store(tmp_path, events, server):
    events.send(600)
    without = TrainingRun(config_of(tmp_path, False, "quiet", {"store": "main"}), reporter=Notes())
    without.full()
    assert served(server) == {}
    run = begin(tmp_path, server, follow=False)
    run.full()
    assert [str(generation) for generation in run.stream()] == ["1.1"]
    assert served(server) == learned(events, 600)


def test_an_erased_user_leaves_no_key_in_checkpoints_memory_and_store(tmp_path, server):
    class NamedEvents(Events):
        def rows(self, rows):
            events = super().rows(rows)
            return events | {"user": [f"person-{user}@shop" for user in events["user"]]}

    events = NamedEvents(tmp_path / "events")
    events.send(1000)
    config = config_of(tmp_path, sequence={"store": "main"}, features={"user": {"kind": "string", "dim": 4}})
    stores = {one.name: one for one in parse_stores({"main": f"redis://127.0.0.1:{server.port}"})}
    run = TrainingRun(replace(config, online_stores=stores), reporter=Notes())
    run.full()
    stream_to(run, 1000)
    key, other = b"person-7@shop", b"person-8@shop"
    checkpoints = tmp_path / "repository" / ".checkpoints"

    def kept(key):
        """How many files of the trainer have a key, how many checkpoints it can go back to, and if others have it."""
        files = [path for path in checkpoints.rglob("*") if path.is_file()]
        in_memory = key in run.source._furthest["h"]._names._data.tobytes()
        return sum(key in path.read_bytes() for path in files), in_memory, f"followed:h:{key.decode()}".encode()

    states = len(run._checkpoints.states())
    files, in_memory, stored = kept(key)
    assert files > 2
    assert in_memory
    assert stored in served(server)
    erasures = Erasures.of_model(tmp_path / "repository", "followed")
    erasures.ask(key.decode())
    run._checkpoints.erase_asked(run.trainer, run.state, lambda: [1])
    assert erasures.asked() == {}
    assert kept(key)[:2] == (0, False)
    assert stored not in served(server)
    # All others are there, and what the trainer can go back to is whole.
    assert kept(other)[0] >= files
    assert f"followed:h:{other.decode()}".encode() in served(server)
    assert len(run._checkpoints.states()) == states + 1
    for number, state in run._checkpoints.states():
        assert run._checkpoints.restore(run.trainer, number).state.position == state.position
        (whole, *_) = run._checkpoints.saved_histories(state.position)["h"]
        again = run.source._no_events("h")
        again.restore(run._checkpoints.saved_histories(state.position)["h"])
        assert len(again) == 24
        assert "names" in whole
