"""Tests that are coroutine functions."""

import asyncio
import functools


def on_loop(test):
    """Run a test that is a coroutine function on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments, **fixtures):
        asyncio.run(test(*arguments, **fixtures))

    return run
