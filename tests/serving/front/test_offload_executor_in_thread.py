import asyncio

import pytest

from freshet_serving.serving.front.offload_executor import in_thread


def test_result_is_returned():
    assert asyncio.run(in_thread(None, lambda: 7)) == 7


@pytest.mark.parametrize(("raised", "seen"), [(StopIteration(3), RuntimeError), (KeyError("x"), KeyError)])
def test_every_failure_reaches_who_waits(raised, seen):
    def fail():
        raise raised

    async def wait():
        await asyncio.wait_for(in_thread(None, fail), 30)

    with pytest.raises(seen):
        asyncio.run(wait())
