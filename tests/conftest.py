"""What holds for every test: deltas are guarded and served files leased, as where Freshet serves; CI ends in time."""

import gc
import logging
import os
import sys
import time

import pytest
from hypothesis import settings

from freshet_serving.serving.front.resource_limits import raise_descriptor_limit
from tests.support.extensions import without_extensions
from tests.support.run_store import share_executables
from tests.support.shared_commands import share_commands
from tests.support.shared_graphs import share_graphs
from tests.support.shared_steps import share_step_functions

__all__ = ["without_extensions"]

# A busy machine is slow now and then: no example fails for that. `.ci/run` chooses the profile "ci" in place of it.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_configure():
    """Raise the soft limit of open files, as servers do: a closed engine keeps its own until garbage is collected.

    That is less often than by default, which took a tenth of the time: most objects that TensorFlow makes stay.
    """
    raise_descriptor_limit()
    gc.set_threshold(5_000)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Pause the garbage collector while tests are collected: it would pass over 13,000 of them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


MODULES = 300
"""So many new modules are worth a collection of their own."""
_known = 0


def forget_modules():
    """Have the garbage collector pass over what libraries hold: TensorFlow's alone are a million objects, which never
    go away and which it would look at again and again."""
    global _known
    if len(sys.modules) > _known + MODULES:
        gc.collect()
        gc.freeze()
        _known = len(sys.modules)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Skip a test that would begin after the moment (seconds since 1970) that `.ci/run` sets for a slow machine."""
    if time.time() > float(os.environ.get("FRESHET_TESTS_UNTIL", "inf")):
        pytest.skip("the time for tests is over")
    share_executables()
    share_step_functions()
    share_graphs()
    share_commands()
    forget_modules()


@pytest.fixture(autouse=True)
def log_of_its_own():
    """Take down the log of a server that a test has started in this process: it writes to the test's own stderr."""
    yield
    root = logging.getLogger()
    for handler in [h for h in root.handlers if type(h).__name__ == "RateLimitedHandler"]:
        root.removeHandler(handler)


@pytest.fixture(autouse=True)
def unguarded(request, monkeypatch):
    """Turn the guard of servers off for a test that is marked so, by the variable that serve itself reads."""
    if request.node.get_closest_marker("unguarded") is not None:
        monkeypatch.setenv("FRESHET_DELTA_GUARD", "off")
