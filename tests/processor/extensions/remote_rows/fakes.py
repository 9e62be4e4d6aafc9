"""A row store that is a dictionary, and a redis-server for the length of a test."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading

import pytest
import redis

from freshet_serving.processor.tables.row_store import StoreReply
from tests.support.waiting import until


class MemoryStore:
    """A RowStore in memory; down=True: it does not answer."""

    def __init__(self):
        self.values, self.down, self.fetches = {}, False, []

    def fetch(self, keys, max_nbytes):
        self.fetches.append(list(keys))
        if self.down:
            return StoreReply([None] * len(keys), "cannot be reached")
        return StoreReply([self.values.get(key) for key in keys])

    def read(self, key, max_nbytes=0):
        return self.values.get(key)

    def write(self, values):
        self.values |= values

    def delete(self, keys):
        for key in keys:
            self.values.pop(key, None)

    def close(self):
        pass


def free_ports(count):
    """Ports that nobody listens on, and on which no cluster bus (port + 10000) would leave the range."""
    held = []
    while len(held) < count:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        if sock.getsockname()[1] < 55000:
            held.append(sock)
        else:
            sock.close()
    ports = [s.getsockname()[1] for s in held]
    for sock in held:
        sock.close()
    return ports


class RedisServer:
    """A redis-server on a loopback port, its data in a folder of its own; start() after kill() finds it again."""

    def __init__(self, port=None, cluster=False, password=None, options=()):
        self.port = port or free_ports(1)[0]
        self.folder = tempfile.mkdtemp(prefix="freshet-redis-")
        self._options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"] if cluster else []
        if cluster:
            self._options += ["--cluster-require-full-coverage", "no"]
        self._options += options
        self._password = password
        if password:
            self._options += ["--requirepass", password]
        self._process = None

    @property
    def url(self):
        return f"redis://{':' + self._password + '@' if self._password else ''}127.0.0.1:{self.port}/0"

    @property
    def pid(self):
        return self._process.pid

    def start(self, config=None):
        """Start it; config: a file of further settings."""
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "save": "", "appendonly": "yes"}
        # By default it puts off writing while an fsync is slow, and kill() would lose what it has acknowledged.
        options["appendfsync"] = "no"
        arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        self._process = subprocess.Popen(
            ["redis-server", *([config] if config else []), *arguments, *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers)
        return self

    def client(self):
        return redis.Redis(port=self.port, password=self._password)

    def _answers(self):
        assert self._process.poll() is None, "redis-server ended"
        try:
            with self.client() as client:
                return client.ping()
        except redis.RedisError:
            return False

    def kill(self):
        self._process.kill()
        self._process.wait()

    def close(self):
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Impostor:
    """A server that answers whatever it is sent, handshakes apart, with the same bytes."""

    def __init__(self, reply):
        self._reply, self._listener = reply, socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._sockets.append(connection)
                self._threads.append(threading.Thread(target=self._answer, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _answer(self, connection):
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                for command in data.split(b"*")[1:]:
                    connection.sendall(b"+OK\r\n" if b"CLIENT" in command or b"SELECT" in command else self._reply)

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        # The listener first: then the list of sockets is whole.
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            if sock is self._listener:
                self._threads[0].join(10)
        self._listener.close()
        for thread in self._threads[1:]:
            thread.join(10)


@contextlib.contextmanager
def cluster_nodes():
    """Three nodes that share the slots."""
    nodes = [RedisServer(port, cluster=True) for port in free_ports(3)]
    try:
        clients = [node.start().client() for node in nodes]
        edges = [0, 5461, 10923, 16384]
        for n, client in enumerate(clients):
            client.execute_command("CLUSTER ADDSLOTSRANGE", edges[n], edges[n + 1] - 1)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", n + 1)
        for node in nodes[1:]:
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port)

        def settled():
            infos = [client.execute_command("CLUSTER INFO") for client in clients]
            return all(str(i["cluster_state"]) == "ok" and str(i["cluster_known_nodes"]) == "3" for i in infos)

        until(settled)
        yield nodes
    finally:
        for node in nodes:
            node.close()


needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
