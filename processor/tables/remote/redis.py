"""A RowStore on a Redis server or a Redis Cluster, through redis-py's connections.

Who owns what: one pool of connections a node, shared by the process. A thread takes a connection, sends, reads every
reply, gives it back; one that failed in between is closed first, so a reply can never reach another caller.

A batch is one round trip: commands are grouped by node (in a cluster, by slot within a node), sent to every node, and
only then read. All of its replies are there within `timeout_s`, and in as many bytes as what was asked for can take
(processor.tables.remote.replies), or they are lost; a new connection has as long again for its handshake. Nothing is
retried; every node has its breaker, so one that hangs, drips or sends nonsense holds up few batches, and a cluster
that lost a node still serves the others' rows. Whatever redis-py raises counts as the node's failure.

In a cluster, CLUSTER SLOTS tells which node serves what. It is asked for at first use, when a node answers MOVED (the
commands that moved are then sent once more), and after a node failed, at most once a second. While a slot migrates,
its buckets may be out of reach (ASK, TRYAGAIN) for a moment and count as lost.

Refused: redis-py's own cluster client, which retries each command of a failed node by itself, one after another, and
so has no bound in time; reading from replicas (a table is immutable, but a replica that lags behind a push is not).

The URL may hold a password: it, and what redis-py says about it, is never logged and never in an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool
from redis.crc import key_slot
from redis.retry import Retry

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.tables.remote.circuit_breaker import CircuitBreaker
from freshet_serving.processor.tables.remote.replies import MalformedReply, MovedRedirect, ReplyReader, reader_of
from freshet_serving.processor.tables.remote.store import StoreReply

SLOTS = 16384
KEYS_PER_COMMAND = 1024
REFRESH_S = 1.0

ACK_NBYTES = 1 << 10
"""Of one reply that carries no value: a number, OK, an error, a value's frame."""
SLOTS_NBYTES = 4 << 20

Command = tuple[bytes, ...]


class ReplyLimits(NamedTuple):
    """What a batch's replies may take: time.monotonic() at their end, and bytes of one node's."""

    end_s: float
    max_nbytes: int


class CircuitOpen(exceptions.RedisError):
    """Raised for a node whose breaker is open."""


class RedisNode:
    """One Redis server: its connections and its breaker."""

    def __init__(self, pool: ConnectionPool, clock: Clock) -> None:
        self.pool = pool
        self.breaker = CircuitBreaker(clock)

    def send_commands(self, commands: Sequence[Command], bound: ReplyLimits) -> Connection:
        """A connection with the commands sent on it, whose replies are bound so; raises RedisError."""
        try:
            connection = self.pool.get_connection()
        except exceptions.RedisError:
            raise
        except Exception as error:
            # The client reads files of its own for a new connection, and a handshake may answer anything.
            raise exceptions.ConnectionError(type(error).__name__) from None
        try:
            reader_of(connection).begin(*bound)
            connection.send_packed_command([encode(command) for command in commands])
        except BaseException:
            self.give_up(connection)
            raise
        return connection

    def give_up(self, connection: Connection) -> None:
        """Closes a connection on which replies may still arrive."""
        connection.disconnect()
        self.pool.release(connection)

    def finish(self, connection: Connection, count: int) -> list[Any]:
        """Replies to `count` commands, an error reply as an exception; raises RedisError when one cannot be read."""
        replies: list[Any] = []
        try:
            for _ in range(count):
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    replies.append(error)
        except exceptions.RedisError:
            self.give_up(connection)
            raise
        except Exception as error:
            self.give_up(connection)
            raise MalformedReply(type(error).__name__) from None
        except BaseException:
            self.give_up(connection)
            raise
        self.pool.release(connection)
        return replies

    def ask(self, command: Command, bound: ReplyLimits) -> Any:
        """The reply to one command; raises RedisError."""
        return self.finish(self.send_commands([command], bound), 1)[0]


