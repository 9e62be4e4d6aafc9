"""What is counted, timed and traced of a prediction, step by step, whatever port it comes by."""

import asyncio
import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput, Expired, FreshetError, NotFound, NotReady, Overloaded
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.serving.front import offload_executor
from freshet_serving.serving.front.exchange import OK, Exchange, ServingContext
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.request_headers import TIMED_EVERY
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.fakes import FakeProcessor, FakeTracer

INPUTS = {"ids": np.array([[1, 2, 3]] * 2), "floats": np.array([[0.5, 0.25]] * 2, np.float32)}
CTR = SimpleNamespace(model="ctr", version=None, label=None)
OTHER = SimpleNamespace(model="other", version=None, label=None)


class Given(Exchange):
    """A request whose source is its inputs and timeout, or the error of reading it."""

    __slots__ = ()

    def read(self, source, manifest):
        if isinstance(source, Exception):
            raise source
        return source


class Room:
    """What exchanges share, around a FakeProcessor; ask() is a whole exchange."""

    exchange = Given

    def __init__(self, processor=None, opened=True, tracer=None, **options):
        self.processor, lifecycle = processor or FakeProcessor(), Lifecycle()
        if opened:
            lifecycle.open(self.processor)
        self.metrics = Metrics(lifecycle)
        self.shared = ServingContext(lifecycle, self.metrics, FrontendOptions(**options), tracer)
        self.dispatcher = self.shared.dispatcher

    def ask(self, who=CTR, source=(INPUTS, None), headers=None, servable=False, timeout_s=None, unread_s=0.0):
        return asyncio.run(self._ask(who, source, headers or {}, servable, timeout_s, unread_s))

    async def _ask(self, who, source, headers, servable, timeout_s, unread_s):
        future, exchange = asyncio.get_running_loop().create_future(), self.exchange(self.shared, "x", headers)
        try:
            exchange.select_replica(who, servable, timeout_s, unread_s)
            exchange.submit(source, future.set_result)
        except FreshetError as error:
            exchange.end(error.http_status)
            raise
        result = await future
        exchange.finish(result)
        exchange.end(result.http_status if isinstance(result, FreshetError) else OK)
        return result

    @property
    def predicted(self):
        return self.metrics.counts().snapshot()["predicted"]

    @property
    def timed(self):
        return {name: sum(counts) for _, name, counts, _ in self.metrics.counts().phases()}

    @property
    def served(self):
        """model/version -> successes, rows, failures."""
        counts = self.dispatcher.served.snapshot()
        return {of: (successes, rows, failures) for of, (successes, _, rows, failures, *_) in counts.items()}


def test_answered_prediction_is_counted_for_its_version():
    room = Room()
    reply = room.ask()
    assert reply.outputs["score"].shape == (2, 1)
    assert room.predicted == {"ctr": [1, 2]}
    assert room.served == {"ctr/3": (1, 2, 0)}


@pytest.mark.parametrize("servable", [False, True])
def test_request_refused_before_admission_counts_for_no_model(servable):
    room = Room()
    with pytest.raises(NotFound, match="Servable not found" if servable else "not in the repository"):
        room.ask(OTHER, servable=servable)
    room.processor.full = Overloaded("full")
    with pytest.raises(Overloaded):
        room.ask(servable=servable)
    with pytest.raises(Expired):
        room.ask(timeout_s=0.0)
    with pytest.raises(NotReady):
        Room(opened=False).ask(timeout_s=0.0)
    assert room.served == {}
    assert room.predicted == {}


def test_admitted_but_unanswered_request_counts_as_failed_once():
    room = Room()
    with pytest.raises(BadInput, match="no such column"):
        room.ask(source=BadInput("no such column"))
    assert room.served == {"ctr/3": (0, 0, 1)}
    room.processor.refuse = Overloaded("full")
    with pytest.raises(Overloaded):
        room.ask()
    assert room.served == {"ctr/3": (0, 0, 2)}
    room.processor.refuse, room.processor.fail = None, Expired("late")
    assert isinstance(room.ask(), Expired)
    assert room.served == {"ctr/3": (0, 0, 3)}
    assert room.predicted == {}


def test_request_carries_its_key_id_and_deadline():
    room = Room(default_timeout_ms=2000.0)
    room.ask(headers={b"x-sticky-key": b"k", b"x-request-id": b"r"})
    room.ask(source=(INPUTS, 0.5))
    named, own = room.processor.requests
    assert (named.key, named.request_id, named.timeout_s) == (b"k", "r", 2.0)
    assert (own.key, own.request_id, own.timeout_s) == (None, "", 0.5)


@pytest.mark.parametrize("servable", [False, True])
def test_time_unread_counts_towards_the_deadline(servable):
    room = Room(default_timeout_ms=2000.0)
    room.ask(servable=servable, unread_s=1.0)
    room.ask(servable=servable, timeout_s=8.0, source=(INPUTS, 8.0), unread_s=2.0)
    assert [request.timeout_s for request in room.processor.requests] == [1.0, 6.0]
    assert room.processor.admitted == [(1.0, 1.0), (6.0, 2.0)]
    with pytest.raises(Expired):
        room.ask(servable=servable, unread_s=2.0)


