"""Store rows on a Redis server or a Redis Cluster, through redis-py's connections.

There is one connection pool per node, shared by the process. A thread takes a connection, sends, reads every reply and
returns it; one that failed in between is closed first, so a reply can never reach another caller.

A batch is one round trip: commands are grouped by node (in a cluster, by slot within a node), sent to every node, and
only then are replies read, all within `timeout_s` and as many bytes as the requested values can take, or they are lost
(processor.extensions.redis); a new connection has the same time again for its handshake. Nothing is retried. Every node
has its circuit breaker, so a node that hangs, drips or sends nonsense delays few batches, and a cluster that lost a
node still serves the others' rows. Any exception of redis-py counts as the node's failure.

In a cluster, CLUSTER SLOTS is requested at first use, when a node answers MOVED (the commands that moved are then sent
once more), and after a node failed, at most once a second. While a slot migrates, its buckets may be unreachable (ASK,
TRYAGAIN) for a moment and count as lost.

Rejected: redis-py's own cluster client, which retries each command of a failed node by itself, one after another, and
so has no bound in time; reading from replicas (a table is immutable, but a replica may lag behind a push).

The URL may contain a password: it, and redis-py's messages about it, are never logged and never part of an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis import exceptions
from redis.connection import Connection, ConnectionPool
from redis.crc import key_slot

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.extensions.redis.circuit_breaker import CircuitBreaker
from freshet_serving.processor.extensions.redis.connections import CircuitOpen, connection_options, describe
from freshet_serving.processor.extensions.redis.replies import MalformedReply, MovedRedirect, encode_command, reader_of
from freshet_serving.processor.extensions.redis.slots import SLOTS, SLOTS_NBYTES, nodes_by_slot, parse_slots
from freshet_serving.processor.tables.row_store import StoreReply

KEYS_PER_COMMAND = 1024
REFRESH_S = 1.0

ACK_NBYTES = 1 << 10
"""Size limit of one reply without a value: a number, OK, an error, a value's frame."""

Command = tuple[bytes, ...]


class ReplyLimits(NamedTuple):
    """Limits of a batch's replies: time.monotonic() at their end, and bytes from one node."""

    end_s: float
    max_nbytes: int


class RedisNode:
    """One Redis server: its connections and its circuit breaker."""

    def __init__(self, pool: ConnectionPool, clock: Clock) -> None:
        self.pool = pool
        self.breaker = CircuitBreaker(clock)

    def send_commands(self, commands: Sequence[Command], bound: ReplyLimits) -> Connection:
        """Send commands and return the connection to read their replies from; RedisError if there is none."""
        try:
            connection = self.pool.get_connection()
        except exceptions.RedisError:
            raise
        except Exception as error:
            # The client reads files of its own for a new connection, and a handshake may return anything.
            raise exceptions.ConnectionError(type(error).__name__) from None
        try:
            reader_of(connection).begin(*bound)
            connection.send_packed_command([encode_command(command) for command in commands])
        except BaseException:
            self.give_up(connection)
            raise
        return connection

    def give_up(self, connection: Connection) -> None:
        """Close a connection on which replies may still arrive."""
        connection.disconnect()
        self.pool.release(connection)

    def finish(self, connection: Connection, count: int) -> list[Any]:
        """Read replies to commands of send_commands() and return the connection to the pool.

        An error reply is an exception that is not raised. Raises RedisError if a reply cannot be read.
        """
        replies: list[Any] = []
        try:
            for _ in range(count):
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    replies.append(error)
        except BaseException as error:
            self.give_up(connection)
            if isinstance(error, Exception) and not isinstance(error, exceptions.RedisError):
                raise MalformedReply(type(error).__name__) from None
            raise
        self.pool.release(connection)
        return replies

    def ask(self, command: Command, bound: ReplyLimits) -> Any:
        """Send one command and return its reply; raise RedisError if there is none."""
        return self.finish(self.send_commands([command], bound), 1)[0]


