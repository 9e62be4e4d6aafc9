import shutil

import pytest

from tests.support.shared_graphs import store_conversions


@pytest.fixture(scope="module", autouse=True)
def stored_conversions(request):
    """Versions are compiled of few graphs; compiling itself is tested without it."""
    if request.module.__name__.endswith("test_compile"):
        yield
        return
    with store_conversions():
        yield


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """A repository with version 1 of a small DeepFM, compiled as publishing does."""
    from tests.compiler.building.versions import publish

    return publish(tmp_path_factory.mktemp("published"))


@pytest.fixture
def folder(published, tmp_path):
    """A copy of that version, to be compiled again."""
    shutil.copytree(published, tmp_path / "repository")
    return tmp_path / "repository" / "ctr" / "1"
