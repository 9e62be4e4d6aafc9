"""One connection: what becomes a request, what it may cost before, how long it is waited for, and how it ends."""

import errno
import json
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.serving.front.resource_limits import SPARE_NBYTES, BodyMemory
from freshet_serving.serving.http.connection import (
    BODY_NBYTES_S,
    BODY_S,
    HEAD_S,
    KEEP_ALIVE_S,
    MAX_UNREAD_NBYTES,
    DeadlineTimer,
)
from freshet_serving.serving.http.connection_draining import LINGER_S
from freshet_serving.serving.http.http_head import MAX_FIELDS, MAX_HEAD_NBYTES
from tests.serving.http.data_app import BODY
from tests.serving.http.talking import HandLoop, Talk, echo

UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
SCORED = b'{"predictions": [[7.5]]}'


def post(body=b"", path=b"/echo", more=b"", version=b"1.1"):
    head = b"POST %s HTTP/%s\r\nhost: x\r\ncontent-length: %d\r\n%s\r\n" % (path, version, len(body), more)
    return head + body


def predict(body=BODY, more=b"", version=b"1.1"):
    return post(body, b"/v1/models/ctr:predict", more, version)


def chunked(body, size, path=b"/echo", more=b""):
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n%s\r\n" % (path, more)
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


def get(path=b"/echo", more=b""):
    return b"GET %s HTTP/1.1\r\nhost: x\r\n%s\r\n" % (path, more)


@pytest.fixture(params=["an application", "predictions"])
def talk(request):
    """Both kinds of connection: a port's over an application, and a data port's."""
    with Talk(echo) if request.param == "an application" else Talk(max_body_bytes=1 << 20) as made:
        made.ask = post if request.param == "an application" else predict
        yield made


@pytest.fixture
def echoing():
    with Talk(echo) as made:
        yield made


@pytest.fixture
def predicting():
    with Talk(max_body_bytes=1 << 20) as made:
        yield made


def test_request_is_passed_to_the_application(echoing):
    echoing.send(post(b"body", b"/a%20b?q=1"))
    assert echoing.replies() == [(200, {"content-length": "20"}, b"POST /a%20b?q=1 body")]


@pytest.mark.parametrize("more", [UPGRADE, b"connection: upgrade\r\nupgrade: websocket\r\n", b"upgrade: h2c\r\n"])
def test_upgrade_is_ignored_and_a_separate_body_is_read(talk, more):
    for _ in range(3):
        head, end, body = talk.ask(BODY, more=more).partition(b"\r\n\r\n")
        assert talk.send(head + end, body).statuses() == [200]
        assert talk.send(head + end + body).statuses() == [200]
    assert not talk.ended


def test_body_after_an_upgrade_is_not_a_request(talk):
    hidden = get(b"/hidden")
    talk.send(talk.ask(hidden, more=UPGRADE)[: -len(hidden)])
    talk.send(hidden)
    assert len(talk.replies()) == 1


def test_chunks_after_an_upgrade_are_the_body(echoing, predicting):
    echoing.send(chunked(b"a body", 2, more=UPGRADE))
    assert echoing.replies()[0][2] == b"POST /echo? a body"
    predicting.send(chunked(BODY, 5, b"/v1/models/ctr:predict", UPGRADE))
    assert json.loads(predicting.replies()[0][2]) == json.loads(SCORED)


