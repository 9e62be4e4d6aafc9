"""Against real redis-servers, and against what may sit in their place."""

import logging
import socket
import time

import pytest
from redis.crc import key_slot

from freshet_serving.processor.clock import FakeClock, SystemClock
from freshet_serving.processor.extensions.online_features.online_store import MAX_REPLY_NBYTES, HashRead, Loss
from freshet_serving.processor.extensions.online_features.redis_connector import is_usable
from freshet_serving.processor.extensions.online_features.redis_store import OPEN_AFTER, PAUSE_S, RedisOnlineStore
from freshet_serving.processor.extensions.online_features.store_settings import parse_store
from tests.processor.extensions.online_features.proxies import HeldProxy
from tests.processor.extensions.remote_rows.fakes import Impostor, RedisServer, cluster_nodes, free_ports, needs_redis
from tests.serving.access.certified import Authority
from tests.support.waiting import at_once, until

pytestmark = needs_redis

PATIENT_S = 30.0
"""A deadline that nothing here should meet."""
FIELDS = (b"a", b"b")


@pytest.fixture
def open_store():
    """Opens stores, and closes them after the test."""
    opened = []

    def open_one(url, clock=None, **options):
        opened.append(RedisOnlineStore(parse_store("main", {"url": url} | options), clock or SystemClock()))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def at(port):
    return f"redis://127.0.0.1:{port}"


def fetch(store, *keys, within_s=PATIENT_S):
    return store.fetch([HashRead(key, FIELDS) for key in keys], time.monotonic() + within_s)


def fetched(store, *keys):
    """A condition for until(): all keys are answered."""
    replies = fetch(store, *keys)
    return replies if not any(isinstance(reply, Loss) for reply in replies) else None


def end(store):
    """Close a store before its server: CPython 3.11 leaks a TLS socket that is reset before its handshake."""
    store.close()
    store._opener.join()


def put(port, key=b"k", **client):
    import redis

    with redis.Redis(port=port, **client) as connection:
        connection.hset(key, mapping={"a": b"1", "x": b"\xff"})


def test_fields_of_hashes_are_read_in_one_round_trip(server, open_store):
    put(server.port)
    store = open_store(at(server.port))
    assert fetch(store, b"k", b"none", b"k") == [[b"1", None], [None, None], [b"1", None]]
    assert store.fetch([HashRead(b"k", (b"x",))], time.monotonic() + PATIENT_S) == [[b"\xff"]]
    assert fetch(store) == []


