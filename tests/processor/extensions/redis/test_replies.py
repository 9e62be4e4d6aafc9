"""Replies of a Redis that may be anybody, from a socket that a test fills."""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import exceptions

from freshet_serving.processor.extensions.redis import replies
from freshet_serving.processor.extensions.redis.replies import (
    MalformedReply,
    MovedRedirect,
    ReplyReader,
    encode_command,
)


class Wire:
    """A socket whose bytes come in pieces of a size; each takes its time."""

    def __init__(self, data, piece=1 << 20, piece_s=0.0, clock=None):
        self.data, self._piece, self._piece_s, self._clock = data, piece, piece_s, clock
        self.timeouts = []

    def settimeout(self, timeout_s):
        self.timeouts.append(timeout_s)

    def recv(self, most):
        if self._clock is not None:
            self._clock.now += self._piece_s
        most = min(most, self._piece)
        taken, self.data = self.data[:most], self.data[most:]
        return taken


def reading(wire, max_nbytes=1 << 20, end_s=None):
    reader = ReplyReader(0)
    reader.on_connect(SimpleNamespace(_sock=wire, socket_timeout=1.0))
    reader.begin(time.monotonic() + 10 if end_s is None else end_s, max_nbytes)
    return reader


def encoded(value):
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))
    return b"$%d\r\n%s\r\n" % (len(value), value)


VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda v: st.lists(v, max_size=4),
    max_leaves=20,
)


@settings(max_examples=50)
@given(st.lists(VALUES, max_size=5), st.integers(1, 50))
def test_replies_split_at_any_point_are_read(values, piece):
    reader = reading(Wire(b"".join(map(encoded, values)), piece))
    assert [reader.read_response() for _ in values] == values


@given(st.binary(max_size=60), st.integers(1, 20))
def test_arbitrary_bytes_raise_only_redis_errors(data, piece):
    reader = reading(Wire(data, piece), max_nbytes=50)
    with pytest.raises((exceptions.RedisError, TimeoutError)):
        list(iter(reader.read_response, object()))


@pytest.mark.parametrize(
    "data",
    [
        b"$9999999999999\r\nabc",
        b"*9999999999\r\n",
        b"$-2\r\n",
        b"*-2\r\n",
        b"*1\r\n" * 100,
        b"+" + b"x" * (1 << 17),
        b"$3\r\nabcde\r\n",
    ],
)
def test_oversized_or_invalid_reply_is_malformed(data):
    with pytest.raises(MalformedReply):
        reading(Wire(data)).read_response()


def test_reply_is_limited_to_exactly_the_allowed_bytes():
    data = encoded([b"abc", 1])
    assert reading(Wire(data), len(data)).read_response() == [b"abc", 1]
    with pytest.raises(MalformedReply):
        reading(Wire(data), len(data) - 1).read_response()


def test_slow_server_is_abandoned_at_the_deadline(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(replies, "time", SimpleNamespace(monotonic=lambda: clock.now))
    wire = Wire(encoded(b"x" * 1000), piece=1, piece_s=0.03, clock=clock)
    reader = reading(wire, end_s=100.05)
    with pytest.raises(TimeoutError):
        reader.read_response()
    assert clock.now < 100.05 + 2 * 0.03
    assert wire.timeouts[-1] <= 0.05


def test_error_replies_are_distinguished():
    reader = reading(Wire(b"-MOVED abc\r\n-ERR what\r\n-OOM no\r\n-NOAUTH\r\n"))
    kinds = [type(reader.read_response()) for _ in range(3)]
    assert kinds == [MovedRedirect, exceptions.ResponseError, exceptions.OutOfMemoryError]
    with pytest.raises(exceptions.AuthenticationError):
        reader.read_response()


def test_closed_connection_raises_an_error():
    with pytest.raises(exceptions.ConnectionError):
        reading(Wire(b"$3\r\nab")).read_response()


def test_late_thread_reads_what_arrived_in_time():
    reader = reading(Wire(b"$2\r\nab\r\n"), end_s=time.monotonic() - 1)
    assert reader.read_response() == b"ab"


def test_late_thread_looks_once_without_waiting():
    class Empty(Wire):
        def recv(self, most):
            assert self.timeouts[-1] == 0
            raise BlockingIOError

    with pytest.raises(TimeoutError):
        reading(Empty(b""), end_s=time.monotonic() - 1).read_response()
    wire = Wire(b"$2\r\nab\r\n", piece=1)
    with pytest.raises(TimeoutError):
        reading(wire, end_s=time.monotonic() - 1).read_response()
    assert wire.data == b"2\r\nab\r\n"


def test_words_keep_their_bytes_and_lengths():
    assert encode_command([b"GET", b"", b"a\r\n"]) == b"*3\r\n$3\r\nGET\r\n$0\r\n\r\n$3\r\na\r\n\r\n"
