"""The generator against small servers on loopback; the servers run in threads of the test."""

import contextlib
import socket
import threading

import pytest

from loadtest.load.launch import CommandFailed
from loadtest.load.openloop import Generator, Job, Openloop, drive
from loadtest.load.payload import Payload


class Server:
    """An HTTP/1.1 server whose reply to the n-th request is answer(n): bytes, or None to close the connection."""

    def __init__(self, answer):
        self.answer = answer
        self.requests = []
        self.closing = threading.Event()
        self._open, self._threads = [], []
        self._lock = threading.Lock()

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self.closing.set()
        with self._lock:
            for each in (self._listener, *self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with self._lock:
                    self._open.append(connection)
                    if self.closing.is_set():
                        connection.close()
                        return
                self._start(self._handle, connection)

    def _handle(self, connection):
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as reader:
            self.serve(reader, connection)

    def serve(self, reader, connection):
        while reader.readline():
            headers = {}
            while (line := reader.readline().decode().rstrip()) != "":
                name, value = line.split(": ", 1)
                headers[name] = value
            body = reader.read(int(headers["Content-Length"]))
            with self._lock:
                self.requests.append((headers, body))
                reply = self.answer(len(self.requests))
            if reply is None:
                return
            connection.sendall(reply)


def reply(status=200, body=b"ok", close=False):
    connection = b"connection: close\r\n" if close else b""
    return b"HTTP/1.1 %d X\r\n%scontent-length: %d\r\n\r\n%s" % (status, connection, len(body), body)


@pytest.fixture
def payload(tmp_path):
    return str(Payload("/predict", (b"first", b"second")).save(tmp_path / "payload"))


def job(server, payload, **changes):
    return Job(
        **{
            "host": "127.0.0.1",
            "port": server.port,
            "payload": payload,
            "rate": 400,
            "seconds": 0.5,
            "warm_s": 0.1,
            "connections": 4,
            **changes,
        }
    )


def test_every_scheduled_request_is_sent_once_and_answered(payload):
    with Server(lambda n: reply()) as server:
        generator = Generator(job(server, payload))
        found = generator.run()
    sent = len(generator.outcome.due_s)
    assert len(server.requests) == sent
    assert {body for _, body in server.requests} == {b"first", b"second"}
    assert found.statuses == {"200": found.requests}
    assert 0 < found.requests < sent
    assert (found.faults, found.failed) == ({}, 0)
    assert (generator.outcome.latency_us >= generator.outcome.late_us).all()


def test_chunked_replies_and_closed_connections_are_understood(payload):
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    with Server(lambda n: chunked if n % 2 else reply(close=True)) as server:
        found = Generator(job(server, payload)).run()
    assert found.failed == 0


def test_broken_connection_fails_only_its_own_request(payload):
    def answer(n):
        return None if n == 150 else reply(429 if n % 3 == 0 else 200)

    with Server(answer) as server:
        generator = Generator(job(server, payload))
        found = generator.run()
    assert found.faults == {"connection closed": 1}
    assert (generator.outcome.status == 0).sum() == 1
    assert found.statuses["429"] > 0
    assert len(server.requests) == len(generator.outcome.due_s)


def test_stall_is_charged_to_every_request_due_meanwhile(payload):
    """One connection, and a server that is silent at first: latency runs from when each request was due."""
    release = threading.Event()

    class Stalling(Server):
        def serve(self, reader, connection):
            release.wait()
            super().serve(reader, connection)

    with Stalling(lambda n: reply()) as server:
        generator = Generator(job(server, payload, connections=1, warm_s=0.0))
        timer = threading.Timer(0.4, release.set)
        generator.run(lambda start_s: timer.start())
        timer.join()
    outcome = generator.outcome
    early = outcome.due_s < 0.2
    assert (outcome.latency_us[early] >= (0.25 - outcome.due_s[early]) * 1e6).all()
    # Waiting for a connection is not the generator's own lateness.
    assert outcome.late_us[early][1:].max() < outcome.latency_us[early][1:].min()


def test_delay_of_the_generator_is_not_charged_to_the_server(payload):
    with Server(lambda n: reply()) as server:
        generator = Generator(job(server, payload))
        poll, stopped = generator._poll, []

        def late_poll():
            # It stands still while a request is under way, and comes to read the reply long after that is there.
            if generator._in_flight and len(server.requests) > 80 and not stopped:
                stopped.append(True)
                threading.Event().wait(0.3)
            poll()

        generator._poll = late_poll
        found = generator.run()
    assert stopped
    assert found.latency_ms["max"] > 100
    assert found.answered_ms["max"] < found.latency_ms["max"] / 2
    assert (generator.outcome.answered_us >= 0).all()


def test_deadline_is_sent_and_unsendable_requests_are_abandoned(payload):

    class Silent(Server):
        def serve(self, reader, connection):
            self.closing.wait()

    with Server(lambda n: reply()) as server:
        found = Generator(job(server, payload, deadline_s=5.0, send_deadline=True)).run()
    assert found.good == found.requests
    assert {headers["x-request-timeout-ms"] for headers, _ in server.requests} == {"5000"}
    with Silent(lambda n: reply()) as server:
        generator = Generator(job(server, payload, deadline_s=0.05, connections=1, seconds=0.2), grace_s=0.1)
        found = generator.run()
    assert found.statuses == {"none": found.requests}
    assert (found.good, found.latency_ms["max"]) == (0, 0.0)


def test_generator_runs_in_a_separate_process(payload):
    with Server(lambda n: reply()) as server:
        wanted = job(server, payload, window_s=0.1)
        with Openloop(wanted) as process:
            start_s = process.started()
            found = process.result()
    assert found.start_s == start_s
    assert found.failed == 0
    assert len(found.windows) == 5
    assert sum(w["requests"] for w in found.windows) == found.requests


def test_unreachable_server_gives_a_one_line_error(payload):
    with Server(lambda n: reply()) as server:
        gone = job(server, payload)
    with pytest.raises(CommandFailed, match="refused"):
        drive(gone)
