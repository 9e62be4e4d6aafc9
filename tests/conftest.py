"""What holds for every test."""

import pytest

from processor.versions.probation import Probation

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