def test_connect_is_refused_and_its_remainder_not_read(talk):
    talk.send(b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n" + get())
    assert talk.statuses() == [501]
    assert talk.ended


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\nhost: x\n\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: \x00",
        post(b"x", more=b"transfer-encoding: chunked\r\n"),
        post(b"x", more=b"content-length: 1\r\n"),
        get(more=b"transfer-encoding: chunked\r\n") + b"zz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_malformed_request_is_refused_and_ends_the_connection(talk, data):
    talk.send(data, get())
    ((status, headers, body),) = talk.replies()
    assert status in (400, 505)
    assert headers["connection"] == "close"
    assert "error" in json.loads(body)
    assert talk.transport.said == ["eof"]


REQUESTS = (
    get,
    lambda: get(more=UPGRADE),
    lambda: post(b"some body"),
    lambda: post(b"a longer body" * 40, more=UPGRADE),
    lambda: chunked(b"a body in chunks", 3, more=UPGRADE),
    lambda: b"\r\n" + post(b""),
    lambda: post(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", more=b"expect: nothing\r\n"),
)
PREDICTS = (
    predict,
    lambda: predict(more=UPGRADE),
    lambda: predict(b"{"),
    lambda: chunked(BODY, 7, b"/v1/models/ctr:predict"),
    lambda: get(b"/v2/health/live"),
    lambda: chunked(b"{}", 1, b"/v2/repository/index"),
)


def answers(kind, stream, cuts, patience_s=0.0):
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    with Talk(echo) if kind is REQUESTS else Talk() as talk:
        for start, stop in zip(edges, edges[1:]):
            talk.send(stream[start:stop])
        for _ in range(30):
            talk.pump()
        # What is left without an end is given up.
        talk.wait(patience_s)
        assert talk.bodies.nbytes == 0
        return [(status, headers.get("connection"), body) for status, headers, body in talk.replies()]


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from([REQUESTS, PREDICTS]),
    which=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 1500), max_size=8),
)
def test_valid_stream_split_anywhere_gives_equal_replies(kind, which, cuts):
    made = [kind[n % len(kind)]() for n in which]
    one_by_one = [reply for each in made for reply in answers(kind, each, [])]
    assert len(one_by_one) == len(made)
    assert answers(kind, b"".join(made), cuts) == one_by_one


@settings(max_examples=60, deadline=None)
@given(
    which=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 800), st.binary(max_size=3)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1500), max_size=4),
)
def test_broken_stream_is_refused_once_and_closed(which, changes, cuts):
    stream = bytearray(b"".join(PREDICTS[n]() for n in which))
    for at, put in changes:
        stream[at % len(stream) : at % len(stream) + len(put)] = put
    replies = answers(PREDICTS, bytes(stream), cuts, BODY_S + 1.0)
    assert all(connection is None for _, connection, _ in replies[:-1])
    assert all(status in (200, 400, 404, 405, 408, 413, 415, 431, 501, 503, 504, 505) for status, _, _ in replies)


def test_bytes_sent_one_at_a_time_make_a_request(talk):
    request = talk.ask(BODY, more=UPGRADE)
    talk.send(*[request[n : n + 1] for n in range(len(request))])
    assert talk.statuses() == [200]
    assert talk.loop.timers <= 4, "not one a byte"


