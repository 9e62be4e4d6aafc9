"""Tables that are followed: files that are replaced, and streams of records, with kills between any two steps."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.data.entity_table import EntitySource
from freshet_serving.models.data.formats import DataConfig, format_of
from freshet_serving.models.data.source import Batch, Field, Schema
from freshet_serving.models.streams import followed_tables as module
from freshet_serving.models.streams import table_state
from freshet_serving.models.streams.followed_tables import KEEP_S, LOOK_S, POLL_S, RETRY_S, followed_tables, open_table
from freshet_serving.models.streams.open_rows import open_stream
from freshet_serving.models.streams.table_copy import read_copy
from freshet_serving.processor.errors import BadInput, NotReady
from tests.models.streams.servers import KafkaRows, RedisRows
from tests.processor.extensions.remote_rows.fakes import needs_redis
from tests.support.failing_calls import FailingCalls
from tests.support.waiting import until

COPY = "run/tables/entities.item/table.safetensors"
KEY, PRICE, TAGS = Field("item", "string"), Field("price", "float"), Field("tags", "strings")


class Clock:
    """A clock that stands still, for the tables that a test opens."""

    def __init__(self, monkeypatch):
        self.now_s = 0.0
        for name in ("ReplacedFile", "RecordStream"):
            real = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *args, real=real: real(*args, now_s=lambda: self.now_s))

    def look(self, table, times=2):
        """Look again, twice by default: a file is read once it has not changed between two looks."""
        for _ in range(times):
            self.now_s += max(LOOK_S, POLL_S)
            table.refresh()
        return table


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def write(path, prices, times=None):
    """Replace a file by one with a price for each item."""
    columns = {"item": pa.array([str(item) for item in prices]), "price": pa.array(list(map(float, prices.values())))}
    columns["tags"] = pa.array([["a"] * int(price) for price in prices.values()], pa.list_(pa.string()))
    if times is not None:
        columns["at"] = pa.array(list(map(float, times)))
    hidden = path.with_name("." + path.name)
    pq.write_table(pa.table(columns), hidden)
    hidden.rename(path)


def section_of(path, time="", once=False, section="entities.item"):
    path = str(path)
    return SimpleNamespace(
        name="item",
        section=section,
        once=once,
        data=DataConfig(path, format_of(path), (), time),
        key_field=KEY,
        fields=(PRICE, TAGS),
        further=(),
    )


def opened(path, folder, **options):
    anew = options.pop("anew", False)
    return open_table(section_of(path, **options), folder, open_stream, anew)


def prices_of(rows):
    return dict(zip((key.decode() for key in rows.keys.tolist()), rows.columns["price"].tolist()))


def removed_of(rows):
    return {key.decode() for key in rows.removed.tolist()}


@pytest.fixture
def file(tmp_path):
    write(tmp_path / "items.parquet", {"a": 1, "b": 2})
    return tmp_path / "items.parquet"


def test_replaced_file_is_the_whole_truth(tmp_path, clock, file):
    table = opened(file, tmp_path / "run")
    mark = table.mark
    assert prices_of(table.newest()) == {"a": 1, "b": 2}
    write(file, {"b": 2, "c": 3})
    assert clock.look(table, 1).mark == mark
    clock.look(table, 1)
    changed = table.changed(mark)
    assert (prices_of(changed), removed_of(changed)) == ({"c": 3}, {"a"})
    assert table.news() == []
    # The same rows in another file are no change.
    mark = table.mark
    write(file, {"c": 3, "b": 2})
    assert clock.look(table).mark == mark


def test_file_is_read_only_when_it_has_changed(tmp_path, clock, file, monkeypatch):
    table, read = opened(file, tmp_path / "run"), []
    real = module.read_rows
    monkeypatch.setattr(module, "read_rows", lambda *args, **options: read.append(1) or real(*args, **options))
    clock.look(table, 5)
    write(file, {"a": 3})
    clock.look(table, 5)
    assert len(read) == 1
    # A run that starts has the copy.
    opened(file, tmp_path / "run")
    assert len(read) == 1


def test_file_that_changes_all_the_time_is_read_all_the_same(tmp_path, clock, file):
    table = opened(file, tmp_path / "run")
    seen = set()
    for price in range(3, 20):
        write(file, {"a": price})
        clock.look(table, 1)
        seen |= set(prices_of(table.newest()).values())
    assert seen == {1, 2, 8, 14}


def test_looks_take_a_small_part_of_the_time(tmp_path, clock, file, monkeypatch):
    table, looks = opened(file, tmp_path / "run"), []

    def slow():
        looks.append(clock.now_s)
        clock.now_s += 5.0
        raise BadInput("no answer in time")

    monkeypatch.setattr(table, "_look", slow)
    clock.look(table, 80)
    assert table.trouble == "entities.item: no answer in time"
    assert len(looks) == 2
    assert looks[1] - looks[0] >= 50.0


@pytest.mark.parametrize("damage", ["half", "gone", "empty", "other"])
def test_damaged_file_keeps_the_last_good_content(tmp_path, clock, file, damage):
    table = opened(file, tmp_path / "run")
    mark, content = table.mark, file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "empty":
        write(file, {})
    elif damage == "other":
        pq.write_table(pa.table({"item": ["a"]}), file)
    else:
        file.write_bytes(content[: len(content) // 2])
    clock.look(table, 5)
    assert (table.mark, prices_of(table.newest())) == (mark, {"a": 1, "b": 2})
    (line,) = table.news()
    assert line.startswith("entities.item")
    assert line.endswith("the last good content counts")
    assert "\n" not in line
    assert table.trouble
    clock.look(table, 3)
    assert table.news() == []
    # A run that starts meanwhile has it, too.
    again = opened(file, tmp_path / "run")
    assert (again.identity, again.mark, bool(again.trouble)) == (table.identity, mark, True)
    write(file, {"a": 5})
    clock.look(table)
    assert (table.trouble, table.news()) == ("", ["entities.item: can be read again"])
    assert prices_of(table.changed(mark)) == {"a": 5}


def test_first_content_must_be_good(tmp_path, clock, file):
    file.write_bytes(b"PAR1")
    with pytest.raises(BadInput, match=r"^entities\.item: items.parquet"):
        opened(file, tmp_path / "run")


def test_full_disk_leaves_the_table_and_is_tried_again_later(tmp_path, clock, file, monkeypatch):
    table, real = opened(file, tmp_path / "run"), module.write_copy

    def full(*args):
        raise OSError(28, "No space left on device")

    write(file, {"a": 7})
    monkeypatch.setattr(module, "write_copy", full)
    clock.look(table)
    assert table.trouble == "entities.item: the trainer's copy cannot be written: No space left on device"
    assert prices_of(table.newest()) == {"a": 1, "b": 2}
    monkeypatch.setattr(module, "write_copy", real)
    clock.now_s += RETRY_S
    table.refresh()
    assert (table.trouble, prices_of(table.newest())) == ("", {"a": 7})


def test_user_with_two_rows_is_the_last_good_contents(tmp_path, clock, file):
    table = opened(file, tmp_path / "run", once=True, section="user_table.item")
    write(file, {"a": 5})
    rows = pq.read_table(file)
    pq.write_table(pa.concat_tables([rows, rows]), file)
    clock.look(table)
    assert "expected each item once" in table.trouble
    assert prices_of(table.newest()) == {"a": 1, "b": 2}


@contextmanager
def dying(when):
    """Within the block the process ends when a copy is written: before it is, after, or not at all."""
    real = module.write_copy

    def write_copy(*args):
        if when == "after":
            real(*args)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patches:
        if when:
            patches.setattr(module, "write_copy", write_copy)
        yield


DEATHS = st.sampled_from(["", "", "before", "after"])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_change_of_a_file_is_lost_by_kills(data, tmp_path_factory):
    """What a reader is told since a mark of any earlier process leads to the newest content."""
    folder, timed = tmp_path_factory.mktemp("file"), data.draw(st.booleans())
    contents = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), min_size=1)
    with pytest.MonkeyPatch.context() as patches:
        clock = Clock(patches)
        table, served, told = None, {}, None
        for _ in range(data.draw(st.integers(1, 6))):
            content = data.draw(contents)
            write(folder / "items.parquet", content, range(len(content)) if timed else None)
            try:
                with dying(data.draw(DEATHS)):
                    if table is None or data.draw(st.booleans()):
                        table = opened(folder / "items.parquet", folder / "run", time="at" if timed else "")
                    else:
                        clock.look(table)
            except KeyboardInterrupt:
                table = None
                continue
            if data.draw(st.booleans()):
                if told is None or told[0] != table.identity:
                    rows, served = table.newest(), {}
                else:
                    rows = table.changed(told[1])
                told = table.identity, rows.mark
                served = {item: price for item, price in served.items() if item not in removed_of(rows)}
                served |= prices_of(rows)
                assert served == content


class FolderRecords:
    def __init__(self, folder):
        self.url, self._folder, self._files = folder / "records", folder / "records", 0
        self._folder.mkdir()

    def send(self, prices):
        self._files += 1
        write(self._folder / f"{self._files:05}.parquet", prices)

    def close(self): ...


class RedisRecords(RedisRows):
    def __init__(self, folder):
        super().__init__()

    def send(self, prices):
        with self.server.client() as client:
            for item, price in prices.items():
                client.xadd("items", {"item": item, "price": price, "tags": "|".join(["a"] * int(price))})


class KafkaRecords(KafkaRows):
    def __init__(self, folder):
        super().__init__()

    def send(self, prices):
        super().send(*(json.dumps({"item": item, "price": p, "tags": ["a"] * p}) for item, p in prices.items()))


@pytest.fixture(
    params=[FolderRecords, pytest.param(RedisRecords, marks=needs_redis), KafkaRecords],
    ids=["folder", "redis", "kafka"],
)
def stream(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.close()


def test_records_of_a_stream_count_by_key_and_remove_none(tmp_path, clock, stream):
    stream.send({"a": 1, "b": 2})
    table = opened(stream.url, tmp_path / "run")
    assert (table.mark, prices_of(table.newest())) == (2, {"a": 1, "b": 2})
    stream.send({"b": 3, "c": 4})
    stream.send({"c": 5})
    until(lambda: clock.look(table, 1).mark == 5)
    assert prices_of(table.changed(2)) == {"b": 3, "c": 5}
    assert prices_of(table.changed(4)) == {"c": 5}
    again = opened(stream.url, tmp_path / "run")
    assert (again.identity, again.mark) == (table.identity, 5)
    assert prices_of(again.changed(2)) == {"b": 3, "c": 5}
    assert prices_of(again.newest()) == {"a": 1, "b": 3, "c": 5}


def test_copy_is_at_most_some_minutes_old(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(table_state, "RECENT_ROWS", 0)
    stream = FolderRecords(tmp_path)
    stream.send({"abcdefgh"[n]: n for n in range(8)})
    table = opened(stream.url, tmp_path / "run")
    stream.send({"a": 9})
    clock.look(table)
    assert mark_of_copy(tmp_path) == 8
    clock.now_s += KEEP_S
    clock.look(table, 1)
    assert mark_of_copy(tmp_path) == 9
    for file in stream.url.iterdir():
        file.unlink()
    stream.send({"z": 1})
    again = opened(stream.url, tmp_path / "run")
    assert prices_of(again.changed(8)) == {"a": 9, "z": 1}


def mark_of_copy(folder):
    """The mark of a table's copy."""
    return read_copy(folder / COPY, KEY, (PRICE, TAGS), timed=False).mark