class RedisStore:
    """Small values by key in Redis; see RowStore."""

    def __init__(self, url: str, timeout_s: float, clock: Clock) -> None:
        """url: see RemoteConfig. Connects at first use."""
        scheme, _, rest = url.partition("://")
        self._cluster = scheme.endswith("+cluster")
        self._clock, self._timeout_s = clock, timeout_s
        options = {
            "parser_class": ReplyReader,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "decode_responses": False,
        }
        try:
            pool = ConnectionPool.from_url(f"{scheme.removesuffix('+cluster')}://{rest}", **options)
            # Also where the URL's own options say otherwise.
            pool.connection_kwargs.update(options)
        except Exception:
            # What urllib and redis-py say about a URL may quote its password.
            raise BadInput("remote.url: redis://[user:password@]host:port[/db] wanted") from None
        self._seed = RedisNode(pool, clock)
        self._nodes: dict[tuple[str, int], RedisNode] = {}
        self._slots: list[RedisNode | None] = [None] * SLOTS
        self._stale = self._cluster
        self._refreshed_at_s = -REFRESH_S
        self._refreshing = threading.Lock()

    def fetch(self, keys: Sequence[bytes], max_nbytes: int) -> StoreReply:
        """Values by key, None where one could not be had; never raises for what Redis does."""
        values: list[bytes | None] = [None] * len(keys)
        problem = ""
        groups = self._groups(keys)
        commands = [(keys[group[0]], (b"MGET", *(keys[i] for i in group))) for group in groups]
        # The frame of a value takes fewer bytes than its key, and some more.
        replies = self._run(commands, max_nbytes + 32 * len(keys) + ACK_NBYTES * len(groups))
        for group, reply in zip(groups, replies):
            if isinstance(reply, Exception):
                problem = problem or describe(reply)
            elif isinstance(reply, list) and len(reply) == len(group):
                for i, value in zip(group, reply):
                    if isinstance(value, bytes):
                        values[i] = value
        return StoreReply(values, problem)

    def read(self, key: bytes, max_nbytes: int) -> bytes | None:
        """The value of one key, or None; raises NotReady."""
        value = self._must([(key, (b"GET", key))], max_nbytes)[0]
        return value if isinstance(value, bytes) else None

    def write(self, values: Mapping[bytes, bytes]) -> None:
        """Stores all values; raises NotReady."""
        keys = list(values)
        commands = []
        for group in self._groups(keys):
            pairs = [part for i in group for part in (keys[i], values[keys[i]])]
            commands.append((keys[group[0]], (b"MSET", *pairs)))
        self._must(commands)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Removes keys; their memory is freed behind Redis' back (UNLINK). Raises NotReady."""
        self._must([(keys[g[0]], (b"UNLINK", *(keys[i] for i in g))) for g in self._groups(keys)])

    def close(self) -> None:
        for node in [self._seed, *self._nodes.values()]:
            node.pool.disconnect()

    def _must(self, commands: list[tuple[bytes, Command]], max_nbytes: int = 0) -> list[Any]:
        # What a push writes may take as long for each command: no request waits for it.
        replies = self._run(commands, max_nbytes + ACK_NBYTES * len(commands), len(commands))
        for reply in replies:
            if isinstance(reply, Exception):
                raise NotReady(f"the row store {describe(reply)}")
        return replies

    def _groups(self, keys: Sequence[bytes]) -> list[list[int]]:
        """Positions of keys that one command may name: in a cluster, those of one hash tag."""
        by_tag: dict[bytes, list[int]] = {}
        if self._cluster:
            for i, key in enumerate(keys):
                by_tag.setdefault(key[: key.find(b"}") + 1], []).append(i)
        else:
            by_tag[b""] = list(range(len(keys)))
        return [g[at : at + KEYS_PER_COMMAND] for g in by_tag.values() for at in range(0, len(g), KEYS_PER_COMMAND)]

    def _run(self, commands: list[tuple[bytes, Command]], max_nbytes: int, timeouts: int = 1) -> list[Any]:
        """Replies in order, an exception in the place of each that failed. A command comes with a key it names."""
        bound = self._bound(max_nbytes, timeouts)
        replies = self._send(commands, bound)
        moved = [i for i, reply in enumerate(replies) if isinstance(reply, MovedRedirect)]
        if moved:
            self._refresh(moved=True)
            for i, reply in zip(moved, self._send([commands[i] for i in moved], bound)):
                replies[i] = reply
        return replies

    def _bound(self, max_nbytes: int, timeouts: int = 1) -> ReplyLimits:
        return ReplyLimits(time.monotonic() + timeouts * self._timeout_s, max_nbytes)

    def _send(self, commands: list[tuple[bytes, Command]], bound: ReplyLimits) -> list[Any]:
        replies: list[Any] = [exceptions.ConnectionError()] * len(commands)
        jobs: dict[RedisNode, list[int]] = {}
        for i, node in enumerate(self._route([key for key, _ in commands])):
            if node is not None:
                jobs.setdefault(node, []).append(i)
        opened: dict[RedisNode, Connection] = {}
        try:
            for node, chosen in jobs.items():
                failure: Exception = CircuitOpen()
                if node.breaker.allow():
                    try:
                        opened[node] = node.send_commands([commands[i][1] for i in chosen], bound)
                        continue
                    except exceptions.RedisError as error:
                        failure = error
                        self._failed(node)
                for i in chosen:
                    replies[i] = failure
            for node, chosen in jobs.items():
                if node not in opened:
                    continue
                try:
                    answers = node.finish(opened.pop(node), len(chosen))
                    node.breaker.succeeded()
                except exceptions.RedisError as error:
                    answers = [error] * len(chosen)
                    self._failed(node)
                for i, answer in zip(chosen, answers):
                    replies[i] = answer
        finally:
            for node, connection in opened.items():
                node.give_up(connection)
        return replies

    def _failed(self, node: RedisNode) -> None:
        node.breaker.failed()
        self._stale = self._cluster

    def _route(self, keys: list[bytes]) -> list[RedisNode | None]:
        if not self._cluster:
            return [self._seed] * len(keys)
        if self._stale:
            self._refresh()
        slots = self._slots
        return [slots[key_slot(key)] for key in keys]

    def _refresh(self, moved: bool = False) -> None:
        """Asks the nodes, those known first, which of them serves which slots; keeps what it knows if none answers.

        Unless slots are known to have moved, it asks at most once a second, and not when another thread just did.
        """
        with self._refreshing:
            now_s = self._clock.now_s()
            if not moved and not (self._stale and now_s >= self._refreshed_at_s + REFRESH_S):
                return
            self._refreshed_at_s = now_s
            for node in [*dict.fromkeys(n for n in self._slots if n is not None), self._seed]:
                if not node.breaker.allow():
                    continue
                try:
                    reply = node.ask((b"CLUSTER", b"SLOTS"), self._bound(SLOTS_NBYTES))
                except exceptions.RedisError:
                    node.breaker.failed()
                    continue
                node.breaker.succeeded()
                slots = self._parse_slots(reply, node)
                if slots is not None:
                    self._slots, self._stale = slots, False
                    return

    def _parse_slots(self, reply: Any, asked: RedisNode) -> list[RedisNode | None] | None:
        """Nodes by slot from a reply to CLUSTER SLOTS; None when it is not one."""
        slots: list[RedisNode | None] = [None] * SLOTS
        own = str(asked.pool.connection_kwargs.get("host", "localhost"))
        try:
            for first, last, (host, port, *_), *_ in reply:
                if not 0 <= first <= last < SLOTS:
                    return None
                node = self._node(host.decode() if host else own, int(port))
                slots[first : last + 1] = [node] * (last + 1 - first)
        except (TypeError, ValueError, AttributeError):
            # Not a list of such, an error reply among them.
            return None
        return slots

    def _node(self, host: str, port: int) -> RedisNode:
        node = self._nodes.get((host, port))
        if node is None:
            seed = self._seed.pool
            options = seed.connection_kwargs | {"host": host, "port": port}
            pool = ConnectionPool(connection_class=seed.connection_class, **options)
            node = self._nodes[host, port] = RedisNode(pool, self._clock)
        return node


def encode(command: Command) -> bytes:
    """A command as Redis reads it; redis-py's packer takes any type and several times as long."""
    parts = [b"*%d\r\n" % len(command)]
    for part in command:
        parts += (b"$%d\r\n" % len(part), part, b"\r\n")
    return b"".join(parts)


def describe(error: Exception) -> str:
    """Describes an error in a few words; redis-py's own messages hold addresses."""
    for kind, text in (
        (CircuitOpen, "is left alone after failures"),
        (exceptions.TimeoutError, "did not answer in time"),
        (exceptions.AuthenticationError, "refused the credentials"),
        (exceptions.BusyLoadingError, "is still loading its data"),
        (exceptions.ConnectionError, "cannot be reached"),
        (exceptions.OutOfMemoryError, "is out of memory"),
        (MalformedReply, "sent what is no reply to what it was asked"),
    ):
        if isinstance(error, kind):
            return text
    return "answered with an error"