def test_head_is_limited_in_bytes_and_fields(talk):
    talk.send(*[b"GET / HTTP/1.1\r\nhost: x\r\nx: ", *[b"y" * 1000] * (MAX_HEAD_NBYTES // 1000 + 1)])
    ((status, headers, _),) = talk.replies()
    assert (status, headers["connection"], talk.transport.said) == (431, "close", ["eof"])


def test_head_with_many_fields_is_refused(talk):
    talk.send(get(more=b"x: 1\r\n" * MAX_FIELDS))
    assert talk.statuses() == [431]


def test_trailers_are_counted_and_never_headers(echoing):
    echoing.send(chunked(b"body", 4)[:-2] + b"authorization: secret\r\n\r\n")
    assert echoing.statuses() == [200]
    echoing.send(chunked(b"body", 4)[:-2] + b"x: 1\r\n" * (MAX_FIELDS + 1) + b"\r\n")
    assert echoing.statuses() == [431]


def test_pipelined_requests_are_read_one_at_a_time(predicting):
    predicting.processor.hold = True
    predicting.send(predict() + predict() + predict()[:50])
    assert len(predicting.processor.held) == 1
    assert not predicting.transport.reading
    for _ in range(2):
        predicting.processor.release()
        predicting.loop.turn()
        assert predicting.statuses() == [200]
    assert predicting.transport.reading
    predicting.send(predict()[50:])
    assert len(predicting.processor.held) == 1


def test_next_request_waits_until_the_client_takes_its_replies(predicting):
    predicting.connection.pause_writing()
    predicting.send(predict(), predict())
    assert predicting.statuses() == []
    assert not predicting.transport.reading
    predicting.take()
    assert predicting.statuses() == [200, 200]


def test_connection_that_never_sends_is_closed(talk):
    talk.wait(KEEP_ALIVE_S - 1)
    assert not talk.ended
    talk.wait(1)
    assert talk.transport.said == ["eof"]
    talk.wait(LINGER_S)
    assert not talk.connections


def test_idle_connection_is_closed_after_the_keep_alive_time(talk):
    for _ in range(10):
        assert talk.send(talk.ask(BODY)).statuses() == [200]
        talk.wait(10)
    assert talk.loop.timers <= 4, "one timer a keep-alive time, not one a request"
    talk.wait(KEEP_ALIVE_S - 11)
    assert not talk.ended
    talk.wait(1)
    assert talk.transport.said == ["eof"]
    assert talk.replies() == []


def test_ended_timer_never_fires_and_a_moved_deadline_once():
    with closing(HandLoop()) as loop:
        fired_s = []
        ended, moved = (DeadlineTimer(loop, lambda: fired_s.append(loop.now_s)) for _ in range(2))
        ended.wait(5.0)
        ended.end()
        for seconds in (75.0, 20.0, 30.0):
            moved.wait(seconds)
        for _ in range(100):
            loop.now_s += 1.0
            loop.turn(2)
        assert fired_s == [30.0]


def test_proxies_may_keep_connections_for_as_long_as_the_option_says():
    with Talk(echo, idle_s=700.0) as talk:
        talk.wait(10 * KEEP_ALIVE_S - 60)
        assert not talk.ended
        assert talk.send(post(BODY)).statuses() == [200]
        talk.wait(699)
        assert not talk.ended
        talk.wait(1)
        assert talk.transport.said == ["eof"]


def test_head_timeout_is_not_extended_by_single_bytes(talk):
    talk.wait(50)
    talk.send(b"POST ")
    for _ in range(int(HEAD_S) - 1):
        talk.wait(1)
        talk.send(b"/")
    assert not talk.ended
    talk.wait(1)
    assert talk.statuses() == [408]
    assert talk.transport.said == ["eof"]


def test_empty_lines_do_not_keep_a_connection_open(talk):
    for _ in range(int(KEEP_ALIVE_S) + 1):
        talk.wait(1)
        talk.send(b"\r\n")
    assert talk.ended


def test_body_is_awaited_while_it_arrives_fast_enough(talk):
    request = talk.ask(b" " * (2 * BODY_NBYTES_S))
    talk.send(request[:200])
    talk.wait(BODY_S - 1)
    talk.send(request[200 : 200 + BODY_NBYTES_S])
    talk.wait(1)
    assert not talk.ended
    talk.wait(BODY_S if talk.ask is post else 2)
    assert talk.statuses() == [408]
    assert talk.bodies.nbytes == 0


def test_slowly_dripping_body_is_refused(talk):
    talk.send(talk.ask(b" " * 1000)[:300])
    for _ in range(int(BODY_S)):
        talk.wait(1)
        talk.send(b" ")
    talk.wait(1)
    assert talk.statuses() == [408]


def test_body_timeout_pauses_while_the_application_does_not_read():
    async def slow(scope, receive, send):
        await scope["state"]["gate"].wait()
        await echo(scope, receive, send)

    import asyncio

    with Talk(slow) as talk:
        gate = asyncio.Event()
        talk.connection._app_state["gate"] = gate
        request = post(b"x" * 1_000_000)
        talk.send(request[:200_000], request[200_000:])
        assert not talk.transport.reading
        talk.wait(10 * BODY_S)
        assert not talk.ended
        gate.set()
        for _ in range(20):
            talk.pump()
        assert talk.statuses() == [200]


def test_request_in_flight_has_no_connection_timeout(predicting):
    predicting.processor.hold = True
    predicting.send(predict())
    predicting.wait(10 * KEEP_ALIVE_S)
    assert not predicting.ended
    predicting.processor.release()
    predicting.loop.turn()
    assert predicting.statuses() == [200]


@pytest.mark.parametrize(("sent", "said"), [(b"", []), (b"GET", [408]), (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", [])])
def test_waiting_connection_is_closed_sooner_under_pressure(echoing, sent, said):
    async def hurry(patience_s):
        echoing.connection.hurry(patience_s)

    echoing.send(sent)
    echoing.replies()
    echoing.wait(4)
    echoing.loop.run_until_complete(hurry(5.0))
    assert not echoing.ended
    echoing.wait(1)
    echoing.loop.run_until_complete(hurry(5.0))
    assert (echoing.statuses(), echoing.ended) == (said, True)


def test_request_in_flight_is_not_closed_under_pressure(predicting):
    predicting.processor.hold = True
    predicting.send(predict())
    predicting.wait(50)
    predicting.connection.hurry(5.0)
    assert not predicting.ended


def test_fast_body_is_not_closed_under_pressure(talk):
    async def hurry():
        talk.connection.hurry(5.0)

    request = talk.ask(b" " * 4 * BODY_NBYTES_S)
    talk.send(request[: 2 * BODY_NBYTES_S])
    for at in range(2, 4):
        talk.wait(1)
        talk.send(request[at * BODY_NBYTES_S : (at + 1) * BODY_NBYTES_S - 300])
        talk.wait(3)
        talk.loop.run_until_complete(hurry())
        assert not talk.ended
    talk.wait(10)
    talk.loop.run_until_complete(hurry())
    assert talk.ended


def test_client_that_half_closes_gets_its_replies(talk):
    talk.send(talk.ask(BODY) + talk.ask(BODY) + talk.ask(BODY)[:10])
    assert talk.statuses() == [200, 200]
    talk.half_close()
    assert talk.transport.said == ["close"]


@pytest.mark.parametrize("count", [1, 3])
def test_client_that_half_closes_while_waiting_gets_its_replies(predicting, count):
    predicting.processor.hold = True
    predicting.send(predict() * count)
    predicting.half_close()
    assert not predicting.ended
    for _ in range(count):
        predicting.processor.release()
        predicting.loop.turn()
    assert predicting.statuses() == [200] * count
    assert predicting.transport.said == ["close"]


def test_client_that_half_closes_gets_its_refusals_too(predicting):
    predicting.processor.hold = True
    predicting.send(predict() + predict(b"{") + chunked(b"{" * 2000, 1, b"/v1/models/ctr:predict") + predict(b"{"))
    predicting.half_close()
    predicting.processor.release()
    predicting.loop.turn(40)
    assert predicting.statuses() == [200, 400, 400, 400]
    assert predicting.transport.said == ["close"]


@pytest.mark.parametrize("sent", [10, -5])
def test_client_that_half_closes_mid_request_has_disconnected(talk, sent):
    talk.send(talk.ask(BODY)[:sent])
    talk.half_close()
    assert talk.transport.is_closing()
    assert talk.replies() == []
    assert talk.bodies.nbytes == 0


def test_refused_client_may_finish_sending_within_a_time_limit(talk):
    talk.send(b"nonsense\r\n\r\n", *[b"y" * 1000] * 10)
    assert talk.statuses() == [400]
    assert talk.transport.said == ["eof"]
    talk.wait(2 * LINGER_S)
    assert talk.transport.said == ["eof", "abort"]


def test_stalled_reader_is_dropped_and_a_slow_one_is_not(talk):
    talk.transport.unsent_nbytes = 100_000
    talk.send(talk.ask(BODY))
    for _ in range(5):
        talk.wait(KEEP_ALIVE_S)
        assert not talk.ended
        talk.transport.unsent_nbytes -= 1000
    talk.wait(2 * KEEP_ALIVE_S + 1)
    assert talk.transport.said == ["abort"]


def test_application_may_leave_the_body_unread():
    async def refusing(scope, receive, send):
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    with Talk(refusing) as talk:
        talk.send(post(b"x" * 1000)[:500])
        ((status, headers, _),) = talk.replies()
        assert (status, headers["connection"], talk.transport.said) == (401, "close", ["eof"])
    with Talk(refusing) as talk:
        talk.send(post(b"x" * 1000))
        ((status, headers, _),) = talk.replies()
        assert (status, headers.get("connection"), talk.transport.said) == (401, None, [])


def test_body_is_kept_until_its_reply_and_no_longer(predicting):
    predicting.processor.hold = True
    body = BODY + b" " * 1000
    for sent in ([predict(body)], [predict(body)[:400], predict(body)[400:]], [predict(body)]):
        predicting.send(*sent)
        assert predicting.bodies.nbytes == len(body)
        predicting.processor.release()
        predicting.loop.turn()
        assert predicting.statuses() == [200]
        assert predicting.bodies.nbytes == 0


def test_body_of_a_disconnected_client_is_kept_until_computed(predicting):
    predicting.processor.hold = True
    predicting.send(predict())
    predicting.transport.abort()
    predicting.loop.turn()
    assert predicting.bodies.nbytes == len(BODY)
    predicting.processor.release()
    predicting.loop.turn()
    assert predicting.bodies.nbytes == 0


def test_partial_bodies_are_refused_when_their_total_is_too_large():
    bodies = BodyMemory(1000)
    bodies.nbytes = 900
    with Talk(echo, bodies=bodies) as talk:
        request = post(b"x" * 400)
        talk.send(request[:-350])
        assert talk.statuses() == []
        talk.send(request[-350:-150])
        ((status, headers, _),) = talk.replies()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert bodies.nbytes == 900


def test_complete_request_fits_when_partial_ones_are_refused(predicting):
    predicting.bodies.nbytes += 200 << 20
    predicting.send(predict())
    assert predicting.statuses() == [503]
    predicting.bodies.nbytes -= SPARE_NBYTES
    with Talk(max_body_bytes=1 << 20) as talk:
        talk.bodies.nbytes += 150 << 20
        talk.send(predict())
        assert talk.statuses() == [200]


def test_body_in_tiny_chunks_yields_to_other_connections(echoing):
    body = bytes(range(256)) * 100
    request = chunked(body, 2)
    echoing.send(request)
    assert echoing.replies() == []
    echoing.loop.turn(60)
    assert echoing.replies()[0][2] == b"POST /echo? " + body


def test_tiny_chunks_cannot_accumulate_unread_bytes():
    async def taking(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass

    with Talk(taking) as talk:
        request = chunked(b"x" * 300_000, 1)
        pieces = [request[at : at + (256 << 10)] for at in range(0, len(request), 256 << 10)]
        talk.send(*pieces)
        for _ in range(40):
            talk.pump()
            assert len(talk.connection._unread) <= MAX_UNREAD_NBYTES + (256 << 10)


def test_draining_connection_says_so_in_its_last_reply(talk):
    talk.connection.draining = True
    talk.send(talk.ask(BODY) + talk.ask(BODY))
    assert [headers.get("connection") for _, headers, _ in talk.replies()] == [None, "close"]
    assert talk.ended


def test_refusal_is_not_the_last_reply_when_another_request_follows(predicting):
    predicting.connection.draining = True
    predicting.send(post(BODY, b"/v1/models/none:predict") + predict())
    replies = [(status, headers.get("connection")) for status, headers, _ in predicting.replies()]
    assert replies == [(404, None), (200, "close")]


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")], ids=["own", "mmap"])
def test_body_that_exceeds_memory_is_answered_with_503(error, predicting, monkeypatch):
    def add(self, piece):
        raise error

    monkeypatch.setattr("freshet_serving.serving.http.protocol.BodyBuffer.add", add)
    predicting.send(predict()[:-10], predict()[-10:-5], predict()[-5:])
    ((status, _, body),) = predicting.replies()
    assert (status, b"memory" in body, predicting.ended) == (503, True, True)