def test_records_before_the_copy_are_never_read_again(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(table_state, "RECENT_ROWS", 0)
    stream = FolderRecords(tmp_path)
    stream.send({"a": 1, "b": 2})
    table = opened(stream.url, tmp_path / "run")
    stream.send({"b": 3})
    clock.look(table)
    for file in stream.url.iterdir():
        file.unlink()
    stream.send({"c": 4})
    clock.look(table)
    again = opened(stream.url, tmp_path / "run")
    assert (again.trouble, prices_of(again.changed(2))) == ("", {"b": 3, "c": 4})


def test_long_stream_is_taken_over_by_parts(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(module, "READ_ROWS", 2)
    monkeypatch.setattr(module, "LOOK_ROWS", 4)
    stream = FolderRecords(tmp_path)
    stream.send({"abcdefghi"[n]: n for n in range(9)})
    table = opened(stream.url, tmp_path / "run")
    assert table.mark == 9
    stream.send({"abcdefghi"[n]: n + 1 for n in range(9)})
    marks = [clock.look(table, 1).mark for _ in range(4)]
    assert marks == [13, 17, 18, 18]
    assert prices_of(table.changed(9)) == {"abcdefghi"[n]: n + 1 for n in range(9)}


def test_run_from_scratch_reads_the_stream_from_its_beginning(tmp_path, clock):
    stream = FolderRecords(tmp_path)
    stream.send({"a": 1})
    table = opened(stream.url, tmp_path / "run")
    again = opened(stream.url, tmp_path / "run", anew=True)
    assert again.identity != table.identity
    assert again.mark == 1


def test_stream_without_a_record_is_refused(tmp_path, clock, monkeypatch):
    stream = FolderRecords(tmp_path)
    monkeypatch.setattr("tests.models.streams.test_followed_tables.format_of", lambda path: "parquet")
    with pytest.raises(BadInput, match=r"^entities\.item\.path: expected records, got a stream without one"):
        opened(stream.url, tmp_path / "run")


def test_damaged_copy_of_a_stream_is_read_again_from_it(tmp_path, clock):
    stream = FolderRecords(tmp_path)
    stream.send({"a": 1})
    first = opened(stream.url, tmp_path / "run")
    copy = tmp_path / COPY
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    table = opened(stream.url, tmp_path / "run")
    assert table.identity != first.identity
    assert prices_of(table.newest()) == {"a": 1}
    assert table.news() == ["entities.item: read again from the first record that the stream still has"]


def test_file_in_the_place_of_a_stream_begins_anew(tmp_path, clock, file):
    stream = FolderRecords(tmp_path)
    stream.send({"a": 1})
    identities = {opened(path, tmp_path / "run").identity for path in (file, stream.url, file)}
    assert len(identities) == 3


def test_file_that_is_no_record_is_set_aside(tmp_path, clock):
    stream = FolderRecords(tmp_path)
    stream.send({"a": 1})
    table = opened(stream.url, tmp_path / "run")
    write(stream.url / "x.parquet", {"b": 2})
    (stream.url / "y.parquet").write_bytes(b"no file")
    stream.send({"c": 3})
    clock.look(table)
    assert prices_of(table.newest())["c"] == 3
    assert any("1 files were set aside" in line for line in table.news())


@pytest.mark.parametrize(
    ("path", "got"), [("s3://bucket/items.parquet", "s3://bucket/items.parquet"), ("*.parquet", r"\*\.parquet")]
)
def test_what_cannot_be_followed_is_refused_in_one_line(tmp_path, path, got):
    section = section_of("items.parquet")
    section.data = DataConfig(path, "parquet", ())
    with pytest.raises(BadInput, match=rf"^entities\.item\.path: expected, beside a followed stream, .*'{got}'$"):
        open_table(section, tmp_path / "run", open_stream)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_record_is_lost_by_kills(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    stream = FolderRecords(folder)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(table_state, "RECENT_ROWS", data.draw(st.sampled_from([0, 2, 1024])))
        clock = Clock(patches)
        table, sent, served, told = None, {}, {}, None
        for _ in range(data.draw(st.integers(1, 6))):
            records = data.draw(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), min_size=1))
            stream.send(records)
            sent |= records
            try:
                with dying(data.draw(DEATHS)):
                    if table is None or data.draw(st.booleans()):
                        table = opened(stream.url, folder / "run")
                    else:
                        clock.look(table)
            except KeyboardInterrupt:
                table = None
                continue
            if told is None or data.draw(st.booleans()):
                rows = table.newest() if told is None else table.changed(told[1])
                assert told is None or told[0] == table.identity
                told = table.identity, rows.mark
                served |= prices_of(rows)
                assert served == sent


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_record_is_lost_by_full_disks(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    stream = FolderRecords(folder)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(table_state, "RECENT_ROWS", data.draw(st.sampled_from([0, 2, 1024])))
        clock, calls = Clock(patches), FailingCalls(folder / "run", patches)
        table, sent = None, {}
        for _ in range(data.draw(st.integers(1, 6))):
            records = data.draw(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3), min_size=1))
            stream.send(records)
            sent |= records
            calls.begin(data.draw(st.sampled_from([None, *range(1, 9)])), lasting=data.draw(st.booleans()))
            try:
                if table is None or data.draw(st.booleans()):
                    table = None
                    table = opened(stream.url, folder / "run")
                else:
                    clock.look(table)
                    assert "\n" not in table.trouble
            except (OSError, NotReady):
                assert calls.hit
            calls.at = None
        if table is not None:
            clock.now_s += RETRY_S
            table.refresh()
            assert (table.trouble, prices_of(table.newest())) == ("", sent)
        assert prices_of(opened(stream.url, folder / "run").newest()) == sent


