"""Which data are read as a stream: those that are one, are followed, or were."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.tabular import TableSource
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.open_rows import JOURNAL, checkpoint_folder, open_rows
from freshet_serving.processor.errors import BadInput
from tests.models.streams.made import plain, users, write_parquet


def config_of(tmp_path, path=None, **data):
    return parse_config(
        {
            "model": {"name": "ctr"},
            "data": {"path": str(path or tmp_path / "clicks"), "label": "clicked", **data},
            "features": {"user": {"kind": "id"}},
            "publish": {"repository": str(tmp_path / "repository")},
        }
    )


@pytest.fixture
def clicks(tmp_path):
    write_parquet(tmp_path / "clicks" / "b.parquet", 0, 5)
    return tmp_path / "clicks"


def test_folder_is_a_table_unless_it_is_followed(tmp_path, clicks):
    config = config_of(tmp_path)
    folder = checkpoint_folder(config)
    assert folder == tmp_path / "repository" / ".checkpoints" / "ctr"
    assert isinstance(open_rows(config, folder), TableSource)
    assert not folder.exists()
    followed = open_rows(config_of(tmp_path, follow=True), folder)
    assert isinstance(followed, FollowedSource)
    assert followed.endless
    assert followed.count_rows() == 5
    # A file whose name comes first keeps its place behind those that were read.
    write_parquet(clicks / "a.parquet", 5, 3)
    again = open_rows(config, folder)
    assert isinstance(again, FollowedSource)
    assert not again.endless
    assert users(again.batches(4)) == [(n, n) for n in range(8)]
    assert isinstance(open_rows(config, folder, anew=True), TableSource)
    # A run that repeats another one reads the rows in the order in which they came to that one.
    for folder in (tmp_path / "other", tmp_path / "other"):
        repeated = open_rows(config, folder, repeat=checkpoint_folder(config))
        assert isinstance(repeated, FollowedSource)
        assert not repeated.endless
        assert users(repeated.batches(4)) == [(n, n) for n in range(8)]


def with_history(tmp_path, entities=None, columns=None, **data):
    columns = columns or {"who": "user"}
    raw = {
        "model": {"name": "ctr"},
        "data": {"path": str(tmp_path / "clicks"), "label": "clicked", "time": "ts", **data},
        "features": {"user": {"kind": "id"}},
        "sequences": {"h": {"columns": columns, "tables": {"who": "user"}, "from_events": "user"}},
        "publish": {"repository": str(tmp_path / "repository")},
    }
    if entities:
        raw["features"]["kind"] = {"kind": "string"}
        raw["entities"] = entities
    return parse_config(raw)


def test_rows_of_a_run_have_their_histories(tmp_path, clicks):
    config = with_history(tmp_path)
    (batch,) = open_rows(config, checkpoint_folder(config)).batches(8)
    assert plain(batch.columns["h.who"]) == [[], [], [], [], []]
    # A run that has followed a stream reads it as one.
    assert open_rows(config_of(tmp_path, follow=True), checkpoint_folder(config)).count_rows() == 5
    (again,) = open_rows(config, checkpoint_folder(config)).batches(8)
    assert plain(again.columns["h.who"]) == plain(batch.columns["h.who"])


def test_events_of_a_history_have_the_columns_of_entities(tmp_path, clicks):
    pq.write_table(pa.table({"user": [0, 1, 2], "kind": ["a", "b", "c"]}), tmp_path / "kinds.parquet")
    entities = {"user": {"key": "user", "path": str(tmp_path / "kinds.parquet"), "columns": ["kind"]}}
    config = with_history(tmp_path, entities, {"who": "user", "kind": "kind"})
    (batch,) = open_rows(config, checkpoint_folder(config)).batches(8)
    assert plain(batch.columns["kind"]) == ["a", "b", "c", "", ""]
    assert set(batch.columns) == {"user", "kind", "h.who", "h.kind"}


@pytest.mark.parametrize(
    ("repository", "own", "folder"),
    [
        ("models/here", "", "models/here"),
        ("models/here", "/disk", "/disk"),
        ("s3://bucket/prod/ctr", "", "trainer/bucket/prod/ctr"),
        ("s3://bucket", "", "trainer/bucket"),
        ("s3://bucket/prod", "/disk", "/disk"),
    ],
)
def test_trainer_files_stay_on_its_own_disk(tmp_path, repository, own, folder):
    config = config_of(tmp_path, format="csv")
    publish = replace(config.publish, repository=repository, trainer_folder=own)
    assert checkpoint_folder(replace(config, publish=publish)) == Path(folder, ".checkpoints", "ctr")


def test_starting_anew_takes_the_files_by_name(tmp_path, clicks):
    config = config_of(tmp_path, follow=True)
    folder = checkpoint_folder(config)
    open_rows(config, folder).count_rows()
    write_parquet(clicks / "a.parquet", 5, 3)
    anew = open_rows(config, folder, anew=True)
    assert [user for _, user in users(anew.batches(8))] == [5, 6, 7, 0, 1, 2, 3, 4]
    assert (folder / JOURNAL).exists()


def test_empty_folder_may_be_followed(tmp_path):
    (tmp_path / "clicks").mkdir()
    config = config_of(tmp_path, follow=True)
    assert config.data.format == "parquet"
    assert open_rows(config, checkpoint_folder(config)).count_rows() == 0


def test_stream_type_follows_from_the_url(tmp_path):
    for url, form in (("redis://h/s", "redis"), ("rediss://u:p@h:1/2/s", "redis"), ("kafka://a:1,b:2/t", "kafka")):
        config = config_of(tmp_path, url)
        assert config.data.format == form
        assert "p@" not in config.data.shown
        assert "p@" not in repr(config)
    with pytest.raises(
        BadInput, match=r"data.path: expected a URL with scheme redis, rediss, kafka, s3, gs, az, got 'amqp'"
    ):
        config_of(tmp_path, "amqp://h/s")


def test_source_that_cannot_be_followed_is_refused(tmp_path):
    (tmp_path / "clicks.csv").write_text("user,clicked\n1,0\n")
    config = config_of(tmp_path, tmp_path / "clicks.csv", follow=True)
    with pytest.raises(BadInput, match=r"data.path: expected an existing folder"):
        open_rows(config, checkpoint_folder(config))
    with pytest.raises(
        BadInput, match=r"data.follow: expected a folder of Parquet files, Redis or Kafka, got format csv"
    ):
        config_of(tmp_path, tmp_path / "clicks.csv", follow=True, format="csv")


def test_missing_library_gives_a_one_line_error(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "freshet_serving.models.streams.kafka_stream", None)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    config = config_of(tmp_path, "kafka://h:1/t")
    monkeypatch.delitem(sys.modules, "freshet_serving.models.streams.kafka_stream")
    with pytest.raises(BadInput, match=r"a topic of Kafka needs confluent_kafka, which is not installed: .*pip"):
        open_rows(replace(config), checkpoint_folder(config))
