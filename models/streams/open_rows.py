"""Open the configured data as the rows of a run: a stream or stored data. Libraries are imported only on use."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.formats import STREAMS
from freshet_serving.models.data.joined_rows import joined_rows
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Field, Schema, Source
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.followed_tables import open_table
from freshet_serving.models.streams.stream import TRAINING, ErrorContext, Stream
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.models.zoo.architectures import NEXT_ITEM
from freshet_serving.processor.extras import needed
from freshet_serving.processor.repository import address_parts, is_address

JOURNAL, TRAINER = "stream.journal", "trainer"


def trainer_folder(config: TrainConfig) -> Path:
    """Return the folder of a trainer's own files: the repository or, for an object store, one named after its bucket.

    Never the store's local mirror, whose content may be fetched again and so may be deleted.
    """
    repository, own = config.publish.repository, config.publish.trainer_folder
    if own or not is_address(repository):
        return Path(own or repository)
    _, bucket, prefix = address_parts(repository, "publish.repository")
    return Path(TRAINER, bucket, prefix)


def checkpoint_folder(config: TrainConfig) -> Path:
    return trainer_folder(config) / ".checkpoints" / config.model.name


def open_rows(config: TrainConfig, folder: Path, anew: bool = False, repeat: Path | None = None) -> Source:
    """Open the configured data for a run, as a stream if they are one, are followed, or were followed before.

    Args:
        folder: Folder of the run's checkpoints.
        anew: Start with the first row, whatever the run has read.
        repeat: Folder of the checkpoints of a run that has followed them: the rows get the same numbers.
    """
    # A next-item network reads the columns of new events beside the histories before them.
    columns = [f.reads for f in config.features if f.sequence] if config.model.arch in NEXT_ITEM else []
    more = [field for field in columns if field is not None]
    table = partial(open_table, folder=folder, open_stream=open_stream, anew=anew) if config.data.follow else None
    return joined_rows(
        lambda fields: _open_rows(config, fields, folder, anew, repeat),
        config.features,
        config.joined,
        more,
        folder,
        table,
    )


def _open_rows(config: TrainConfig, fields: tuple[Field, ...], folder: Path, anew: bool, repeat: Path | None) -> Source:
    data, journal = config.data, folder / JOURNAL
    if not (data.format in STREAMS or data.follow or repeat is not None or (journal.exists() and not anew)):
        return open_source(data, fields)
    schema = Schema(fields, data.label, data.time, data.weight, data.list_separator)
    stream = open_stream(data.format, data.path, schema)
    folder.mkdir(parents=True, exist_ok=True)
    if repeat is not None and not journal.exists():
        # Only there is it said in which order files came. Of Redis it may be incomplete; its entries have an order.
        StreamJournal(repeat / JOURNAL, stream.identity).copy_whole(journal)
    return FollowedSource(stream, StreamJournal(journal, stream.identity, anew), schema, data.follow)


def open_stream(form: str, path: str, schema: Schema, context: ErrorContext = TRAINING, strict: bool = True) -> Stream:
    """Open a stream; any format outside STREAMS means a folder. `strict` is that of GrowingFolder. Raises BadInput."""
    if form == "redis":
        with needed("a Redis stream"):
            from freshet_serving.models.streams.redis_stream import RedisStream
        return RedisStream(path, schema, context=context)
    if form == "kafka":
        with needed("a topic of Kafka"):
            from freshet_serving.models.streams.kafka_stream import KafkaStream
        return KafkaStream(path, schema, context=context)
    from freshet_serving.models.streams.growing_folder import GrowingFolder

    return GrowingFolder(path, schema, context=context, strict=strict)
