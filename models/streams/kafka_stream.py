"""Read a Kafka topic: a message's value is a row as JSON, or many rows as Arrow (models.streams.stream_rows).

Positions are in the journal, so nothing is committed to a consumer group: partitions are assigned, each from the offset
after the newest one read. A segment is a run of one partition's messages, from an offset to an offset. The order of
runs of several partitions is that of their first delivery, recorded in the journal. Offsets may have gaps (compaction,
transactions). Messages of aborted transactions are not read. New partitions are found within PARTITIONS_S.

The environment variable FRESHET_KAFKA_PROPERTIES names a file of librdkafka properties for authentication (TLS, SASL).

A partition's messages arrive some time after it is assigned. A poll that does not wait for new messages waits for
these, until the client has reported the end of each partition.

Offsets that retention deleted before they were read count as lost. A topic that ends before an offset already read is
another topic, and is refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import confluent_kafka as ck

from freshet_serving.models.data.source import Schema
from freshet_serving.models.streams.stream import TRAINING, ErrorContext, Segment, StreamBacklog, check_places
from freshet_serving.models.streams.stream_rows import MessageRows, RejectedRows, Rows
from freshet_serving.processor.errors import BadInput

MOST_MESSAGES = 4096
TIMEOUT_S, FETCH_S = 10.0, 0.1
PARTITIONS_S = 10.0
PROPERTIES = "FRESHET_KAFKA_PROPERTIES"
FORM = "kafka://HOST:PORT[,HOST:PORT]/TOPIC"

Message = tuple[int, bytes]
"""Offset and value."""


class KafkaStream:
    def __init__(self, url: str, schema: Schema, context: ErrorContext = TRAINING) -> None:
        """Create a consumer of kafka://host:port[,host:port]/topic. Raises BadInput."""
        parts, self._context = urlsplit(url), context
        self._topic = parts.path.removeprefix("/")
        if parts.scheme != "kafka" or not parts.netloc or not self._topic or "@" in parts.netloc:
            got = "a URL without a topic" if not self._topic else "another form"
            raise BadInput(f"{context.field}: expected {FORM}, got {got}")
        self._messages = MessageRows(schema)
        self._trouble = ""
        self._options = _client_properties() | {
            "bootstrap.servers": parts.netloc,
            "group.id": "freshet",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 32 << 10,
            "log_level": 0,
            "error_cb": self._failed,
        }
        try:
            self._consumer = ck.Consumer(self._options)
        except ck.KafkaException as error:
            raise BadInput(f"{PROPERTIES}: expected properties of librdkafka, got {_reason(error)}") from None
        # Partition -> next offset.
        self._next: dict[int, int] = {}
        # Partitions whose messages from before they were assigned have not all arrived.
        self._coming: set[int] = set()
        self._looked_s = float("-inf")
        self._lost = 0
        self._newest: list[tuple[Segment, list[Rows | RejectedRows]]] = []

    @property
    def identity(self) -> str:
        return f"topic {self._topic} of Kafka"

    def begin(self, known: Sequence[Segment]) -> None:
        check_places(known, partition=int, first=int, last=int, messages=int)
        for segment in known:
            self._next[segment.where["partition"]] = segment.where["last"] + 1
        try:
            self._assign()
        except ck.KafkaException as error:
            expected = f"Kafka's topic {self._topic[:80]!r}"
            raise BadInput(f"{self._context.field}: expected {expected}, got {_reason(error)}") from None

    def poll(self, wait_s: float) -> list[Segment]:
        try:
            if time.monotonic() - self._looked_s >= PARTITIONS_S:
                self._assign()
            messages = self._consumed(wait_s)
            for _ in range(round(TIMEOUT_S / FETCH_S)):
                if messages or wait_s or not self._coming:
                    break
                messages = self._consumed(FETCH_S)
            else:
                # Brokers that do not answer delay one poll, not each.
                self._coming.clear()
        except ck.KafkaException as error:
            self._trouble = f"Kafka: {_reason(error)}"
            return []
        runs: dict[int, list[Message]] = {}
        for message in messages:
            if (failure := message.error()) is None:
                runs.setdefault(message.partition() or 0, []).append(_plain(message))
            elif _is_gone(failure):
                self._looked_s = float("-inf")
            else:
                self._trouble = f"Kafka: {failure.str()[:160]}"
        if not runs:
            return []
        self._trouble, self._newest = "", []
        for partition, run in sorted(runs.items()):
            self._next[partition] = run[-1][0] + 1
            where = {"partition": partition, "first": run[0][0], "last": run[-1][0], "messages": len(run)}
            parts = self._parts(partition, run)
            self._newest.append((Segment(where, sum(map(len, parts))), parts))
        return [segment for segment, _ in self._newest]

    def _consumed(self, wait_s: float) -> list[ck.Message]:
        """Return messages and errors; the ends of partitions are noted."""
        messages = []
        for message in self._consumer.consume(MOST_MESSAGES, wait_s):
            if (failure := message.error()) is not None and failure.code() == ck.KafkaError._PARTITION_EOF:
                self._coming.discard(message.partition() or 0)
            else:
                messages.append(message)
        return messages

    def read(self, segment: Segment) -> Iterator[Rows | RejectedRows]:
        for newest, parts in self._newest:
            if newest == segment:
                yield from parts
                return
        yield from self._parts(segment.where["partition"], self._again(segment))

    def can_forget(self, segment: Segment) -> bool:
        """Return False for the newest segment of a partition, which defines where reading continues."""
        last: int = segment.where["last"]
        return last + 1 != self._next.get(segment.where["partition"])

    def backlog(self) -> StreamBacklog:
        rows = 0
        for partition, offset in self._next.items():
            # Cached from the broker's last messages: no request.
            _, end = self._consumer.get_watermark_offsets(ck.TopicPartition(self._topic, partition), cached=True)
            rows += max(0, end - offset)
        return StreamBacklog(rows, self._lost, self._trouble)

    def close(self) -> None:
        self._consumer.close()

    def _assign(self) -> None:
        topic = self._consumer.list_topics(self._topic, timeout=TIMEOUT_S).topics[self._topic]
        if topic.error is not None:
            raise ck.KafkaException(topic.error)
        moved = topic.partitions.keys() != self._next.keys() or self._looked_s == float("-inf")
        if moved:
            self._coming.clear()
            for partition in sorted(topic.partitions):
                self._next[partition] = self._begins(partition)
            self._consumer.assign([ck.TopicPartition(self._topic, p, o) for p, o in sorted(self._next.items())])
        self._looked_s = time.monotonic()

    def _begins(self, partition: int) -> int:
        """Return the offset to read a partition from: after the last one read, or the first that exists."""
        first, end = self._consumer.get_watermark_offsets(ck.TopicPartition(self._topic, partition), timeout=TIMEOUT_S)
        offset = self._next.get(partition, -1)
        if offset > end:
            raise BadInput(
                f"topic {self._topic}: partition {partition} was read up to offset {offset - 1}, but it ends at {end}:"
                f" the topic was recreated; {self._context.anew} with this one"
            )
        if 0 <= offset < first:
            self._lost += first - offset
        if max(offset, first) < end:
            self._coming.add(partition)
        return max(offset, first)

    def _again(self, segment: Segment) -> list[Message]:
        where, messages = segment.where, list[Message]()
        consumer = ck.Consumer(self._options)
        try:
            consumer.assign([ck.TopicPartition(self._topic, where["partition"], where["first"])])
            until_s = time.monotonic() + TIMEOUT_S
            while len(messages) < where["messages"] and time.monotonic() < until_s:
                for message in consumer.consume(min(MOST_MESSAGES, where["messages"] - len(messages)), 0.2):
                    if (failure := message.error()) is None:
                        messages.append(_plain(message))
                    until_s = time.monotonic() + (0 if failure is not None and _is_gone(failure) else TIMEOUT_S)
        except ck.KafkaException as error:
            expected = "earlier messages"
            raise BadInput(f"{self._context.field}: expected {expected} from Kafka, got {_reason(error)}") from None
        finally:
            consumer.close()
        if len(messages) != where["messages"] or messages[-1][0] != where["last"]:
            raise BadInput(
                f"topic {self._topic}: offsets {where['first']} to {where['last']} of partition {where['partition']}"
                " are needed again but are incomplete: increase the retention of the topic"
            )
        return messages

    def _parts(self, partition: int, run: Sequence[Message]) -> list[Rows | RejectedRows]:
        named = ((f"offset {offset} of partition {partition} of {self._topic}", value) for offset, value in run)
        return [*self._messages.of_messages(named)]

    def _failed(self, error: ck.KafkaError) -> None:
        self._trouble = f"Kafka: {error.str()[:160]}"


def _client_properties() -> dict[str, Any]:
    if not (path := os.environ.get(PROPERTIES)):
        return {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"{PROPERTIES}: the file cannot be read; expected lines of key=value") from None
    pairs = [line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}


def _plain(message: ck.Message) -> Message:
    return message.offset() or 0, message.value() or b""


def _is_gone(error: ck.KafkaError) -> bool:
    return error.code() in (ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError.OFFSET_OUT_OF_RANGE)


def _reason(error: ck.KafkaException) -> str:
    return str(error.args[0].str())[:160]