def test_a_database_and_a_socket_are_addresses_as_well(open_store, tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "r.sock"
    server = RedisServer(options=["--unixsocket", str(path)]).start()
    try:
        put(server.port, db=3)
        assert fetch(open_store(at(server.port) + "/3"), b"k") == [[b"1", None]]
        assert fetch(open_store(f"unix://{path}"), b"k") == [[None, None]]
    finally:
        server.close()


def test_wrong_type_and_oversize_are_losses_of_their_key(server, open_store):
    put(server.port, b"first")
    with server.client() as client:
        client.set("text", "x")
        client.hset("huge", "a", b"x" * (4 * MAX_REPLY_NBYTES))
        client.hset("beyond", "a", b"x" * (MAX_REPLY_NBYTES + 1))
        client.hset("large", mapping={"a": b"x" * (MAX_REPLY_NBYTES // 3), "b": b"y" * (MAX_REPLY_NBYTES // 3)})
    store = open_store(at(server.port))
    for _ in range(2 * OPEN_AFTER):
        replies = fetch(store, b"first", b"text", b"huge", b"first")
        assert replies == [[b"1", None], Loss.WRONG_TYPE, Loss.TOO_LARGE, Loss.UNREACHABLE]
    assert not store.is_open
    replies = fetch(store, b"large", b"large", b"large", b"large", b"beyond", b"first")
    assert [len(reply) for reply in replies[:4]] == [2] * 4
    assert replies[4:] == [Loss.TOO_LARGE, [b"1", None]]


def test_absent_killed_and_restarted_store_raises_nothing(open_store):
    server = RedisServer()
    store = open_store(at(server.port))
    try:
        assert fetch(store, b"k") in ([Loss.UNREACHABLE], [Loss.NOT_ASKED])
        server.start()
        until(lambda: fetched(store, b"k"))
        put(server.port)
        assert fetch(store, b"k") == [[b"1", None]]
        server.kill()
        lost = [fetch(store, b"k")[0] for _ in range(3 * OPEN_AFTER)]
        assert set(lost) <= {Loss.UNREACHABLE, Loss.NOT_ASKED}
        assert lost[-1] is Loss.NOT_ASKED
        server.start()
        assert until(lambda: fetched(store, b"k")) == [[b"1", None]]
        assert not store.is_open
    finally:
        server.close()


def test_hanging_store_opens_the_circuit_breaker(server, open_store):
    put(server.port)
    clock = FakeClock()
    with HeldProxy(server.port) as proxy:
        store = open_store(at(proxy.port), clock)
        assert fetch(store, b"k") == [[b"1", None]]
        proxy.open.clear()
        lost = [fetch(store, b"k", b"k", within_s=0.01) for _ in range(OPEN_AFTER)]
        assert lost == [[Loss.LATE, Loss.LATE]] * OPEN_AFTER
        assert store.is_open
        assert fetch(store, b"k") == [Loss.NOT_ASKED]
        clock.advance(PAUSE_S * 1.1)
        assert [fetch(store, b"k", within_s=0.01)[0] for _ in range(2)] == [Loss.LATE, Loss.NOT_ASKED]
        proxy.open.set()
        clock.advance(PAUSE_S * 1.1)

        def answered():
            clock.advance(PAUSE_S * 1.1)
            return fetched(store, b"k")

        assert until(answered) == [[b"1", None]]
        assert not store.is_open


def test_a_late_reply_never_reaches_another_request(server, open_store):
    put(server.port, b"mine")
    with server.client() as client:
        client.hset("yours", "a", "2")
    with HeldProxy(server.port) as proxy:
        store = open_store(at(proxy.port), FakeClock(), pool_size=1)
        assert fetch(store, b"mine") == [[b"1", None]]
        for _ in range(OPEN_AFTER - 1):
            proxy.open.clear()
            assert fetch(store, b"mine", within_s=0.01) == [Loss.LATE]
            proxy.open.set()
            assert fetch(store, b"yours") == [[b"2", None]]


def test_connections_that_the_server_closed_are_replaced_without_a_loss(server, open_store):
    put(server.port)
    store = open_store(at(server.port), pool_size=2)
    assert fetch(store, b"k") == [[b"1", None]]
    with server.client() as client:
        for _ in range(3):
            # Whoever waits has one opened; a second one to spare is not sure to be there without.
            both = [store._single.take(time.monotonic() + 60) for _ in range(2)]
            for connection in both:
                store._single.give_back(connection)
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            until(lambda: not any(map(is_usable, store._single._idle)))
            assert fetch(store, b"k") == [[b"1", None]]


def test_pool_size_bounds_connections_of_many_threads(server, open_store):
    put(server.port)
    store = open_store(at(server.port), pool_size=2)
    replies = []

    def ask(_):
        for _ in range(50):
            replies.append(fetch(store, b"k"))

    at_once(ask, range(8))
    assert replies == [[[b"1", None]]] * 400
    with server.client() as client:
        assert client.info("clients")["connected_clients"] <= 3


def test_slow_connect_does_not_delay_requests(open_store):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = open_store(at(silent.getsockname()[1]))
        lost = [fetch(store, b"k", within_s=0.01)[0] for _ in range(OPEN_AFTER + 1)]
    assert lost == [Loss.LATE] * OPEN_AFTER + [Loss.NOT_ASKED]


@pytest.mark.parametrize(
    ("reply", "loss"),
    [
        (b"*2\r\n$1\r\n1\r\n", Loss.LATE),
        (b"*1\r\n$1\r\n1\r\n", Loss.MALFORMED),
        (b"*2\r\n:1\r\n:2\r\n", Loss.MALFORMED),
        (b"+OK\r\n", Loss.MALFORMED),
        (b"hello\r\n", Loss.MALFORMED),
        (b"*2\r\n$99999999999\r\n", Loss.TOO_LARGE),
        (b"*9999999\r\n", Loss.TOO_LARGE),
        (b"*1\r\n" * 20, Loss.TOO_LARGE),
        (b"-ERR no\r\n", Loss.REFUSED),
        (b"-NOPERM this user has no permissions\r\n", Loss.REFUSED),
        (b"-WRONGTYPE Operation\r\n", Loss.WRONG_TYPE),
        (b"-LOADING Redis is loading\r\n", Loss.UNREACHABLE),
        (b"-MOVED 7 10.0.0.1:7000\r\n", Loss.REFUSED),
        (b"-ASK 7 10.0.0.1:7000\r\n", Loss.REFUSED),
    ],
)
def test_any_reply_is_a_loss_and_never_an_error(open_store, reply, loss):
    class Poser(Impostor):
        """Answers PING, so that it is taken for a server."""

        def _answer(self, connection):
            with connection:
                try:
                    while data := connection.recv(1 << 16):
                        connection.sendall(self._reply if b"HMGET" in data else b"+OK\r\n")
                except OSError:
                    pass

    with Poser(reply) as poser:
        store = open_store(poser.url)
        within_s = 0.2 if loss is Loss.LATE else PATIENT_S
        assert fetch(store, b"k", within_s=within_s) == [loss]
        store.close()


def test_a_user_logs_in_with_a_password_that_may_change(open_store, tmp_path, caplog):
    server = RedisServer().start()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "freshet", "on", ">right", "~*", "+hmget", "+ping")
    file = tmp_path / "password"
    file.write_text("wrong-secret\n")
    try:
        put(server.port)
        with caplog.at_level(logging.WARNING):
            store = open_store(at(server.port), username="freshet", password_file=str(file))
            refused = "online store main: cannot connect: it refused the credentials"
            until(lambda: any(record.message == refused for record in caplog.records))
        assert fetch(store, b"k")[0] in (Loss.UNREACHABLE, Loss.NOT_ASKED)
        assert not any("secret" in r.message or str(server.port) in r.message for r in caplog.records)
        file.write_text("right\n")
        assert until(lambda: fetched(store, b"k")) == [[b"1", None]]
    finally:
        server.close()


def test_tls_needs_a_certificate_that_is_believed(open_store, tmp_path):
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.write()
    client = authority.write("client")
    (port,) = free_ports(1)
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(authority.path)]
    server = RedisServer(options=["--tls-port", str(port), *files]).start()
    try:
        put(server.port)
        own = {"cert_file": str(client[0]), "key_file": str(client[1])}
        store = open_store(f"rediss://127.0.0.1:{port}", ca_file=str(authority.path), **own)
        for _ in range(3):
            assert fetch(store, b"k") == [[b"1", None]]
        end(store)
        for options in ({"ca_file": str(other.path), **own}, {"ca_file": str(authority.path)}):
            store = open_store(f"rediss://127.0.0.1:{port}", **options)
            assert fetch(store, b"k")[0] in (Loss.UNREACHABLE, Loss.NOT_ASKED)
            end(store)
    finally:
        server.close()


def test_sentinels_name_the_master_and_the_next_one(open_store, tmp_path):
    servers = [RedisServer().start() for _ in range(2)]
    (port,) = free_ports(1)
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor mine 127.0.0.1 {servers[0].port} 1\n")
    sentinel = RedisServer(port, options=["--sentinel"])
    sentinel.start(str(config))
    try:
        for n, server in enumerate(servers):
            put(server.port)
            with server.client() as client:
                client.hset("k", "b", n)
        # The first sentinel of the list is not there.
        store = open_store(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/mine")
        assert fetch(store, b"k") == [[b"1", b"0"]]
        with sentinel.client() as client:
            client.execute_command("SENTINEL", "REMOVE", "mine")
            client.execute_command("SENTINEL", "MONITOR", "mine", "127.0.0.1", servers[1].port, 1)
        servers[0].kill()
        assert until(lambda: fetched(store, b"k")) == [[b"1", b"1"]]
    finally:
        for server in (*servers, sentinel):
            server.close()


def test_cluster_serves_through_moved_slots_and_lost_nodes(open_store):
    keys = [b"k%d" % n for n in range(30)]
    with cluster_nodes() as nodes:
        owners = [sum(edge <= key_slot(key) for edge in (5461, 10923)) for key in keys]
        assert set(owners) == {0, 1, 2}
        for key, owner in zip(keys, owners):
            put(nodes[owner].port, key)
        store = open_store(f"redis+cluster://127.0.0.1:1,127.0.0.1:{nodes[0].port}")
        assert fetch(store, *keys) == [[b"1", None]] * 30
        _move_a_slot(nodes, keys[owners.index(1)], store)
        nodes[2].kill()
        replies = fetch(store, *keys)
        assert {isinstance(reply, Loss) for reply, owner in zip(replies, owners) if owner == 2} == {True}
        assert {isinstance(reply, Loss) for reply, owner in zip(replies, owners) if owner != 2} == {False}
        nodes[2].start()
        until(lambda: fetched(store, *keys))


def _move_a_slot(nodes, key, store):
    """Give the slot of a key of node 1 to node 0: the key is lost at most until the store has seen the new map."""
    slot = key_slot(key)
    with nodes[0].client() as taker, nodes[1].client() as giver:
        names = [str(client.execute_command("CLUSTER MYID"), "ascii") for client in (taker, giver)]
        taker.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[1])
        giver.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[0])
        moved = giver.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10)
        giver.execute_command("MIGRATE", "127.0.0.1", nodes[0].port, "", 0, 5000, "KEYS", *moved)
        for client in (taker, giver):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[0])
    assert until(lambda: fetched(store, key)) == [[b"1", None]]
