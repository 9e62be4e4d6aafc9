"""Read hashes from Redis (a server, a cluster, a master that sentinels name) within a deadline of milliseconds.

Invariants
- A request never connects, resolves a name, logs in or looks for a master: one thread of the store, the opener, does
  all of this. A request takes a ready connection, waits for one until its deadline, or goes on without.
- Whatever the store does or sends, fetch() returns a reply or a Loss for each read, by its deadline.
- A connection on which anything is left, or went wrong, is closed; a reply never reaches another caller.
- Each node has its circuit breaker, with a short pause: after a stall (a snapshot, a failover) one late request in each
  pause costs less than features that nobody gets.
- What is wrong with one key (a value of another type, a value that is too large) is no failure of its node.
- Addresses, keys and redis-py's messages, which contain them, are never logged.

All commands are sent to all nodes before the first reply is read. Nothing is sent twice: in a cluster, a key that moved
is lost once, while the opener reads the new slots. Cost: one write and one read of a socket for each node.

Rejected: redis-py's clients and pools (they connect in the caller's thread, retry, and have no deadline for a reply);
one connection for all requests (a reply that is late would be late for all that come after it).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from redis import exceptions
from redis.crc import key_slot

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.extensions.online_features.online_store import (
    MAX_REPLY_NBYTES,
    HashRead,
    HashReply,
    Loss,
)
from freshet_serving.processor.extensions.online_features.redis_connector import (
    Address,
    AnyConnection,
    RedisConnector,
    ask_slots,
    is_usable,
)
from freshet_serving.processor.extensions.online_features.store_settings import CLUSTER, OnlineStoreSettings
from freshet_serving.processor.extensions.redis.circuit_breaker import CircuitBreaker
from freshet_serving.processor.extensions.redis.connections import describe
from freshet_serving.processor.extensions.redis.replies import (
    MalformedReply,
    MovedRedirect,
    ReplyTooLarge,
    encode_command,
    reader_of,
)
from freshet_serving.processor.extensions.redis.slots import SLOTS, nodes_by_slot

log = logging.getLogger("freshet.online")

OPEN_AFTER, PAUSE_S = 5, 0.02
RETRY_S = 0.1
"""Pause of the opener after a connect that failed."""
REFRESH_S = 1.0
LOG_EVERY_S = 10.0


class NodeConnections:
    """The ready connections to one node, and its circuit breaker. Thread-safe."""

    def __init__(self, address: Address, size: int, clock: Clock, ask_opener: threading.Event) -> None:
        self.address = address
        self.breaker = CircuitBreaker(clock, OPEN_AFTER, PAUSE_S)
        self._size, self._ask_opener = size, ask_opener
        self._changed = threading.Condition(threading.Lock())
        self._idle: deque[AnyConnection] = deque()
        self._open = self._waiting = self._failures = 0
        self.closed = False

    def take(self, end_s: float) -> AnyConnection | Loss:
        """Take a ready connection, waiting for one until `end_s` on time.monotonic(); give it back or discard it."""
        while True:
            with self._changed:
                connection = self._wait(end_s)
            if isinstance(connection, Loss):
                return connection
            if is_usable(connection):
                return connection
            self.discard(connection)

    def _wait(self, end_s: float) -> AnyConnection | Loss:
        failures = self._failures
        while not self._idle:
            left_s = end_s - time.monotonic()
            if self.closed or self._failures != failures:
                return Loss.UNREACHABLE
            if left_s <= 0:
                return Loss.LATE
            self._waiting += 1
            self._ask_opener.set()
            try:
                self._changed.wait(left_s)
            finally:
                self._waiting -= 1
        connection = self._idle.pop()
        if not self._idle and self._open < self._size:
            self._ask_opener.set()
        return connection

    def give_back(self, connection: AnyConnection) -> None:
        with self._changed:
            if not self.closed:
                self._idle.append(connection)
                self._changed.notify()
                return
        connection.disconnect()

    def discard(self, connection: AnyConnection) -> None:
        """Close a connection on which something may still arrive, and have another one opened."""
        connection.disconnect()
        with self._changed:
            self._open -= 1
        self._ask_opener.set()

    def lacks_one(self) -> bool:
        """Return True if a connection should be opened: one for each request that waits, and one to spare."""
        with self._changed:
            return len(self._idle) <= self._waiting and self._open < self._size and not self.closed

    def add(self, connection: AnyConnection) -> None:
        with self._changed:
            self._open += 1
        self.give_back(connection)

    def could_not_open(self) -> None:
        self.breaker.failed()
        with self._changed:
            self._failures += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            idle, self._idle = self._idle, deque()
            self._changed.notify_all()
        for connection in idle:
            connection.disconnect()


class RedisOnlineStore:
    def __init__(self, settings: OnlineStoreSettings, clock: Clock) -> None:
        """Begin to connect, on the opener's thread; returns at once, also if the store cannot be reached."""
        self._settings, self._clock = settings, clock
        self._connector, self._where = RedisConnector(settings), settings.address()
        self._ask_opener = threading.Event()
        self._lock = threading.Lock()
        self._nodes: dict[Address, NodeConnections] = {}
        self._slots: list[NodeConnections | None] = [None] * SLOTS
        self._slots_known = threading.Event()
        self._stale = self._where.mode == CLUSTER
        self._refreshed_at_s = self._logged_at_s = -LOG_EVERY_S
        self._closed = False
        self._single = None
        if self._where.mode != CLUSTER:
            self._single = self._node(self._where.hosts[0] if self._where.hosts else ("", 0))
        self._opener = threading.Thread(target=self._open_connections, name="freshet-online-store", daemon=True)
        self._opener.start()

    @property
    def is_open(self) -> bool:
        """True while a node's circuit breaker is open."""
        return any(node.breaker.is_open for node in list(self._nodes.values()))

    def fetch(self, reads: Sequence[HashRead], end_s: float) -> list[HashReply]:
        replies: list[HashReply] = [Loss.UNREACHABLE] * len(reads)
        jobs: dict[NodeConnections, list[int]] = {}
        for i, read in enumerate(reads):
            node = self._route(read.key, end_s)
            if node is not None:
                jobs.setdefault(node, []).append(i)
        sent: list[tuple[NodeConnections, AnyConnection, list[int]]] = []
        try:
            for node, chosen in jobs.items():
                connection = self._send(node, [reads[i] for i in chosen], end_s)
                if isinstance(connection, Loss):
                    for i in chosen:
                        replies[i] = connection
                else:
                    sent.append((node, connection, chosen))
            while sent:
                node, connection, chosen = sent[-1]
                answers = self._receive(node, connection, [len(reads[i].fields) for i in chosen], end_s)
                sent.pop()
                for i, answer in zip(chosen, answers):
                    replies[i] = answer
        finally:
            for node, connection, _ in sent:
                node.discard(connection)
        return replies

    def close(self) -> None:
        """Close the connections and end the opener, without waiting for a connect that is under way."""
        self._closed = True
        self._ask_opener.set()
        for node in list(self._nodes.values()):
            node.close()

    def _route(self, key: bytes, end_s: float) -> NodeConnections | None:
        if self._single is not None:
            return self._single
        if not self._slots_known.is_set():
            self._slots_known.wait(max(0.0, end_s - time.monotonic()))
        return self._slots[key_slot(key)]

    def _send(self, node: NodeConnections, reads: Sequence[HashRead], end_s: float) -> AnyConnection | Loss:
        if not node.breaker.allow():
            return Loss.NOT_ASKED
        connection = node.take(end_s)
        if isinstance(connection, Loss):
            if connection is Loss.LATE:
                self._failed(node)
            return connection
        try:
            reader_of(connection).begin(end_s, MAX_REPLY_NBYTES)
            connection._sock.sendall(b"".join(encode_read(read) for read in reads))
        except Exception as error:
            node.discard(connection)
            self._failed(node)
            return Loss.LATE if isinstance(error, TimeoutError) else Loss.UNREACHABLE
        except BaseException:
            node.discard(connection)
            raise
        return connection

    def _receive(
        self, node: NodeConnections, connection: AnyConnection, counts: Sequence[int], end_s: float
    ) -> list[HashReply]:
        """Read a reply for each count of fields; the replies after one that cannot be read are lost with it."""
        replies: list[HashReply] = []
        reader = reader_of(connection)
        try:
            for count in counts:
                reader.begin(end_s, MAX_REPLY_NBYTES)
                reply = reader.read_response()
                if isinstance(reply, MovedRedirect):
                    self._refresh_slots()
                replies.append(_checked(reply, count))
        except Exception as error:
            loss = _loss_of(error)
            node.discard(connection)
            if loss is Loss.TOO_LARGE:
                # The node did what it was asked for.
                node.breaker.succeeded()
            else:
                self._failed(node)
            replies.append(loss)
            rest = loss if loss is Loss.LATE else Loss.UNREACHABLE
            return replies + [rest] * (len(counts) - len(replies))
        node.breaker.succeeded()
        node.give_back(connection)
        return replies

    def _failed(self, node: NodeConnections) -> None:
        node.breaker.failed()
        if self._single is None:
            self._refresh_slots()

    def _refresh_slots(self) -> None:
        self._stale = True
        self._ask_opener.set()

    def _node(self, address: Address) -> NodeConnections:
        with self._lock:
            node = self._nodes.get(address)
            if node is None:
                node = NodeConnections(address, self._settings.pool_size, self._clock, self._ask_opener)
                self._nodes[address] = node
            return node

    # What follows runs on the opener's thread.

    def _open_connections(self) -> None:
        while not self._closed:
            self._ask_opener.clear()
            try:
                again = self._open_once()
            except Exception as error:
                self._log(error)
                again = True
            self._ask_opener.wait(RETRY_S if again else None)
            if again and not self._closed:
                # Requests that wait set the event at once: do not spin on a node that refuses.
                time.sleep(PAUSE_S)

    def _open_once(self) -> bool:
        """Open what is lacking; return True if something could not be opened."""
        again = False
        if self._stale:
            again = not self._read_slots()
        for node in list(self._nodes.values()):
            while not self._closed and node.lacks_one():
                try:
                    node.add(self._connector.connect(node.address))
                except Exception as error:
                    self._log(error)
                    node.could_not_open()
                    again = True
                    break
        return again

    def _read_slots(self) -> bool:
        """Read the slot map from any node, at most once in REFRESH_S; return True if it is fresh."""
        now_s = time.monotonic()
        if self._slots_known.is_set() and now_s < self._refreshed_at_s + REFRESH_S:
            return False
        self._refreshed_at_s = now_s
        node_addresses = [node.address for node in dict.fromkeys(self._slots) if node is not None]
        for address in dict.fromkeys([*node_addresses, *self._where.hosts]):
            try:
                connection = self._connector.connect(address)
                ranges = ask_slots(connection, address)
                connection.disconnect()
            except Exception as error:
                self._log(error)
                continue
            if ranges:
                slots = nodes_by_slot(ranges, lambda host, port: self._node((host, port)))
                self._stale = False
                self._slots = slots
                self._slots_known.set()
                self._drop_others(slots)
                return True
        return False

    def _drop_others(self, slots: list[NodeConnections | None]) -> None:
        serving = set(slots)
        with self._lock:
            gone = [node for node in self._nodes.values() if node not in serving]
            for node in gone:
                del self._nodes[node.address]
        for node in gone:
            node.close()

    def _log(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s >= self._logged_at_s + LOG_EVERY_S:
            self._logged_at_s = now_s
            reason = str(error) if isinstance(error, FreshetError) else f"it {describe(error)}"
            log.warning("online store %s: cannot connect: %s", self._settings.name, reason)


def encode_read(read: HashRead) -> bytes:
    return encode_command((b"HMGET", read.key, *read.fields))


def _checked(reply: Any, count: int) -> HashReply:
    if isinstance(reply, Exception):
        return Loss.WRONG_TYPE if str(reply) == "WRONGTYPE" else Loss.REFUSED
    if not isinstance(reply, list) or len(reply) != count:
        raise MalformedReply("not a reply to HMGET")
    if not all(value is None or isinstance(value, bytes) for value in reply):
        raise MalformedReply("not a reply to HMGET")
    if sum(len(value) for value in reply if value is not None) > MAX_REPLY_NBYTES:
        return Loss.TOO_LARGE
    return reply


def _loss_of(error: Exception) -> Loss:
    if isinstance(error, TimeoutError | exceptions.TimeoutError):
        return Loss.LATE
    if isinstance(error, MalformedReply):
        return Loss.TOO_LARGE if isinstance(error, ReplyTooLarge) else Loss.MALFORMED
    return Loss.UNREACHABLE
