from importlib.util import find_spec

import pytest

from freshet_serving.compiler.imports.importing import import_model

# The native importer needs no TensorFlow, and is tested without it (.ci/other-python).
collect_ignore_glob = [] if find_spec("tensorflow") else ["test_*.py", "onnx_graph"]


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """name -> what to import, each written once."""
    from tests.compiler.imports.foreign import MODELS, without_deprecations

    folder = tmp_path_factory.mktemp("foreign")
    with without_deprecations():
        return {model.name: model.build(folder) for model in MODELS}


@pytest.fixture(scope="session")
def imported(foreign, tmp_path_factory):
    """(repository, name -> Imported): every foreign model imported once, as version 1 of its name."""
    repository = tmp_path_factory.mktemp("imported") / "repository"
    return repository, {name: import_model(path, repository, name) for name, path in foreign.items()}