class RedisStore:
    """A RowStore on Redis: small values by key."""

    def __init__(self, url: str, timeout_s: float, clock: Clock) -> None:
        """Prepare a store; it connects at first use. Raises BadInput if the URL is not valid.

        `timeout_s` is the time limit of a new connection, and of all replies of a batch.
        """
        scheme, _, rest = url.partition("://")
        self._cluster = scheme.endswith("+cluster")
        self._clock, self._timeout_s = clock, timeout_s
        options = connection_options(timeout_s)
        try:
            pool = ConnectionPool.from_url(f"{scheme.removesuffix('+cluster')}://{rest}", **options)
            # Override the URL's own options.
            pool.connection_kwargs.update(options)
        except Exception:
            # Messages of urllib and redis-py about a URL may quote its password.
            raise BadInput("remote.url: expected redis://[user:password@]host:port[/db]") from None
        self._seed = RedisNode(pool, clock)
        self._nodes: dict[tuple[str, int], RedisNode] = {}
        self._slots: list[RedisNode | None] = [None] * SLOTS
        self._stale = self._cluster
        self._refreshed_at_s = -REFRESH_S
        self._refreshing = threading.Lock()

    def fetch(self, keys: Sequence[bytes], max_nbytes: int) -> StoreReply:
        """Fetch values, together at most `max_nbytes`, None for each that is unavailable; a failure is not raised."""
        values: list[bytes | None] = [None] * len(keys)
        problem = ""
        groups = self._groups(keys)
        commands = [(keys[group[0]], (b"MGET", *(keys[i] for i in group))) for group in groups]
        # The frame of a value takes fewer bytes than its key plus a few.
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
        """Return the value of one key, at most `max_nbytes`, or None; raises NotReady."""
        value = self._must([(key, (b"GET", key))], max_nbytes)[0]
        return value if isinstance(value, bytes) else None

    def write(self, values: Mapping[bytes, bytes]) -> None:
        keys = list(values)
        commands = []
        for group in self._groups(keys):
            pairs = [part for i in group for part in (keys[i], values[keys[i]])]
            commands.append((keys[group[0]], (b"MSET", *pairs)))
        self._must(commands)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove keys; Redis frees their memory in the background (UNLINK). Raises NotReady."""
        self._must([(keys[g[0]], (b"UNLINK", *(keys[i] for i in g))) for g in self._groups(keys)])

    def close(self) -> None:
        for node in [self._seed, *self._nodes.values()]:
            node.pool.disconnect()

    def _must(self, commands: list[tuple[bytes, Command]], max_nbytes: int = 0) -> list[Any]:
        # A push may take this long for each of its commands: no request waits for it.
        replies = self._run(commands, max_nbytes + ACK_NBYTES * len(commands), len(commands))
        for reply in replies:
            if isinstance(reply, Exception):
                raise NotReady(f"the row store {describe(reply)}")
        return replies

    def _groups(self, keys: Sequence[bytes]) -> list[list[int]]:
        """Group the positions of keys that one command may name: in a cluster, those with the same hash tag."""
        by_tag: dict[bytes, list[int]] = {}
        if self._cluster:
            for i, key in enumerate(keys):
                by_tag.setdefault(key[: key.find(b"}") + 1], []).append(i)
        else:
            by_tag[b""] = list(range(len(keys)))
        return [g[at : at + KEYS_PER_COMMAND] for g in by_tag.values() for at in range(0, len(g), KEYS_PER_COMMAND)]

    def _run(self, commands: list[tuple[bytes, Command]], max_nbytes: int, timeouts: int = 1) -> list[Any]:
        """Return replies in order, an exception for each command that failed. A command comes with a key it names."""
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
        """Fetch the slot map, from known nodes first; keep the old one if none answers.

        Unless slots are known to have moved, it does so at most once a second, and not if another thread just did.
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
                ranges = parse_slots(reply, str(node.pool.connection_kwargs.get("host", "localhost")))
                if ranges is not None:
                    self._slots, self._stale = nodes_by_slot(ranges, self._node), False
                    return

    def _node(self, host: str, port: int) -> RedisNode:
        node = self._nodes.get((host, port))
        if node is None:
            seed = self._seed.pool
            options = seed.connection_kwargs | {"host": host, "port": port}
            pool = ConnectionPool(connection_class=seed.connection_class, **options)
            node = self._nodes[host, port] = RedisNode(pool, self._clock)
        return node
