"""Against a real redis-server: a version is there whole or not served, and goes without a trace."""

import pytest

from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.extensions.remote_rows.push import drop, push
from freshet_serving.processor.repository.version import VersionReader
from tests.processor.extensions.remote_rows.fakes import needs_redis
from tests.processor.extensions.remote_rows.processors import PROBE, USERS, assert_scores, opened, processor
from tests.support.packages import write_package

pytestmark = needs_redis


def test_repeated_push_writes_nothing_and_a_different_upload_is_refused(reader, server, tmp_path):
    store = opened(server.url)
    assert len(push(reader, [], store)) == 2
    with server.client() as client:
        written = client.info("commandstats")["cmdstat_mset"]["calls"]
        assert push(reader, [], store) == []
        assert client.info("commandstats")["cmdstat_mset"]["calls"] == written
    other = VersionReader(write_package(tmp_path, users=range(10)))
    with pytest.raises(Conflict, match="small/1/user: the row store holds other rows under this version"):
        push(other, [], store)


def test_interrupted_push_is_not_served_and_can_be_repeated(root, reader, server, tmp_path):
    store = opened(server.url)

    class Killed(Exception):
        pass

    def kill(*_):
        raise Killed

    for users in (range(3000), USERS):
        cut = VersionReader(write_package(tmp_path / str(len(users)), users=users))
        with pytest.raises(Killed):
            push(cut, [], store, kill)
    with pytest.raises(BadInput, match="not complete in the row store; run: freshet tables push small"):
        processor(root, server.url)
    push(reader, [], store)
    with server.client() as client:
        assert client.dbsize() == 250 + 1 + 2
    with processor(root, server.url) as engine:
        assert_scores(engine, PROBE)


def test_dropping_a_version_removes_exactly_its_keys(reader, server, tmp_path):
    store = opened(server.url)
    push(reader, [], store)
    second = VersionReader(write_package(tmp_path, version=2, users=range(10)))
    push(second, [], store)
    drop("small", 1, ["user", "tag"], store)
    with server.client() as client:
        assert client.dbsize() == 2 + 1 + 2
    drop("small", 2, ["user", "tag"], store)
    with server.client() as client:
        assert client.dbsize() == 0
