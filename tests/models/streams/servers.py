"""Streams with servers: one of a real redis-server, and topics of the mock cluster that librdkafka brings."""

import pytest

from tests.processor.extensions.remote_rows.fakes import RedisServer


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


class MockCluster:
    """Brokers in this process, with a topic of four partitions."""

    def __init__(self, topic="clicks"):
        ck = pytest.importorskip("confluent_kafka", reason="the kafka extra is not installed")
        self.producer = ck.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0})
        brokers = self.producer.list_topics(timeout=10).brokers.values()
        self.topic = topic
        self.url = "kafka://" + ",".join(f"{broker.host}:{broker.port}" for broker in brokers) + f"/{topic}"

    def send(self, values, partition=None):
        for n, value in enumerate(values):
            self.producer.produce(self.topic, value, partition=n % 4 if partition is None else partition)
        assert self.producer.flush(10) == 0


class KafkaRows(MockCluster):
    """A topic of which one partition is used, so that rows keep their order."""

    def __init__(self):
        super().__init__("items")

    def send(self, *messages):
        super().send([message.encode() for message in messages], partition=0)

    def close(self):
        del self.producer
