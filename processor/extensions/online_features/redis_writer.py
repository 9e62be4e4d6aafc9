"""Write hashes to Redis (a server, a cluster, a master that sentinels name): pipelined, in pieces, by one thread.

Invariants
- send() returns once every command was answered without an error. Otherwise it raises, and nothing is known of what was
  done, so commands are such that they may be sent again.
- All that was sent since begin() was taken by the server processes that begin() named: a connection that fails is never
  replaced by send(). So who writes learns from begin() that a store was restarted, or its master replaced, and may
  have lost what it had acknowledged.
- A piece takes PIECE_NBYTES of memory, or one command's, and WRITE_S.
- Keys, addresses and redis-py's messages are never part of an error.

Rejected: waiting for replicas (WAIT), which says nothing about what survives a failover; transactions, of which a
history, one command, has no need.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from redis import exceptions
from redis.crc import key_slot

from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from freshet_serving.processor.extensions.online_features.redis_connector import (
    Address,
    AnyConnection,
    RedisConnector,
    ask,
    ask_slots,
    is_usable,
)
from freshet_serving.processor.extensions.online_features.store_settings import CLUSTER, OnlineStoreSettings
from freshet_serving.processor.extensions.redis.connections import describe
from freshet_serving.processor.extensions.redis.replies import MovedRedirect, encode_command, reader_of
from freshet_serving.processor.extensions.redis.slots import SLOTS, nodes_by_slot

WRITE_S = 10.0
PIECE_NBYTES = 1 << 20
REPLY_NBYTES = 64
"""Size limit of a reply to one command: a number, OK, or the beginning of an error."""
ERROR_NBYTES = 1 << 12
INFO_NBYTES = 1 << 16
RUN_ID = re.compile(rb"^run_id:([0-9a-f]{1,64})\r?$", re.MULTILINE)

Command = tuple[bytes, ...]
"""A command's words; the second is its key."""


class RedisWriter:
    def __init__(self, settings: OnlineStoreSettings) -> None:
        self._name, self._where = settings.name, settings.address()
        self._connector = RedisConnector(settings)
        self._open: dict[Address, AnyConnection] = {}
        self._slots: list[Address | None] = []
        self._ids = ""

    def begin(self) -> str:
        """Connect where no connection is left; return which database of which server processes it is.

        That is their run ids, empty for one that hides it, and the number of the database. Raises NotReady if the store
        cannot be reached.
        """
        if self._open and all(is_usable(connection) for connection in self._open.values()):
            return self._ids
        self.close()
        try:
            addresses: list[Address] = list(self._where.hosts) or [("", 0)]
            addresses = self._read_slots(addresses) if self._where.mode == CLUSTER else addresses[:1]
            run_ids = {address: self._connect(address) for address in addresses}
        except Exception as error:
            raise self._lost(error) from None
        self._ids = f"{','.join(sorted(run_ids.values()))}/{self._where.database}"
        return self._ids

    def send(self, commands: Sequence[Command]) -> list[int]:
        """Send commands in pieces and return their replies, which are numbers; 0 for OK.

        Commands of one key are done in their order. Raises NotReady if the store does not take them, BadInput if it has
        something other than a hash under a key.
        """
        replies = [0] * len(commands)
        by_node: dict[Address, list[int]] = {}
        for i, command in enumerate(commands):
            by_node.setdefault(self._route(command[1]), []).append(i)
        for address, chosen in by_node.items():
            piece, nbytes = list[int](), 0
            encoded = list[bytes]()
            for i in chosen:
                encoded.append(encode_command(commands[i]))
                piece.append(i)
                nbytes += len(encoded[-1])
                if nbytes >= PIECE_NBYTES or i == chosen[-1]:
                    for n, reply in zip(piece, self._exchange(address, encoded)):
                        replies[n] = reply
                    piece, encoded, nbytes = [], [], 0
        return replies

    def close(self) -> None:
        opened, self._open = self._open, {}
        for connection in opened.values():
            connection.disconnect()

    def _connect(self, address: Address) -> str:
        """Keep a new connection to a node, and return the run id of its process."""
        connection = self._connector.connect(address)
        run_id = ""
        try:
            if match := RUN_ID.search(ask(connection, b"INFO server", INFO_NBYTES)):
                run_id = match[1].decode()
        except exceptions.ResponseError:
            # Its user may not ask.
            connection = self._connector.connect(address)
        self._open[address] = connection
        return run_id

    def _read_slots(self, addresses: Sequence[Address]) -> list[Address]:
        """Read which node serves which slots, from any node; return the nodes."""
        failure: Exception = exceptions.ConnectionError()
        for address in addresses:
            try:
                connection = self._connector.connect(address)
                ranges = ask_slots(connection, address)
                connection.disconnect()
            except Exception as error:
                failure = error
                continue
            if ranges:
                self._slots = nodes_by_slot(ranges, lambda host, port: (host, port))
                return list(dict.fromkeys(node for node in self._slots if node is not None))
        raise failure

    def _route(self, key: bytes) -> Address:
        if self._where.mode != CLUSTER:
            return next(iter(self._open), ("", 0))
        node = self._slots[key_slot(key)] if len(self._slots) == SLOTS else None
        if node is None:
            raise self._lost(exceptions.ConnectionError())
        return node

    def _exchange(self, address: Address, encoded: Sequence[bytes]) -> list[int]:
        try:
            connection = self._open[address]
            reader = reader_of(connection)
            reader.begin(time.monotonic() + WRITE_S, ERROR_NBYTES + REPLY_NBYTES * len(encoded))
            connection._sock.sendall(b"".join(encoded))
            replies = [reader.read_response() for _ in encoded]
        except Exception as error:
            raise self._lost(error) from None
        except BaseException:
            self.close()
            raise
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._refused(reply)
        return [reply if isinstance(reply, int) else 0 for reply in replies]

    def _lost(self, error: Exception) -> NotReady:
        """Close all connections; return why."""
        self.close()
        if isinstance(error, FreshetError):
            return NotReady(str(error))
        if isinstance(error, KeyError):
            error = exceptions.ConnectionError()
        return NotReady(f"online store {self._name} {describe(error)}")

    def _refused(self, reply: Exception) -> FreshetError:
        """Close all connections; return what an error reply means."""
        self.close()
        where = f"online store {self._name}"
        if str(reply) == "WRONGTYPE":
            return BadInput(f"{where}: expected hashes under the keys of histories, got a value of another type")
        if isinstance(reply, MovedRedirect):
            return NotReady(f"{where} is moving slots to another node")
        if str(reply) == "NOPERM":
            return NotReady(f"{where} refuses its user a command: expected +hset, +hdel, +pexpire and +persist")
        return NotReady(f"{where} {describe(reply)}")
