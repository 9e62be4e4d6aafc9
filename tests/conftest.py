"""What holds for every test: deltas are guarded and served files leased, as where Freshet serves; CI ends in time."""

import os
import time

import pytest

from freshet_serving.serving.front.resource_limits import raise_descriptor_limit


def pytest_configure():
    """Raise the soft limit of open files, as servers do: a closed engine keeps its own until garbage is collected."""
    raise_descriptor_limit()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Skip a test that would begin after the moment (seconds since 1970) that `.ci/run` sets for a slow machine."""
    if time.time() > float(os.environ.get("FRESHET_TESTS_UNTIL", "inf")):
        pytest.skip("the time for tests is over")


@pytest.fixture(autouse=True)
def unguarded(request, monkeypatch):
    """Turn the guard of servers off for a test that is marked so, by the variable that serve itself reads."""
    if request.node.get_closest_marker("unguarded") is not None:
        monkeypatch.setenv("FRESHET_DELTA_GUARD", "off")
