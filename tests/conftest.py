"""What holds for every test."""

import pytest

from processor.package import mapped_file
from processor.versions.probation import Probation


@pytest.fixture(autouse=True)
def unleased(request, monkeypatch):
    """In a test's own process nothing is leased: whoever damages a served file there would wait for itself."""
    if request.node.get_closest_marker("leased") is None:
        monkeypatch.setattr(mapped_file, "lease", lambda fd: False)


EXAMINE = Probation.examine


@pytest.fixture(autouse=True, scope="session")
def unguarded():
    """A delta of most tests is another model altogether, which is what the guard holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probation, "examine", lambda *_, **__: None)
        patch.setenv("FRESHET_DELTA_GUARD", "off")
        yield


@pytest.fixture(autouse=True)
def guarded(request, monkeypatch):
    """But for the tests of the guard."""
    if request.node.get_closest_marker("guarded") is not None:
        monkeypatch.setattr(Probation, "examine", EXAMINE)
        monkeypatch.delenv("FRESHET_DELTA_GUARD")
