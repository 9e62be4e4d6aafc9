"""What holds for every test."""

import pytest

from processor.package import mapped_file


@pytest.fixture(autouse=True)
def unleased(request, monkeypatch):
    """In a test's own process nothing is leased: whoever damages a served file there would wait for itself."""
    if request.node.get_closest_marker("leased") is None:
        monkeypatch.setattr(mapped_file, "lease", lambda fd: False)
