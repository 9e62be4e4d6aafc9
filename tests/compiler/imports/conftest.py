import pytest

pytest.importorskip("tensorflow", reason="importing needs the train extra")

from freshet_serving.compiler.imports.importing import import_model
from tests.compiler.imports.foreign import MODELS, without_deprecations


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """name -> what to import, each written once."""
    folder = tmp_path_factory.mktemp("foreign")
    with without_deprecations():
        return {model.name: model.build(folder) for model in MODELS}


@pytest.fixture(scope="session")
def imported(foreign, tmp_path_factory):
    """(repository, name -> Imported): every foreign model imported once, as version 1 of its name."""
    repository = tmp_path_factory.mktemp("imported") / "repository"
    return repository, {name: import_model(path, repository, name) for name, path in foreign.items()}
