"""A stream of a real redis-server: its rows in order, what trimming takes, down and up again."""

import json

import pytest

pytest.importorskip("redis", reason="the redis extra is not installed")

from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.redis_stream import RedisStream
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from tests.models.streams.made import SCHEMA, cells_of, rows_of, said, users
from tests.processor.extensions.remote_rows.fakes import RedisServer, needs_redis

pytestmark = needs_redis


@pytest.fixture
def server():
    server = RedisServer().start()
    yield server
    server.close()


def add(server, first, count):
    with server.client() as client:
        return [client.xadd("clicks", cells_of(row)) for row in rows_of(first, count)]


def url_of(server):
    return server.url.removesuffix("/0") + "/clicks"


def opened(server, tmp_path, clock=None, **options):
    clock = clock or FakeClock()
    stream = RedisStream(url_of(server), SCHEMA, clock.now_s, clock.advance)
    return FollowedSource(stream, StreamJournal(tmp_path / "stream.journal", stream.identity), SCHEMA, **options)


def test_rows_arrive_in_stream_order_and_replay_equally(server, tmp_path):
    add(server, 0, 300)
    source = opened(server, tmp_path, endless=False)
    assert [row for batch in source.batches(64) for row in said(batch)] == rows_of(0, 300)
    source.close()
    add(server, 300, 50)
    source = opened(server, tmp_path, endless=False)
    assert users(source.batches(64, 120)) == [(n, n) for n in range(120, 350)]
    assert source.count_rows() == 350
    source.close()


def test_entry_may_have_many_rows_and_bad_ones_are_skipped(server, tmp_path):
    with server.client() as client:
        client.xadd("clicks", {"json": json.dumps(rows_of(0, 20))})
        client.xadd("clicks", {"user": "x", "clicked": "1", "ts": "1"})
        client.xadd("clicks", {"json": "{"})
        client.xadd("clicks", cells_of(rows_of(22, 1)[0]))
    source = opened(server, tmp_path, endless=False)
    assert users(source.batches(64)) == [(n, n) for n in range(20)] + [(22, 22)]
    ingest_status = source.ingest_status()
    assert (ingest_status.rows, ingest_status.rejected) == (23, 2)
    assert "expected a JSON object, a list of them or an Arrow stream" in ingest_status.why
    source.close()


def test_rows_trimmed_before_reading_are_counted_as_lost(server, tmp_path):
    clock = FakeClock()
    add(server, 0, 30)
    with server.client() as client:
        client.xtrim("clicks", maxlen=20, approximate=False)
    source = opened(server, tmp_path, clock, endless=False)
    assert users(source.batches(64)) == [(n, n + 10) for n in range(20)]
    assert source.ingest_status().backlog.lost == 0
    add(server, 30, 30)
    with server.client() as client:
        client.xtrim("clicks", maxlen=5, approximate=False)
    clock.advance(2.0)
    assert users(source.batches(64, 20)) == [(n, n + 35) for n in range(20, 25)]
    assert source.ingest_status().backlog.lost == 25
    source.close()


def test_replay_of_trimmed_rows_is_an_error(server, tmp_path):
    add(server, 0, 30)
    source = opened(server, tmp_path, endless=False)
    source.count_rows()
    source.close()
    with server.client() as client:
        client.xtrim("clicks", maxlen=5, approximate=False)
    source = opened(server, tmp_path, endless=False)
    with pytest.raises(BadInput, match=r"stream clicks: the 30 entries .* are needed again, but 5 exist"):
        list(source.batches(64))
    source.close()


def test_outage_is_reported_and_later_rows_are_read(server, tmp_path):
    clock = FakeClock()
    add(server, 0, 10)
    source = opened(server, tmp_path, clock, endless=True)
    arriving = source.arriving(10, 0)
    assert users([next(arriving)]) == [(n, n) for n in range(10)]
    server.kill()
    assert next(arriving) is None
    assert source.ingest_status().backlog.trouble == "Redis: none: it cannot be reached"
    server.start()
    add(server, 10, 10)
    while (batch := next(arriving)) is None:
        clock.advance(1.0)
        assert clock.now_s() < 100
    assert users([batch]) == [(n, n) for n in range(10, 20)]
    assert source.ingest_status().backlog.trouble == ""
    source.close()


def test_restart_waits_for_an_unreachable_server(server, tmp_path):
    add(server, 0, 300)
    source = opened(server, tmp_path, endless=False)
    assert source.count_rows() == 300
    source.close()
    server.kill()

    class Returning(FakeClock):
        def advance(self, seconds):
            super().advance(seconds)
            if self.now_s() > 10 and not back:
                back.append(server.start())

    back = []
    source = opened(server, tmp_path, Returning(), endless=False)
    assert users(source.batches(64)) == [(n, n) for n in range(300)]
    source.close()


def test_replay_waits_for_the_server_with_a_limit(server, tmp_path):
    add(server, 0, 300)
    source = opened(server, tmp_path, endless=False)
    assert users(source.batches(64)) == [(n, n) for n in range(300)]
    server.kill()
    with pytest.raises(BadInput, match=r"expected earlier rows from Redis, got none: it cannot be reached"):
        list(source.batches(64))
    server.start()
    assert users(source.batches(64)) == [(n, n) for n in range(300)]
    source.close()


def test_different_stream_with_the_same_name_is_refused(server, tmp_path):
    with server.client() as client:
        client.xadd("clicks", cells_of(rows_of(0, 1)[0]), id="9999999999999-0")
    source = opened(server, tmp_path, endless=False)
    source.count_rows()
    source.close()
    with server.client() as client:
        client.delete("clicks")
    with pytest.raises(
        BadInput, match=r"stream clicks: expected the stream that was read up to 9999999999999-0, got none"
    ):
        opened(server, tmp_path, endless=False)
    add(server, 0, 1)
    with pytest.raises(BadInput, match=r"got another one, which ends at .*--new-version --from-scratch"):
        opened(server, tmp_path, endless=False)


def test_missing_stream_is_awaited(server, tmp_path):
    source = opened(server, tmp_path, FakeClock(), endless=True)
    arriving = source.arriving(5, 0)
    assert next(arriving) is None
    add(server, 0, 5)
    assert users([next(arriving)]) == [(n, n) for n in range(5)]
    source.close()


def test_wrong_key_type_password_or_server_gives_one_line(tmp_path):
    locked = RedisServer(password="secret").start()
    try:
        with locked.client() as client:
            client.set("clicks", "a string")
        with pytest.raises(BadInput, match=r"data.path: expected a Redis server, got an error: WRONGTYPE"):
            opened(locked, tmp_path, endless=False)
        stream = RedisStream(url_of(locked).replace("secret", "wrong"), SCHEMA)
        with pytest.raises(BadInput, match="user or password are wrong") as told:
            stream.begin([])
        assert "wrong@" not in str(told.value)
    finally:
        locked.close()
    with pytest.raises(BadInput, match=r"data.path: expected a Redis server, got none: it cannot be reached"):
        opened(locked, tmp_path, endless=False)


@pytest.mark.parametrize(
    "url", ["redis://host", "redis:///stream", "http://host/stream", "redis://host/", "redis://host:port/s"]
)
def test_url_without_a_stream_is_refused_without_being_shown(url):
    with pytest.raises(
        BadInput, match=r"data.path: expected redis\[s\]://\[user:password@\]host\[:port\]\[/db\]/stream"
    ):
        RedisStream(url, SCHEMA)
