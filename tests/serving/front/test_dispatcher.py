"""Where replies are computed and how they come back to the loop, seen through the HTTP application."""

import asyncio
import threading
from types import SimpleNamespace

from freshet_serving.serving.front import dispatcher
from freshet_serving.serving.front.dispatcher import LONG_TURN_S, CompletionQueue
from freshet_serving.serving.http.paths import parse
from tests.serving.fakes import FakeProcessor, call, send
from tests.serving.http.data_app import BODY, serve


def test_replies_that_finish_together_wake_the_loop_once():
    app, processor, _, _ = serve()
    processor.hold = True

    async def scenario():
        loop = asyncio.get_running_loop()
        wakeups, schedule = [], loop.call_soon_threadsafe
        tasks = [asyncio.create_task(call(app, "POST", "/v1/models/ctr:predict", BODY)) for _ in range(20)]
        while len(processor.held) < 20:
            await asyncio.sleep(0)
        loop.call_soon_threadsafe = lambda *args: (wakeups.append(args), schedule(*args))
        processor.release()
        del loop.call_soon_threadsafe
        return wakeups, await asyncio.gather(*tasks)

    wakeups, replies = asyncio.run(scenario())
    assert len(wakeups) == 1
    assert [r.status for r in replies] == [200] * 20


class Inline(FakeProcessor):
    """Answers on the loop that has attached itself, when that says so."""

    def set_owner(self, wake, post):
        self.wake, self.owner, self.woken = wake, threading.get_ident(), 0
        self.hold = True
        return True

    def submit(self, request, done, replica):
        super().submit(request, done, replica)
        if len(self.held) == 1:
            self.wake(0.0)

    def run_once(self):
        assert threading.get_ident() == self.owner
        self.woken += 1
        self.release()


def test_inline_requests_of_a_loop_turn_are_computed_without_handover():
    app, processor, _, _ = serve(Inline())

    async def scenario():
        loop, wakeups = asyncio.get_running_loop(), []
        loop.call_soon_threadsafe = lambda *args: wakeups.append(args)
        replies = await asyncio.gather(*[call(app, "POST", "/v1/models/ctr:predict", BODY) for _ in range(20)])
        del loop.call_soon_threadsafe
        return wakeups, replies

    wakeups, replies = asyncio.run(scenario())
    assert [r.status for r in replies] == [200] * 20
    assert processor.woken == 1
    assert wakeups == []


def test_inline_owner_is_woken_from_other_threads_and_later():
    app, processor, _, _ = serve(Inline())

    async def scenario():
        await call(app, "POST", "/v1/models/ctr:predict", BODY)
        await asyncio.to_thread(processor.wake, 0.0)
        processor.wake(0.001)
        while processor.woken < 3:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_inline_every_serving_loop_becomes_the_owner():
    app, processor, _, _ = serve(Inline())
    owners = set()
    for _ in range(2):
        assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 200
        owners.add(processor.wake)
    assert len(owners) == 2


class Hands:
    """Takes the place of time and lets a test move it."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr(dispatcher, "time", SimpleNamespace(monotonic=lambda: self.now_s))


def answers(app, count):
    """So many requests, read in one turn of the loop; what is noted of each answer."""
    noted = []
    for _ in range(count):
        app.start(parse(b"/v1/models/ctr:predict"), {}, BODY, noted.append)
    return noted


def test_long_turn_answers_ready_replies_before_reading_on(monkeypatch):
    app, processor, _, _ = serve()
    processor.hold, hands = True, Hands(monkeypatch)

    async def scenario():
        noted = answers(app, 2)
        # Another thread answers, and this turn of the loop goes on.
        answering = threading.Thread(target=processor.release)
        answering.start()
        answering.join()
        before = list(noted)
        hands.now_s += LONG_TURN_S / 2
        answers(app, 1)
        soon = list(noted)
        hands.now_s += LONG_TURN_S
        answers(app, 1)
        return before, soon, list(noted)

    before, soon, late = asyncio.run(scenario())
    assert (before, soon) == ([], [])
    assert [status for status, _, _ in late] == [200, 200]


def test_inline_requests_of_a_long_turn_form_one_batch(monkeypatch):
    app, processor, _, _ = serve(Inline())
    hands = Hands(monkeypatch)

    async def scenario():
        noted = answers(app, 1)
        hands.now_s += 2 * LONG_TURN_S
        noted += answers(app, 1)
        assert noted == []
        while processor.held:
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert processor.woken == 1


def test_no_reply_is_lost_between_threads():
    async def scenario():
        loop = asyncio.get_running_loop()
        wakeups = CompletionQueue(loop)
        futures = [loop.create_future() for _ in range(2000)]
        workers = [
            threading.Thread(
                target=lambda part: [wakeups.post(f.set_result, i) for i, f in part],
                args=(list(enumerate(futures))[n::4],),
            )
            for n in range(4)
        ]
        for worker in workers:
            worker.start()
        results = await asyncio.wait_for(asyncio.gather(*futures), 30)
        for worker in workers:
            worker.join()
        return results

    assert asyncio.run(scenario()) == list(range(2000))


def test_reply_after_the_loop_has_closed_is_dropped():
    loop = asyncio.new_event_loop()
    wakeups, results = CompletionQueue(loop), []
    loop.close()
    wakeups.post(results.append, 1)
    assert results == []


def test_failing_reply_does_not_block_the_next(caplog):
    async def scenario():
        wakeups, future = CompletionQueue(asyncio.get_running_loop()), asyncio.get_running_loop().create_future()
        wakeups.post(lambda result: 1 / 0, 1)
        wakeups.post(future.set_result, 2)
        return await future

    assert asyncio.run(scenario()) == 2
    assert "could not deliver" in caplog.text
