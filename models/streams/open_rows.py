"""The configured data, opened as the rows of a run: a stream, or what lies there. Libraries are imported only here."""

from __future__ import annotations

from pathlib import Path

from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.formats import STREAMS
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Schema, Source, wanted_fields
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.stream import TRAINING, ErrorContext, Stream
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.processor.extras import needed
from freshet_serving.processor.repository import address_parts, is_address

JOURNAL, TRAINER = "stream.journal", "trainer"


def trainer_folder(config: TrainConfig) -> Path:
    """Where a trainer's own files lie: the repository, or, where that is in an object store, a folder of its bucket's
    name below TRAINER. Never the store's mirror: what is there may be fetched again, and so may be wiped."""
    repository, own = config.publish.repository, config.publish.trainer_folder
    if own or not is_address(repository):
        return Path(own or repository)
    _, bucket, prefix = address_parts(repository, "publish.repository")
    return Path(TRAINER, bucket, prefix)


def checkpoint_folder(config: TrainConfig) -> Path:
    """Where a run's checkpoints lie, and the journal of its stream."""
    return trainer_folder(config) / ".checkpoints" / config.model.name


def open_rows(config: TrainConfig, folder: Path, anew: bool = False) -> Source:
    """Opens the configured data for the run whose checkpoints lie in `folder`: as a stream where they are one, are
    followed, or have been followed before. anew: whatever that run has read, rows begin with the first. Raises BadInput
    in one line."""
    data, journal = config.data, folder / JOURNAL
    if not (data.format in STREAMS or data.follow or (journal.exists() and not anew)):
        return open_source(data, config.features)
    schema = Schema(wanted_fields(config.features), data.label, data.time, data.weight)
    stream = open_stream(data.format, data.path, schema)
    folder.mkdir(parents=True, exist_ok=True)
    return FollowedSource(stream, StreamJournal(journal, stream.identity, anew), schema, data.follow)


def open_stream(form: str, path: str, schema: Schema, context: ErrorContext = TRAINING) -> Stream:
    """A stream by its format: a folder where it is none of STREAMS. Raises BadInput."""
    if form == "redis":
        with needed("a Redis stream"):
            from freshet_serving.models.streams.redis_stream import RedisStream
        return RedisStream(path, schema, context=context)
    if form == "kafka":
        with needed("a topic of Kafka"):
            from freshet_serving.models.streams.kafka_stream import KafkaStream
        return KafkaStream(path, schema, context=context)
    from freshet_serving.models.streams.growing_folder import GrowingFolder

    return GrowingFolder(path, schema, context=context)
