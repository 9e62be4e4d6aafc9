"""Features are published as their rows arrive: the newest row of a key is served, after any crash."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving import Publisher
from freshet_serving.models.streams.feature_feed import POSITION, FeatureFeed
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Corrupt, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.sessions.request import PredictRequest
from tests.models.streams.servers import KafkaRows, RedisRows
from tests.processor.extensions.remote_rows.fakes import needs_redis
from tests.support import entities, packages

ENTITY = replace(entities.ENTITY, inputs=["tags"], text_nbytes=64)


@pytest.fixture
def folder(tmp_path):
    entities.write_package(tmp_path / "repository", entity=ENTITY)
    (tmp_path / "rows").mkdir()
    return tmp_path


def arrive(folder, name, rows):
    """A file of rows (user, tags) arrives."""
    users, tags = zip(*rows)
    columns = {"user": pa.array(users, pa.int64()), "tags": pa.array(tags, pa.list_(pa.string()))}
    pq.write_table(pa.table(columns), folder / "rows" / f"{name}.parquet")


class FolderRows:
    def __init__(self, folder):
        self.url, self._folder, self._files = str(folder / "rows"), folder, 0

    def send(self, *messages):
        """A file of the messages that are rows: a folder of Parquet files has no others."""
        self._files += 1
        rows = [json.loads(message) for message in messages if message.startswith('{"user": ')]
        arrive(self._folder, str(self._files), [(row["user"], row["tags"]) for row in rows if row["user"] != "x"])

    def close(self): ...


@pytest.fixture(
    params=[FolderRows, pytest.param(RedisRows, marks=needs_redis), KafkaRows], ids=["folder", "redis", "kafka"]
)
def stream(request, folder):
    made = request.param(folder) if request.param is FolderRows else request.param()
    yield made
    made.close()


def feed_of(folder, notes=None, url=None, **options):
    note = (lambda line: None) if notes is None else notes.append
    repository, source = str(folder / "repository"), url or str(folder / "rows")
    return FeatureFeed(repository, "small", "profile", source, folder / "state", note=note, **options)


def run(folder, **options):
    """Publish what is there; returns the lines."""
    notes = []
    feed_of(folder, notes, **options).run()
    return notes


def tags_served(folder, users):
    """Whether each user scores as if these tags were sent."""
    with Processor.initialize(ProcessorConfig(repository=str(folder / "repository"), delta_guard="off")) as processor:
        floats = np.zeros((len(users), 4), np.float32)
        sent = packages.make_inputs(list(users), [list(tags) for tags in users.values()]) | {"floats": floats}
        alone = {"user": sent["user"], "floats": floats}
        one, other = (processor.process(PredictRequest("small", inputs)) for inputs in (sent, alone))
        return np.array_equal(one.outputs["score"], other.outputs["score"])


def message(user, tags):
    return json.dumps({"user": user, "tags": tags})


def test_newest_row_of_a_key_is_served_once_whatever_else_comes(folder, stream):
    # Strings that a record has no room to keep are served all the same.
    long = ["tag " + "x" * 40, "tag " + "y" * 40]
    bad = "{", message("x", ["a"]), json.dumps({"tags": ["b"]})
    stream.send(message(1, ["a"]), bad[0], message(2, ["b"]), *bad[1:], message(3, long), message(1, ["c"]))
    notes = run(folder, url=stream.url)
    assert notes[-1] == "small 1.1: 3 rows of profile"
    skipped = sum(int(note.split()[0]) for note in notes if "invalid rows were skipped" in note)
    assert skipped == (0 if isinstance(stream, FolderRows) else 3)
    assert tags_served(folder, {1: ["c"], 2: ["b"], 3: long})
    assert run(folder, url=stream.url) == []
    stream.send(message(2, ["a", "b"]), message(99, []))
    assert run(folder, url=stream.url) == ["small 1.2: 2 rows of profile"]
    assert tags_served(folder, {1: ["c"], 2: ["a", "b"], 3: long, 99: []})


def test_rows_after_the_position_are_published_again(folder):
    arrive(folder, "a", [(1, ["a"])])
    arrive(folder, "b", [(1, ["b"])])
    assert len(run(folder, rows=1)) == 2
    (folder / "state" / POSITION).write_text('{"version": 1, "row": 1}')
    assert run(folder) == ["small 1.3: 1 rows of profile"]
    assert tags_served(folder, {1: ["b"]})


def test_trainer_publishes_to_the_same_version(folder):
    trainer = Publisher(folder / "repository", "small")
    for step in (1, 3):
        arrive(folder, f"file-{step}", [(step, ["a"])])
        assert run(folder) == [f"small 1.{step}: 1 rows of profile"]
        rows = packages.rows_of([0], step)
        # The trainer was not told of the features: they share no table.
        assert trainer.publish(rows={"user": ([0], rows)}).step == step + 1
    assert tags_served(folder, {1: ["a"], 3: ["a"]})


def test_rollback_is_not_undone(folder):
    arrive(folder, "a", [(1, ["a"]), (2, ["a"])])
    run(folder)
    arrive(folder, "b", [(1, ["b"])])
    run(folder)
    with Processor.initialize(ProcessorConfig(repository=str(folder / "repository"), delta_guard="off")) as processor:
        processor.rollback("small", Generation(1, 1))
    arrive(folder, "c", [(2, ["c"])])
    assert run(folder) == ["small 1.3: 1 rows of profile"]
    assert tags_served(folder, {1: ["a"], 2: ["c"]})


def test_no_earlier_delta_is_read_to_publish_rows(folder, monkeypatch):
    def read_delta(change_log, link):
        raise AssertionError("what a row costs would grow with the deltas that are served")

    monkeypatch.setattr(ChangeLog, "read_delta", read_delta)
    for user in (1, 2):
        arrive(folder, f"file-{user}", [(user, ["a"])])
        assert run(folder) == [f"small 1.{user}: 1 rows of profile"]


def test_new_version_gets_the_stream_from_its_beginning(folder):
    arrive(folder, "a", [(1, ["a"])])
    run(folder)
    entities.write_package(folder / "repository", version=2, entity=ENTITY)
    arrive(folder, "b", [(2, ["b"])])
    assert run(folder) == ["small 2.1: 2 rows of profile"]
    assert tags_served(folder, {1: ["a"], 2: ["b"]})


def test_row_that_does_not_fit_is_skipped_alone(folder, monkeypatch):
    arrive(folder, "a", [(1, ["a"]), (2, ["a", "b", "c"]), (3, ["b"])])
    publish = Publisher.publish

    def refusing(self, entities):
        if 2 in entities["profile"][0]:
            raise BadInput("too long")
        return publish(self, entities=entities)

    monkeypatch.setattr(Publisher, "publish", refusing)
    feed = feed_of(folder, notes := [])
    feed.run()
    assert (feed.published, feed.skipped) == (2, 1)
    assert "a row was skipped: too long" in notes
    assert tags_served(folder, {1: ["a"], 3: ["b"]})


def test_repository_that_cannot_be_written_is_tried_again(folder, monkeypatch):
    arrive(folder, "a", [(1, ["a"])])
    publish, failures = Publisher.publish, [NotReady("read-only for now")]
    monkeypatch.setattr("freshet_serving.models.streams.feature_feed.RETRY_S", 0)

    def failing(self, *args, **given):
        if failures:
            raise failures.pop()
        return publish(self, *args, **given)

    monkeypatch.setattr(Publisher, "publish", failing)
    assert run(folder) == ["cannot publish, trying again: read-only for now", "small 1.1: 1 rows of profile"]


def test_stop_publishes_what_was_read(folder):
    arrive(folder, "a", [(1, ["a"])])
    feed = feed_of(folder, follow=True, every_s=1e9)
    arriving = feed._source.arriving

    def stopping(rows, start):
        for batch in arriving(rows, start):
            if batch is not None:
                feed.stop()
            yield batch

    feed._source.arriving = stopping
    feed.run()
    assert feed.published == 1


def test_mistakes_are_refused_before_a_row_is_read(folder):
    with pytest.raises(BadInput, match="entity 'x' does not exist; the model has profile"):
        FeatureFeed(str(folder / "repository"), "small", "x", str(folder / "rows"), folder / "state")
    (folder / "state").mkdir()
    (folder / "state" / POSITION).write_text("{}")
    with pytest.raises(Corrupt, match="expected a version and a row"):
        feed_of(folder)


def test_followed_folder_whose_first_file_is_another_table_goes_on(folder):
    pq.write_table(pa.table({"user": ["x"], "tags": [1.5]}), folder / "rows" / "a.parquet")
    notes = []
    feed = feed_of(folder, notes, follow=True, every_s=0.0)

    def note(line):
        notes.append(line)
        if "set aside" in line:
            arrive(folder, "b", [(1, ["a"])])
        elif "rows of profile" in line:
            feed.stop()

    feed._note = note
    feed.run()
    assert notes[0].startswith("1 files were set aside; the last: a.parquet")
    assert notes[1] == "small 1.1: 1 rows of profile"


def test_files_of_another_table_beside_good_ones_are_set_aside(folder):
    pq.write_table(pa.table({"user": ["x"], "tags": [1.5]}), folder / "rows" / "a.parquet")
    arrive(folder, "b", [(1, ["a"])])
    assert "small 1.1: 1 rows of profile" in run(folder)
