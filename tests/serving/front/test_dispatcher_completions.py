import asyncio
import threading

from freshet_serving.serving.front.dispatcher import CompletionQueue


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
