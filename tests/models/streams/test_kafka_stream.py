"""A topic of Kafka, against the mock cluster that librdkafka brings: no real broker has been seen."""

import json

import pytest

pytest.importorskip("confluent_kafka", reason="the kafka extra is not installed")

from freshet_serving.models.streams import kafka_stream
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.kafka_stream import KafkaStream
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.processor.errors import BadInput
from tests.models.streams.made import SCHEMA, rows_of, said
from tests.models.streams.servers import MockCluster
from tests.support.waiting import until


@pytest.fixture(scope="module")
def brokers():
    return MockCluster()


@pytest.fixture
def cluster():
    return MockCluster()


def opened(cluster, tmp_path, endless=False):
    stream = KafkaStream(cluster.url, SCHEMA)
    return FollowedSource(stream, StreamJournal(tmp_path / "stream.journal", stream.identity), SCHEMA, endless)


def messages(first, count):
    return [json.dumps(row).encode() for row in rows_of(first, count)]


def take(source, count, start=0):
    """The rows from a position on, `count` of them."""
    found = []
    arriving = source.arriving(16, start)

    def enough():
        if (batch := next(arriving)) is not None:
            found.append(batch)
        return sum(map(len, found)) >= count

    until(enough)
    return found


def test_every_message_arrives_once_and_replays_in_order(cluster, tmp_path):
    cluster.send(messages(0, 120))
    source = opened(cluster, tmp_path, endless=True)
    first = [row for batch in take(source, 120) for row in said(batch)]
    assert sorted(row["user"] for row in first) == list(range(120))
    for partition in range(4):
        users = [row["user"] for row in first if row["user"] % 4 == partition]
        assert users == sorted(users)
    source.close()
    cluster.send(messages(120, 40))
    source = opened(cluster, tmp_path, endless=True)
    again = [row for batch in take(source, 120, start=40) for row in said(batch)]
    assert again[:80] == first[40:]
    assert sorted(row["user"] for row in again[80:]) == list(range(120, 160))
    source.close()


def test_malformed_message_is_skipped_and_counted(cluster, tmp_path):
    rows = messages(0, 6)
    cluster.send([*rows[:3], b"{", b'{"user": null, "clicked": 1, "ts": 1}', *rows[3:]], partition=1)
    source = opened(cluster, tmp_path, endless=True)
    found = [row["user"] for batch in take(source, 6) for row in said(batch)]
    assert found == list(range(6))
    ingest_status = source.ingest_status()
    assert (ingest_status.rows, ingest_status.rejected) == (8, 2)
    assert "offset 4 of partition 1 of clicks" in ingest_status.why
    source.close()


def test_topic_that_lost_its_read_messages_is_refused_as_different(cluster, tmp_path):
    cluster.send(messages(0, 8))
    source = opened(cluster, tmp_path, endless=True)
    take(source, 8)
    source.close()
    anew = MockCluster()
    anew.send(messages(0, 1))
    with pytest.raises(BadInput, match=r"topic clicks: partition \d was read up to offset \d, but it ends at"):
        opened(anew, tmp_path)


def test_replay_from_a_topic_that_lost_rows_is_an_error(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_stream, "TIMEOUT_S", 0.3)
    cluster.send(messages(0, 8))
    source = opened(cluster, tmp_path, endless=True)
    take(source, 8)
    stream, segment = source._stream, source._journal.segments[0]
    stream._newest = []
    gone = type(segment)({**segment.where, "last": 50, "messages": 51}, 51)
    with pytest.raises(BadInput, match=r"offsets 0 to 50 of partition \d are needed again but are incomplete"):
        list(stream.read(gone))
    source.close()


def test_missing_broker_gives_a_one_line_error(monkeypatch):
    monkeypatch.setattr(kafka_stream, "TIMEOUT_S", 0.1)
    stream = KafkaStream("kafka://127.0.0.1:1/clicks", SCHEMA)
    with pytest.raises(BadInput, match=r"data.path: expected Kafka's topic 'clicks', got "):
        stream.begin([])
    stream.close()


@pytest.mark.parametrize(
    "url", ["kafka://host", "kafka:///topic", "kafka://user:password@host/topic", "http://host/topic"]
)
def test_url_without_a_topic_is_refused(url):
    with pytest.raises(BadInput, match=r"data.path: expected kafka://HOST:PORT\[,HOST:PORT\]/TOPIC, got"):
        KafkaStream(url, SCHEMA)


def test_client_properties_come_from_a_file(tmp_path, monkeypatch, brokers):
    file = tmp_path / "client.properties"
    monkeypatch.setenv("FRESHET_KAFKA_PROPERTIES", str(file))
    with pytest.raises(BadInput, match=r"FRESHET_KAFKA_PROPERTIES: the file cannot be read"):
        KafkaStream(brokers.url, SCHEMA)
    file.write_text("# who we are\nno.such.key = 1\n")
    with pytest.raises(
        BadInput, match=r"FRESHET_KAFKA_PROPERTIES: expected properties of librdkafka, got .*no.such.key"
    ):
        KafkaStream(brokers.url, SCHEMA)
    file.write_text("client.id = trainer\n")
    brokers.send(messages(0, 1))
    stream = KafkaStream(brokers.url, SCHEMA)
    stream.begin([])
    stream.close()
