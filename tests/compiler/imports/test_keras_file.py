"""A Keras file is unpacked only as far as it may be, and holds neither code nor the way to another file."""

import json
import shutil
import zipfile

import h5py
import numpy as np
import pytest

from freshet_serving.compiler.frameworks import keras
from freshet_serving.compiler.imports import keras_file
from freshet_serving.processor.errors import TooLarge
from tests.compiler.imports.foreign import refused, without_deprecations


def archive(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            out.writestr(name, content)
    return path


def config(**fields):
    return json.dumps({"module": "keras", "class_name": "Functional", "config": {"layers": [fields]}})


def test_archive_with_an_excessive_unpacked_size_is_refused(tmp_path):
    path = archive(tmp_path / "bomb.keras", {"config.json": config(), "model.weights.h5": b"\0" * (32 << 20)})
    assert "unpacks to more" in refused(path, TooLarge)


@pytest.mark.parametrize("name", ["../config.json", "/etc/config.json", "a/../../b", "..\\b"])
def test_archive_path_leading_outside_is_refused(tmp_path, name):
    path = archive(tmp_path / "model.keras", {name: b"x", "config.json": config()})
    assert "is outside it" in refused(path)


def test_archive_without_a_valid_configuration_is_refused(tmp_path):
    assert "config.json" in refused(archive(tmp_path / "a.keras", {"metadata.json": b"{}"}))
    assert "config.json" in refused(archive(tmp_path / "b.keras", {"config.json": b"{"}))
    assert "Keras cannot load" in refused(archive(tmp_path / "c.keras", {"config.json": config()}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"module": "keras.layers", "class_name": "Lambda"}, "a Lambda layer contains code"),
        ({"module": "os", "class_name": "system"}, "not a class of Keras itself"),
        ({"module": "keras.utils", "class_name": "get_file"}, "not a class of Keras itself"),
        ({"module": "builtins", "class_name": "function", "config": "eval"}, "contains a Python function"),
        (
            {"module": "keras.layers", "class_name": "StringLookup", "config": {"vocabulary": "/etc/passwd"}},
            "refers to a file",
        ),
    ],
)
def test_configurations_that_could_run_code_are_refused(tmp_path, fields, message):
    assert message in refused(archive(tmp_path / "model.keras", {"config.json": config(**fields)}))


def test_lambda_layer_of_a_model_is_refused_in_one_line(tmp_path):
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.Lambda(lambda v: v * 2)(x))
    with without_deprecations():
        model.save(tmp_path / "lambda.keras")
    assert "a Lambda layer contains code" in refused(tmp_path / "lambda.keras")


def test_too_large_configuration_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(keras_file, "MAX_CONFIG_NBYTES", 1000)
    monkeypatch.setattr(keras_file.zipfile.ZipFile, "read", lambda *_: pytest.fail("unpacked"))
    path = archive(tmp_path / "model.keras", {"config.json": " " * 1001})
    assert "config.json of at most 1000 bytes, got 1001" in refused(path, TooLarge)


def test_duplicate_archive_members_are_refused(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("config.json", config())
        with pytest.warns(UserWarning, match="Duplicate"):
            out.writestr("config.json", "{}")
    assert "two files of the archive have one name" in refused(path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A Keras file that is fine."""
    path = tmp_path_factory.mktemp("keras") / "model.keras"
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.Dense(1)(x))
    with without_deprecations():
        model.save(path)
    return path


def with_weights(plain, path, weights):
    """The Keras file with other weights."""
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            if not entry.filename.endswith(".h5"):
                new.writestr(entry.filename, old.read(entry))
        new.write(weights, "model.weights.h5")
    return path


def external(file, other):
    file.create_dataset("w", (2,), np.float32, external=[(str(other), 0, 8)])


def virtual(file, other):
    layout = h5py.VirtualLayout((2,), np.float32)
    layout[:] = h5py.VirtualSource(str(other), "w", (2,))
    file.create_group("deep").create_virtual_dataset("w", layout)


def linked(file, other):
    file.create_group("deep")["w"] = h5py.ExternalLink(str(other), "w")


@pytest.mark.parametrize(
    ("lead", "message"),
    [
        (external, "stored in another file"),
        (virtual, "stored in another file"),
        (linked, "the weights file contains external links"),
        (lambda file, other: file.__setitem__("w", h5py.SoftLink("/x")), "the weights file contains external links"),
    ],
    ids=["external", "virtual", "external link", "soft link"],
)
def test_weights_stored_in_another_file_are_refused(tmp_path, plain, lead, message):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["w"] = np.ones(2, np.float32)
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        lead(file, tmp_path / "other.h5")
    assert message in refused(with_weights(plain, tmp_path / "model.keras", tmp_path / "weights.h5"))


def test_damaged_weights_are_refused(tmp_path, plain):
    (tmp_path / "weights.h5").write_bytes(b"no HDF5")
    assert "not an HDF5 file, or are damaged" in refused(
        with_weights(plain, tmp_path / "m.keras", tmp_path / "weights.h5")
    )


def test_valid_file_is_opened(tmp_path, plain):
    keras_file.export_keras(shutil.copy(plain, tmp_path / "model.keras"), tmp_path / "exported")
    assert (tmp_path / "exported" / "saved_model.pb").is_file()
