"""Requests that are refused by their heads in overload: when that begins, what it says, and when it ends."""

from types import SimpleNamespace

import pytest

from freshet_serving.processor.errors import Overloaded
from freshet_serving.serving.http.guarded_protocol import GuardedProtocol
from freshet_serving.serving.http.protocol import PredictProtocol
from tests.serving.http.data_app import BODY
from tests.serving.http.talking import Prompt, Talk

FULL = Overloaded("queue: no room", 3.2)


def request(*lines):
    head = [b"POST /v1/models/ctr:predict HTTP/1.1", b"host: x", *lines, b"content-length: %d" % len(BODY)]
    return b"\r\n".join(head) + b"\r\n\r\n" + BODY


@pytest.fixture
def processor():
    return Prompt()


def test_only_heads_are_read_while_requests_are_refused(processor):
    with Talk(processor=processor) as talk:
        processor.full = FULL
        first, second, third = talk.send(*[request()] * 3).replies()
        assert first == second == third
        assert (first[0], first[1]["retry-after"], first[2]) == (429, "4", b'{"error":"queue: no room"}')
        # The first is read, as nobody knew; a replica was looked for only then.
        assert len(processor.keys) == 1
        counted = [line for line in talk.metrics.scrape().decode().splitlines() if 'code="429"' in line]
        assert any("_total" in line and line.endswith(" 3.0") for line in counted), counted
        assert talk.connection.server_state.total_requests == 3


def test_first_request_with_room_is_answered_and_ends_it(processor):
    with Talk(processor=processor) as talk:
        processor.full = FULL
        talk.send(request(), request())
        processor.full = None
        assert talk.send(request(), request()).statuses() == [429, 429, 200, 200]
        assert talk.connection._app.shed is None


def test_time_in_the_kernel_counts_at_the_head(processor, monkeypatch):
    waited_s = [0.0]
    monkeypatch.setattr(PredictProtocol, "_unread_s", lambda self: waited_s[0])
    with Talk(processor=processor) as talk:
        late = request(b"x-request-timeout-ms: 100")
        assert talk.send(late).statuses() == [200]
        waited_s[0] = 0.1
        assert talk.send(late, late).statuses() == [504, 504]
        assert len(processor.keys) == 1
        waited_s[0] = 0.04
        processor.full = FULL
        assert talk.send(late).statuses() == [429]
        (timeout_s, unread_s) = processor.admitted[-1]
        assert (timeout_s, unread_s) == (pytest.approx(0.06), 0.04)


def test_other_routes_are_read_in_overload(processor):
    with Talk(processor=processor) as talk:
        processor.full = FULL
        talk.send(request(), request())
        other = request().replace(b"models/ctr", b"models/none")
        assert talk.send(other, other).statuses() == [429, 429, 404, 404]


def test_refusal_that_is_logged_or_traced_is_read(processor):
    lines = []
    tracer = SimpleNamespace(begin=lambda headers, protocol: None)
    for options in ({"access": lambda *line: lines.append(line)}, {"tracer": tracer}):
        with Talk(processor=processor, **options) as talk:
            processor.full = FULL
            assert talk.send(request(), request()).statuses() == [429, 429]
            assert talk.connection._app.shed is None
    assert len(lines) == 2


def test_draining_connection_reads_what_it_refuses(processor):
    with Talk(processor=processor) as talk:
        processor.full = FULL
        talk.send(request(), request()).replies()
        talk.connection.draining = True
        ((status, headers, _),) = talk.send(request()).replies()
        assert (status, headers["connection"]) == (429, "close")


def test_guarded_port_refuses_nothing_before_its_guard():
    assert GuardedProtocol._refuse_at_head(object(), object()) is False
