"""Failures of Redis are described in words of our own."""

import ssl

import pytest
from redis import exceptions
from redis.connection import Connection

from freshet_serving.processor.extensions.redis.connections import CircuitOpen, connection_options, describe
from freshet_serving.processor.extensions.redis.replies import MalformedReply, ReplyReader, ReplyTooLarge


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CircuitOpen(), "is not contacted after repeated failures (circuit breaker)"),
        (exceptions.TimeoutError("secret"), "did not answer in time"),
        (TimeoutError("secret"), "did not answer in time"),
        (exceptions.AuthenticationError("secret"), "refused the credentials"),
        (exceptions.BusyLoadingError("secret"), "is still loading its data"),
        (ssl.SSLCertVerificationError("secret"), "failed the TLS handshake"),
        (exceptions.ConnectionError("secret"), "cannot be reached"),
        (ConnectionRefusedError("secret"), "cannot be reached"),
        (exceptions.OutOfMemoryError("secret"), "is out of memory"),
        (ReplyTooLarge("secret"), "sent a malformed reply"),
        (MalformedReply("secret"), "sent a malformed reply"),
        (exceptions.ResponseError("secret"), "answered with an error"),
        (ValueError("secret"), "answered with an error"),
    ],
)
def test_failure_is_described_without_its_message(error, words):
    assert describe(error) == words


def test_connection_retries_nothing_and_has_our_reader():
    connection = Connection(**connection_options(0.5))
    assert isinstance(connection._parser, ReplyReader)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.5, 0.5)
    assert connection.retry.get_retries() == 0
