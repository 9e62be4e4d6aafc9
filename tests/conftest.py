"""What holds for every test: deltas are guarded and served files leased, as they are where Freshet serves."""

import pytest


@pytest.fixture(autouse=True)
def unguarded(request, monkeypatch):
    """Turn the guard of servers off for a test that is marked so, by the variable that serve itself reads."""
    if request.node.get_closest_marker("unguarded") is not None:
        monkeypatch.setenv("FRESHET_DELTA_GUARD", "off")
