"""What is refused before anything of it runs: files that are no models, and models that are no friends."""

import json
import os
import shutil
import zipfile

import pytest

pytest.importorskip("tensorflow", reason="importing needs the train extra")

from compiler.frameworks import keras, tf
from compiler.imports.importer import import_model
from processor.errors import BadInput, FreshetError, NotFound, TooLarge
from tests.compiler.imports.foreign import refused, saved, without_deprecations

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def copied(foreign, tmp_path):
    """A copy of the SavedModel with partitioned variables, to be broken."""
    return shutil.copytree(foreign["partitioned"], tmp_path / "model")


def test_a_path_with_nothing_or_something_else_is_no_source(tmp_path):
    assert "a SavedModel folder, a .keras or .onnx file" in refused(tmp_path / "nothing", NotFound)
    assert "saved_model.pb is missing" in refused(tmp_path)
    (tmp_path / "text.keras").write_text("not a zip")
    assert "a .keras file wanted" in refused(tmp_path / "text.keras")


@pytest.mark.parametrize("content", [b"\xff" * 100, b"not a proto at all", b""], ids=["bytes", "text", "empty"])
def test_a_graph_that_is_no_graph_is_refused(tmp_path, content):
    (tmp_path / "saved_model.pb").write_bytes(content)
    assert "saved_model.pb" in refused(tmp_path)


def test_missing_and_damaged_variables_are_refused(copied):
    data = copied / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:40])
    assert "variables are missing or damaged" in refused(copied)
    shutil.rmtree(copied / "variables")
    assert "variables are missing" in refused(copied)


def test_a_file_that_leads_out_of_the_folder_is_refused(copied, tmp_path):
    (tmp_path / "outside").write_text("secret")
    (copied / "assets").mkdir(exist_ok=True)
    os.symlink(tmp_path / "outside", copied / "assets" / "words.txt")
    assert "leads out of its folder" in refused(copied)


def test_an_unknown_signature_is_refused_with_those_there_are(copied):
    assert "serving_default" in refused(copied, signature="predict")


def test_an_operation_that_reads_files_is_refused_by_name(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="path")])
        def score(self, path):
            return {"length": tf.map_fn(lambda p: tf.strings.length(tf.io.read_file(p)), path, tf.int32)}

    module = Model()
    assert "operation ReadFile is not allowed" in refused(saved(module, tmp_path / "model", module.score))


def test_python_functions_are_refused_by_name(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], name="value")])
        def score(self, value):
            return {"twice": tf.reshape(tf.numpy_function(lambda v: v * 2, [value], tf.float32), [-1])}

    module = Model()
    assert "PyFunc" in refused(saved(module, tmp_path / "model", module.score))


def test_a_table_filled_from_any_file_but_an_asset_is_refused(tmp_path, foreign):
    copy = shutil.copytree(foreign["asset"], tmp_path / "model")
    graph = (copy / "saved_model.pb").read_bytes()
    assert graph.count(b"words.txt") >= 1
    os.rename(copy / "assets" / "words.txt", copy / "assets" / "other.txt")
    assert "an asset is missing" in refused(copy)


def archive(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            out.writestr(name, content)
    return path


def config(**fields):
    return json.dumps({"module": "keras", "class_name": "Functional", "config": {"layers": [fields]}})


def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path):
    path = archive(tmp_path / "bomb.keras", {"config.json": config(), "model.weights.h5": b"\0" * (32 << 20)})
    assert "unpacks to more" in refused(path, TooLarge)


@pytest.mark.parametrize("name", ["../config.json", "/etc/config.json", "a/../../b", "..\\b"])
def test_a_path_in_an_archive_that_leads_out_of_it_is_refused(tmp_path, name):
    path = archive(tmp_path / "model.keras", {name: b"x", "config.json": config()})
    assert "leads out of it" in refused(path)


def test_an_archive_without_configuration_or_with_a_broken_one_is_refused(tmp_path):
    assert "config.json" in refused(archive(tmp_path / "a.keras", {"metadata.json": b"{}"}))
    assert "config.json" in refused(archive(tmp_path / "b.keras", {"config.json": b"{"}))
    assert "Keras cannot load" in refused(archive(tmp_path / "c.keras", {"config.json": config()}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"module": "keras.layers", "class_name": "Lambda"}, "a Lambda layer holds code"),
        ({"module": "os", "class_name": "system"}, "no class of Keras itself"),
        ({"module": "keras.utils", "class_name": "get_file"}, "no class of Keras itself"),
        ({"module": "builtins", "class_name": "function", "config": "eval"}, "a function of Python's own"),
        (
            {"module": "keras.layers", "class_name": "StringLookup", "config": {"vocabulary": "/etc/passwd"}},
            "names a file",
        ),
    ],
)
def test_configurations_that_could_run_code_or_read_files_are_refused(tmp_path, fields, message):
    assert message in refused(archive(tmp_path / "model.keras", {"config.json": config(**fields)}))


def test_a_lambda_layer_of_a_real_model_is_refused_in_one_line(tmp_path):
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.Lambda(lambda v: v * 2)(x))
    with without_deprecations():
        model.save(tmp_path / "lambda.keras")
    assert "a Lambda layer holds code" in refused(tmp_path / "lambda.keras")


def test_nothing_is_left_behind_by_an_import_that_fails(copied, tmp_path):
    shutil.rmtree(copied / "variables")
    with pytest.raises(FreshetError):
        import_model(copied, tmp_path / "repository", "model")
    assert list((tmp_path / "repository").rglob("*.json")) == []
    assert [p.name for p in (tmp_path / "repository").rglob("*") if p.is_dir()] in ([], ["model"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, v: {"s": tf.reduce_sum(v)}, "numbers for every row wanted"),
        (lambda m, v: {"s": v - tf.reduce_mean(v)}, "depends on the other rows"),
        (lambda m, v: {"s": tf.strings.as_string(v)}, "at least one output of numbers"),
    ],
    ids=["a scalar", "rows that mix", "strings"],
)
def test_models_whose_outputs_cannot_be_batched_are_refused(tmp_path, function, message):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], name="value")])
        def score(self, value):
            return function(self, value)

    module = Model()
    with pytest.raises(BadInput, match=message):
        import_model(saved(module, tmp_path / "model", module.score), tmp_path / "repository", "model")
