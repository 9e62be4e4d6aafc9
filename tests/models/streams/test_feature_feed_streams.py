"""Features from a Redis stream and from a topic of Kafka are published as those of a folder are."""

import json
from dataclasses import replace

import pytest

from freshet_serving import Publisher
from freshet_serving.models.streams.feature_feed import POSITION, FeatureFeed
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.generation import Generation
from tests.models.streams.test_feature_feed import tags_served
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis
from tests.support import entities, packages
from tests.support.waiting import until

ENTITY = replace(entities.ENTITY, inputs=["tags"], text_nbytes=64)


class RedisRows:
    """A stream of a real redis-server."""

    def __init__(self):
        pytest.importorskip("redis", reason="the redis extra is not installed")
        self.server = RedisServer().start()
        self.url = self.server.url.removesuffix("/0") + "/items"

    def send(self, *messages):
        with self.server.client() as client:
            for message in messages:
                client.xadd("items", {"json": message})

    def close(self):
        self.server.close()


class KafkaRows:
    """A topic of one partition in the mock cluster that librdkafka brings, so that rows keep their order."""

    def __init__(self):
        ck = pytest.importorskip("confluent_kafka", reason="the kafka extra is not installed")
        self.producer = ck.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0})
        brokers = self.producer.list_topics(timeout=10).brokers.values()
        self.url = "kafka://" + ",".join(f"{broker.host}:{broker.port}" for broker in brokers) + "/items"

    def send(self, *messages):
        for message in messages:
            self.producer.produce("items", message.encode(), partition=0)
        assert self.producer.flush(10) == 0

    def close(self):
        del self.producer


@pytest.fixture(params=[pytest.param(RedisRows, marks=needs_redis), KafkaRows], ids=["redis", "kafka"])
def stream(request):
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path):
    entities.write_package(tmp_path / "repository", entity=ENTITY)
    return tmp_path


def row(user, tags):
    return json.dumps({"user": user, "tags": tags})


def feed_of(folder, stream, notes, **options):
    return FeatureFeed(
        str(folder / "repository"), "small", "profile", stream.url, folder / "state", note=notes.append, **options
    )


def run(folder, stream, **options):
    """Publish what is there; returns the feed."""
    feed = feed_of(folder, stream, [], **options)
    feed.run()
    return feed


def test_newest_row_is_served_and_the_position_is_kept(folder, stream):
    stream.send(row(1, ["a"]), row(2, ["b"]), row(1, ["c"]))
    assert run(folder, stream).published == 2
    assert tags_served(folder, {1: ["c"], 2: ["b"]})
    assert run(folder, stream).published == 0
    stream.send(row(2, ["a", "b"]), row(99, []))
    assert run(folder, stream).published == 2
    assert tags_served(folder, {1: ["c"], 2: ["a", "b"], 99: []})


def test_rows_after_a_crash_are_published_again_in_their_order(folder, stream):
    stream.send(row(1, ["a"]), row(1, ["b"]))
    feed = run(folder, stream, rows=1)
    assert feed.published == 2
    position = folder / "state" / POSITION
    position.write_text(json.dumps(json.loads(position.read_text()) | {"row": 0}))
    run(folder, stream, rows=1)
    assert tags_served(folder, {1: ["b"]})


def test_messages_that_are_no_rows_hold_back_no_other(folder, stream):
    long = ["tag " + "x" * 40, "tag " + "y" * 40]
    stream.send("{", row("x", ["a"]), row(1, ["a"]), json.dumps({"tags": ["b"]}), row(3, long), row(2, ["b"]))
    notes = []
    feed = feed_of(folder, stream, notes)
    feed.run()
    assert any("3 invalid rows were skipped" in note for note in notes)
    # Strings that a record has no room to keep are served all the same.
    assert feed.published == 3
    assert tags_served(folder, {1: ["a"], 2: ["b"], 3: long})


def test_trainer_and_rollback_beside_the_feed(folder, stream):
    trainer = Publisher(folder / "repository", "small")
    stream.send(row(1, ["a"]), row(2, ["a"]))
    run(folder, stream)
    trainer.publish(rows={"user": ([0], packages.rows_of([0], 1))})
    stream.send(row(1, ["b"]))
    assert str(run(folder, stream)._publisher.generation) == "1.3"
    with Processor.initialize(ProcessorConfig(repository=str(folder / "repository"), delta_guard="off")) as processor:
        processor.rollback("small", Generation(1, 2))
    stream.send(row(2, ["c"]))
    run(folder, stream)
    assert tags_served(folder, {1: ["a"], 2: ["c"]})


def test_new_version_gets_the_stream_from_its_beginning(folder, stream):
    stream.send(row(1, ["a"]))
    run(folder, stream)
    entities.write_package(folder / "repository", version=2, entity=ENTITY)
    stream.send(row(2, ["b"]))
    feed = run(folder, stream)
    assert str(feed._publisher.generation).startswith("2.")
    assert tags_served(folder, {1: ["a"], 2: ["b"]})


def test_followed_stream_is_published_as_rows_arrive(folder, stream):
    feed, notes = None, []

    def note(line):
        notes.append(line)
        stream.send(row(2, ["b"])) if len(notes) == 1 else feed.stop()

    stream.send(row(1, ["a"]))
    feed = FeatureFeed(
        str(folder / "repository"),
        "small",
        "profile",
        stream.url,
        folder / "state",
        follow=True,
        every_s=0.0,
        note=note,
    )
    feed.run()
    assert len(notes) == 2
    until(lambda: tags_served(folder, {1: ["a"], 2: ["b"]}))
