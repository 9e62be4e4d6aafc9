"""Connect to an online store in Redis: TLS, login, the master that sentinels name, the nodes of a cluster.

What connects may wait for CONNECT_S, so it is no request: a store's opener, or a trainer that writes.
"""

from __future__ import annotations

import select
import time
from ssl import SSLWantReadError
from typing import Any

from redis import exceptions
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from freshet_serving.processor.extensions.online_features.store_settings import SENTINEL, SOCKET, OnlineStoreSettings
from freshet_serving.processor.extensions.redis.connections import connection_options
from freshet_serving.processor.extensions.redis.replies import encode_command, reader_of
from freshet_serving.processor.extensions.redis.slots import SLOTS_NBYTES, SlotRange, parse_slots

CONNECT_S = 2.0
"""Time limit of a connect, and of a login."""
ANSWER_NBYTES = 1 << 12

Address = tuple[str, int]
# redis-py's classes of connections have no common type that says what is used of them here.
AnyConnection = Any


class RedisConnector:
    def __init__(self, settings: OnlineStoreSettings) -> None:
        self._settings, self._where = settings, settings.address()

    def connect(self, address: Address) -> AnyConnection:
        """Return a connection to a node, or to the sentinels' master, that answers PING; raises what redis-py does."""
        if self._where.mode == SENTINEL:
            address = self._find_master()
        settings = self._settings
        login = {"username": settings.username or None, "password": settings.password() or None}
        connection = self._new_connection(address, login | {"db": self._where.database})
        ask(connection, b"PING")
        return connection

    def _new_connection(self, address: Address, login: dict[str, Any]) -> AnyConnection:
        connection = self._describe_connection(address, login)
        try:
            connection.connect()
        except BaseException:
            # An error of TLS passes through redis-py, which leaves the socket open.
            connection.disconnect()
            raise
        return connection

    def _describe_connection(self, address: Address, login: dict[str, Any]) -> AnyConnection:
        options = connection_options(CONNECT_S) | login
        if self._where.mode == SOCKET:
            over_socket: Any = UnixDomainSocketConnection
            return over_socket(path=self._where.master, **options)
        options |= {"host": address[0], "port": address[1]}
        if not self._where.tls:
            return Connection(**options)
        settings = self._settings
        return SSLConnection(
            ssl_ca_certs=settings.ca_file or None,
            ssl_certfile=settings.cert_file or None,
            ssl_keyfile=settings.key_file or None,
            ssl_cert_reqs="required",
            ssl_check_hostname=True,
            **options,
        )

    def _find_master(self) -> Address:
        failure: Exception = exceptions.ConnectionError()
        for address in self._where.hosts:
            try:
                sentinel = self._new_connection(address, {})
                reply = ask(sentinel, b"SENTINEL GET-MASTER-ADDR-BY-NAME " + self._where.master.encode())
                sentinel.disconnect()
                host, port = reply
                return host.decode(), int(port)
            except Exception as error:
                failure = error
        raise failure


def ask(connection: AnyConnection, command: bytes, max_nbytes: int = ANSWER_NBYTES) -> Any:
    """Send a command of words without spaces, and return its reply.

    Closes the connection if that fails, and raises whatever redis-py does.
    """
    try:
        reader = reader_of(connection)
        reader.begin(time.monotonic() + CONNECT_S, max_nbytes)
        connection._sock.sendall(encode_command(command.split()))
        reply = reader.read_response()
        if isinstance(reply, Exception):
            raise reply
        return reply
    except BaseException:
        connection.disconnect()
        raise


def ask_slots(connection: AnyConnection, address: Address) -> list[SlotRange] | None:
    """Ask a node of a cluster which node serves which slots; None if its reply does not say."""
    return parse_slots(ask(connection, b"CLUSTER SLOTS", SLOTS_NBYTES), address[0])


def is_usable(connection: AnyConnection) -> bool:
    """Return True unless an idle connection was closed by the server, or has something to read."""
    sock = connection._sock
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if not poll.poll(0):
        return True
    try:
        sock.settimeout(0)
        sock.recv(1)
        return False
    except (BlockingIOError, SSLWantReadError):
        # There was nothing, or something of TLS itself, such as a session ticket.
        return True
    except OSError:
        return False