def test_events_are_joined_to_what_is_known_when_they_arrive(tmp_path, clock, file):
    table = opened(file, tmp_path / "run")

    def arriving(rows, start):
        for n in range(3):
            yield Batch({"item": table.newest().keys}, np.zeros(2, np.float32), None, 2 * n)
            yield None
            write(file, {"a": 10 + n, "b": 20 + n})
            clock.now_s += LOOK_S
            table.refresh()
            clock.now_s += LOOK_S

    rows = SimpleNamespace(schema=Schema((KEY,), "clicked"), arriving=arriving)
    source = EntitySource(rows, [table], [KEY, PRICE])
    assert followed_tables(source) == [table]
    found = [batch.columns["price"].tolist() for batch in source.arriving(2, 0) if batch is not None]
    assert found == [[1, 2], [10, 20], [11, 21]]


def test_records_of_a_file_with_times_are_joined_as_of_the_event(tmp_path, clock):
    write(tmp_path / "items.parquet", {"a": 1}, [10])
    table = opened(tmp_path / "items.parquet", tmp_path / "run", time="at")
    again = opened(tmp_path / "items.parquet", tmp_path / "run", time="at")
    keys = table.newest().keys
    for one in (table, again):
        found = [one.columns(keys, np.array([at]))["price"].tolist()[0] for at in (9.0, 10.0)]
        np.testing.assert_array_equal(found, [np.nan, 1])


def test_records_of_a_stream_with_times_are_joined_as_of_the_event(tmp_path, clock):
    folder = tmp_path / "records"
    folder.mkdir()
    write(folder / "1.parquet", {"a": 1, "b": 1}, [20, 5])
    table = opened(folder, tmp_path / "run", time="at")
    # A record that comes late is of its own time, and changes nothing that is served.
    mark = table.mark
    write(folder / "2.parquet", {"a": 2}, [10])
    clock.look(table, 1)
    assert (table.mark, prices_of(table.changed(mark))) == (mark + 1, {})
    write(folder / "3.parquet", {"b": 3}, [30])
    clock.look(table, 1)
    assert prices_of(table.changed(mark)) == {"b": 3}
    again = opened(folder, tmp_path / "run", time="at")
    keys = table.newest().keys
    for one in (table, again):
        assert prices_of(one.newest()) == {"a": 1, "b": 3}
        joined = [one.columns(keys, np.full(2, at))["price"].tolist() for at in (5.0, 15.0, 25.0, 35.0)]
        np.testing.assert_array_equal(joined, [[np.nan, 1], [2, 1], [1, 1], [1, 3]])
