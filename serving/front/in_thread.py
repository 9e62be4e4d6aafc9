"""Run a function in a thread, so that its failure, whatever it is, is the caller's result.

A future cannot hold StopIteration: asyncio drops it with a line in the log, and whoever waits waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(executor: Executor | None, function: Callable[[], T]) -> T:
    """Run a function in a thread and return its result.

    Args:
        executor: Has the thread; the loop's default if None.
        function: The function.

    Raises:
        RuntimeError: In place of a StopIteration.
    """

    def run() -> T:
        try:
            return function()
        except StopIteration as error:
            raise RuntimeError("an iterator ended where an item was expected") from error

    return await asyncio.get_running_loop().run_in_executor(executor, run)