def test_parse_and_encode_times_are_sampled():
    room = Room()
    for _ in range(TIMED_EVERY):
        room.ask()
    assert room.timed == {"encode": 1, "parse": 1}
    room.processor.fail = Expired("late")
    for _ in range(TIMED_EVERY):
        room.ask()
    assert room.timed == {"encode": 1, "parse": 2}


def test_trace_records_how_far_its_request_came():
    tracer = FakeTracer(everything=True)
    room = Room(tracer=tracer)
    reply = room.ask()
    with pytest.raises(BadInput):
        room.ask(source=BadInput("no"))
    with pytest.raises(NotFound):
        room.ask(OTHER)
    (whole, answered), (unread, refused), (stranger, unknown) = tracer.ended
    assert (answered, refused, unknown) == (200, 400, 404)
    assert (whole.model, whole.generation, whole.protocol) == ("ctr", reply.generation, "x")
    assert 0 < whole.parsed_s <= whole.encoding_s
    assert (unread.model, unread.parsed_s, unread.encoding_s) == ("ctr", 0.0, 0.0)
    assert stranger.model == ""


class Long(Given):
    """A request that is long: its source tells its bytes and what is read of it, on which thread is noted."""

    __slots__ = ()
    threads: ClassVar[list[int]] = []

    def offload_nbytes(self, source):
        return 1 << 20

    def read(self, source, manifest):
        self.threads.append(threading.get_ident())
        return super().read(source, manifest)


@pytest.fixture
def long_room():
    """Makes a Room whose requests are long."""
    made = []

    def make(**options):
        made.append(Room(**options))
        made[-1].exchange = Long
        return made[-1]

    yield make
    for room in made:
        room.dispatcher.close()


def test_long_request_is_read_on_another_thread(long_room):
    tracer = FakeTracer(everything=True)
    room = long_room(tracer=tracer)
    for _ in range(TIMED_EVERY):
        assert room.ask().outputs["score"].shape == (2, 1)
    assert threading.get_ident() not in Long.threads
    assert room.timed == {"encode": 1, "parse": 1}
    assert all(0 < trace.parsed_s <= trace.encoding_s for trace, _ in tracer.ended)
    assert room.served == {"ctr/3": (TIMED_EVERY, 2 * TIMED_EVERY, 0)}


@pytest.mark.parametrize("error", [BadInput("no such column"), Overloaded("full")], ids=["read", "submitted"])
def test_error_in_a_long_request_is_answered_and_counted_once(error, long_room):
    room = long_room()
    if isinstance(error, Overloaded):
        room.processor.refuse = error
        assert room.ask() is error
    else:
        assert room.ask(source=error) is error
    assert room.served == {"ctr/3": (0, 0, 1)}


def test_read_queue_time_counts_towards_the_deadline(monkeypatch, long_room):
    clock_s = iter([0.0, 0.25] * 2 + [0.0, 5.0])
    monkeypatch.setattr(offload_executor, "time", SimpleNamespace(monotonic=lambda: next(clock_s)))
    room = long_room(default_timeout_ms=1000.0)
    room.ask()
    room.ask(source=(INPUTS, 0.5))
    assert [request.timeout_s for request in room.processor.requests] == [0.75, 0.25]
    Long.threads.clear()
    assert isinstance(room.ask(timeout_s=2.0), Expired)
    assert Long.threads == []


class Bulk(dict):
    """Inputs, or what they are read from, that can be referred to weakly."""


def test_long_body_and_inputs_are_freed_before_the_reply(long_room):
    room, seen, submitted = long_room(), {}, threading.Event()

    class Reading(Long):
        __slots__ = ()

        def read(self, source, manifest):
            assert submitted.wait(30)
            inputs = Bulk(INPUTS)
            seen["body"], seen["inputs"] = weakref.ref(source), weakref.ref(inputs)
            return inputs, None

    def submit(request, done, replica=None, answer=room.processor.submit):
        seen["body at submission"] = seen["body"]()
        answer(request, lambda reply: seen.update(done=partial(done, reply)), replica)
        room.processor.requests.clear()

    async def ask():
        future, exchange = asyncio.get_running_loop().create_future(), Reading(room.shared, "x", {})
        exchange.select_replica(CTR, False, None)
        exchange.submit(Bulk(), future.set_result)
        submitted.set()
        while "done" not in seen or seen["inputs"]() is not None:
            await asyncio.sleep(0)
        assert not future.done()
        seen["done"]()
        return await future

    room.processor.submit = submit
    assert asyncio.run(asyncio.wait_for(ask(), 30)).outputs["score"].shape == (2, 1)
    assert seen["body at submission"] is None


def test_request_limits_come_from_the_model():
    limits = RequestLimits(max_rows=7)
    room, seen = Room(FakeProcessor(limit=limits)), []

    class Asking(Given):
        __slots__ = ()

        def read(self, source, manifest):
            seen.append(self.limits)
            return super().read(source, manifest)

    room.exchange = Asking
    room.ask()
    assert seen == [limits]
