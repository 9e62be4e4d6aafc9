"""The Keras model of keras_models, imported once."""

import shutil

import pytest


@pytest.fixture(scope="session")
def imported(tmp_path_factory):
    """(repository with model "ctr", the .keras file that it was imported from)."""
    pytest.importorskip("keras", reason="needs the train extra")
    from freshet_serving.compiler.imports.importing import import_model
    from tests.models.publishing.keras_models import make_model

    folder = tmp_path_factory.mktemp("imported")
    make_model().save(folder / "model.keras")
    import_model(folder / "model.keras", folder / "repository", "ctr")
    return folder / "repository", folder / "model.keras"


@pytest.fixture
def repository(imported, tmp_path):
    """A copy of the imported repository."""
    shutil.copytree(imported[0], tmp_path / "repository")
    return tmp_path / "repository"


@pytest.fixture
def model(imported):
    """The model as it was imported."""
    import keras

    return keras.saving.load_model(imported[1])
