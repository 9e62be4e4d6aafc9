import pytest

from freshet_serving.compiler.imports.importing import import_model
from tests.support.shared_graphs import store_conversions


@pytest.fixture(scope="module", autouse=True)
def stored_conversions():
    with store_conversions():
        yield


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """name -> what to import, each written once, when it is first asked for."""
    from tests.compiler.imports.foreign import MODELS, without_deprecations

    folder = tmp_path_factory.mktemp("foreign")

    class Written(dict):
        def __missing__(self, name):
            with without_deprecations():
                self[name] = next(model for model in MODELS if model.name == name).build(folder)
            return self[name]

    return Written()


@pytest.fixture(scope="session")
def imported(foreign, tmp_path_factory):
    """(repository, name -> Imported): every foreign model imported once, as version 1 of its name."""
    from tests.compiler.imports.foreign import MODELS

    repository = tmp_path_factory.mktemp("imported") / "repository"
    return repository, {model.name: import_model(foreign[model.name], repository, model.name) for model in MODELS}
