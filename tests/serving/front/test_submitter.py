"""Where replies are computed and how they come back to the loop, seen through the HTTP application."""

import asyncio
import threading

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

    def attach(self, wake, post):
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


def test_inline_what_a_turn_of_the_loop_has_read_is_computed_at_its_end_without_a_hand_over():
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


def test_inline_the_owner_is_woken_from_other_threads_and_after_a_while():
    app, processor, _, _ = serve(Inline())

    async def scenario():
        await call(app, "POST", "/v1/models/ctr:predict", BODY)
        await asyncio.to_thread(processor.wake, 0.0)
        processor.wake(0.001)
        while processor.woken < 3:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_inline_every_loop_that_serves_becomes_the_owner():
    app, processor, _, _ = serve(Inline())
    owners = set()
    for _ in range(2):
        assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 200
        owners.add(processor.wake)
    assert len(owners) == 2
