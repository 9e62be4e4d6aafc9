"""Leave extensions out, in the process of a test."""

import pytest

from freshet_serving.processor.ports import ENGINE, ONLY
from freshet_serving.serving.ports import SERVER


@pytest.fixture
def without_extensions(monkeypatch):
    """Leaves out the extensions of these names, as FRESHET_EXTENSIONS does."""

    def leave_out(*names):
        used = {registry: dict(registry.all()) for registry in (ENGINE, SERVER)}
        for registry, known in used.items():
            kept = {name: extension for name, extension in known.items() if name not in names}
            monkeypatch.setattr(registry, "_known", kept)
        every = sorted({name for known in used.values() for name in known} - set(names))
        monkeypatch.setenv(ONLY, ",".join(every) or "none")

    return leave_out
