"""Options of connections to Redis, and their failures in a few words.

redis-py's own messages contain addresses, and may quote a password: they are never logged and never part of an error.
"""

from __future__ import annotations

from ssl import SSLError
from typing import Any

from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from freshet_serving.processor.extensions.redis.replies import MalformedReply, ReplyReader


class CircuitOpen(exceptions.RedisError):
    """Raised for a node whose circuit breaker is open."""


def connection_options(timeout_s: float) -> dict[str, Any]:
    """Return options of a connection that retries nothing and whose replies are read by a ReplyReader.

    The time limit is that of its connect and of its handshake.
    """
    return {
        "parser_class": ReplyReader,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
    }


def describe(error: Exception) -> str:
    """Return what a server did to fail so, as a verb and what follows it."""
    for kind, text in (
        (CircuitOpen, "is not contacted after repeated failures (circuit breaker)"),
        ((exceptions.TimeoutError, TimeoutError), "did not answer in time"),
        (exceptions.AuthenticationError, "refused the credentials"),
        (exceptions.BusyLoadingError, "is still loading its data"),
        (SSLError, "failed the TLS handshake"),
        ((exceptions.ConnectionError, OSError), "cannot be reached"),
        (exceptions.OutOfMemoryError, "is out of memory"),
        (MalformedReply, "sent a malformed reply"),
    ):
        if isinstance(error, kind):
            return text
    return "answered with an error"
