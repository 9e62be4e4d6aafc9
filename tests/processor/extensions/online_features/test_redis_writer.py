"""Against real redis-servers: what is sent is there, or an error says that it may not be."""

import contextlib
import time

import pytest
import redis

from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.extensions.online_features import redis_connector, redis_writer
from freshet_serving.processor.extensions.online_features.redis_writer import RedisWriter
from freshet_serving.processor.extensions.online_features.store_settings import parse_store
from tests.processor.extensions.online_features.proxies import HeldProxy
from tests.processor.extensions.remote_rows.fakes import Impostor, cluster_nodes, needs_redis

pytestmark = needs_redis


@pytest.fixture
def open_writer():
    """Makes writers, and closes them after the test."""
    made = []

    def make(url, **options):
        made.append(RedisWriter(parse_store("main", {"url": url} | options)))
        return made[-1]

    yield make
    for writer in made:
        writer.close()


def at(port):
    return f"redis://127.0.0.1:{port}"


def hset(n, value=b"v"):
    return (b"HSET", b"user:%d" % n, b"a", b"%d" % n, b"b", value)


@pytest.mark.parametrize("piece_nbytes", [1, 1000, 1 << 20])
def test_all_commands_are_done_in_pieces_of_any_size(server, open_writer, monkeypatch, piece_nbytes):
    monkeypatch.setattr(redis_writer, "PIECE_NBYTES", piece_nbytes)
    writer = open_writer(at(server.port) + "/3")
    assert writer.begin()
    assert writer.send([hset(n) for n in range(300)]) == [2] * 300
    assert writer.send(
        [(b"HDEL", b"user:1", b"a", b"x"), (b"HDEL", b"user:2", b"x"), (b"PEXPIRE", b"user:3", b"9" * 6)]
    )
    assert writer.send([]) == []
    with redis.Redis(port=server.port, db=3) as client:
        assert client.dbsize() == 300
        assert client.hgetall("user:299") == {b"a": b"299", b"b": b"v"}
        assert client.hgetall("user:1") == {b"b": b"v"}
        assert 0 < client.pttl("user:3") <= 999_999


def test_a_restarted_server_is_another_one(server, open_writer):
    writer = open_writer(at(server.port))
    first = writer.begin()
    assert writer.begin() == first
    server.kill()
    with pytest.raises(NotReady, match=r"^online store main cannot be reached$"):
        writer.send([hset(1)])
    with pytest.raises(NotReady, match=r"^online store main cannot be reached$"):
        writer.begin()
    server.start()
    assert writer.begin() not in ("/0", first)
    assert writer.send([hset(1)]) == [2]


def test_databases_of_a_server_are_told_apart(server, open_writer):
    first, third = (open_writer(at(server.port) + f"/{n}").begin() for n in (0, 3))
    assert (first.partition("/")[0], first[-2:], third[-2:]) == (third.partition("/")[0], "/0", "/3")


def test_a_connection_that_failed_is_not_replaced_while_sending(server, open_writer):
    writer = open_writer(at(server.port))
    writer.begin()
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    for _ in range(2):
        with pytest.raises(NotReady):
            writer.send([hset(1)])
    assert writer.begin()
    assert writer.send([hset(1)]) == [2]


def test_a_store_that_hangs_is_given_up(server, open_writer, monkeypatch):
    monkeypatch.setattr(redis_writer, "WRITE_S", 0.05)
    with HeldProxy(server.port) as proxy:
        writer = open_writer(at(proxy.port))
        writer.begin()
        proxy.open.clear()
        before_s = time.monotonic()
        with pytest.raises(NotReady, match="did not answer in time"):
            writer.send([hset(1)])
        assert time.monotonic() - before_s < 30


def test_another_type_under_a_key_is_refused_without_the_key(server, open_writer):
    with server.client() as client:
        client.set("user:1", "x")
    writer = open_writer(at(server.port))
    writer.begin()
    with pytest.raises(BadInput, match="expected hashes under the keys of histories") as refused:
        writer.send([hset(1)])
    assert "user:1" not in str(refused.value)


def test_a_user_without_permission_is_told_which_are_needed(server, open_writer, tmp_path):
    with server.client() as client:
        client.acl_setuser("reader", enabled=True, passwords=["+secret"], commands=["+ping", "+hmget"], keys=["*"])
    password = tmp_path / "password"
    password.write_text("secret")
    writer = open_writer(at(server.port), username="reader", password_file=str(password))
    assert writer.begin() == "/0"
    with pytest.raises(NotReady, match=r"expected \+hset, \+hdel"):
        writer.send([hset(1)])


@pytest.mark.parametrize("reply", [b"+OK\r\n", b"x" * 10, b"$9\r\n", b"-ERR no\r\n", b"*9999999\r\n"])
def test_whatever_answers_raises_nothing_else(open_writer, monkeypatch, reply):
    monkeypatch.setattr(redis_connector, "CONNECT_S", 0.05)
    with Impostor(reply) as impostor:
        writer = open_writer(impostor.url)
        for _ in range(2):
            with contextlib.suppress(NotReady):
                writer.begin()
                writer.send([hset(1)])


def test_keys_of_a_cluster_go_to_their_nodes(open_writer):
    with cluster_nodes() as nodes:
        writer = open_writer(f"redis+cluster://127.0.0.1:{nodes[0].port}")
        assert len(writer.begin().split(",")) == 3
        assert writer.send([hset(n) for n in range(100)]) == [2] * 100
        sizes = []
        for node in nodes:
            with node.client() as client:
                sizes.append(client.dbsize())
        assert (sum(sizes), min(sizes) > 0) == (100, True)
        nodes[1].kill()
        with pytest.raises(NotReady):
            writer.send([hset(n) for n in range(100)])
        with pytest.raises(NotReady):
            writer.begin()
