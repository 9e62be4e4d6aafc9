"""What is refused before anything of it runs: files that are no models, and models that are no friends."""

import os
import shutil
from types import SimpleNamespace

import pytest

from freshet_serving.compiler.frameworks import keras, saved_model_pb2, tf
from freshet_serving.compiler.imports import foreign
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import BadInput, FreshetError, NotFound
from tests.compiler.imports.foreign import refused, saved, without_deprecations


@pytest.fixture
def copied(foreign, tmp_path):
    """A copy of the SavedModel with partitioned variables, to be broken."""
    return shutil.copytree(foreign["partitioned"], tmp_path / "model")


def test_path_without_a_model_is_not_a_source(tmp_path):
    assert "a SavedModel folder, a .keras or .onnx file" in refused(tmp_path / "nothing", NotFound)
    assert "saved_model.pb is missing" in refused(tmp_path)
    for name, hint in (("m.pt", "come by ONNX"), ("m.pkl", "come by ONNX"), ("m.h5", "save it as .keras")):
        (tmp_path / name).write_bytes(b"PK")
        assert hint in refused(tmp_path / name)
    (tmp_path / "model.onnx").touch()
    assert refused(tmp_path / "modle.onnx", NotFound).endswith("No such file or directory (did you mean 'model.onnx'?)")
    (tmp_path / "text.keras").write_text("not a zip")
    assert "expected a .keras file" in refused(tmp_path / "text.keras")


@pytest.mark.parametrize("content", [b"\xff" * 100, b"not a proto at all", b""], ids=["bytes", "text", "empty"])
def test_malformed_graph_is_refused(tmp_path, content):
    (tmp_path / "saved_model.pb").write_bytes(content)
    assert "saved_model.pb" in refused(tmp_path)


def test_missing_and_damaged_variables_are_refused(copied):
    data = copied / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:40])
    assert "variables are missing or damaged" in refused(copied)
    shutil.rmtree(copied / "variables")
    assert "variables are missing" in refused(copied)


def test_file_leading_outside_the_folder_is_refused(copied, tmp_path):
    (tmp_path / "outside").write_text("secret")
    (copied / "assets").mkdir(exist_ok=True)
    os.symlink(tmp_path / "outside", copied / "assets" / "words.txt")
    assert "outside its folder" in refused(copied)


def test_unknown_signature_is_refused_with_the_existing_ones(copied):
    assert "serving_default" in refused(copied, signature="predict")


def py_function(value):
    return tf.reshape(tf.py_function(lambda v: v * 2, [value], tf.float32), [-1])


def dataset(value):
    lines = tf.data.TextLineDataset("/etc/hostname").reduce(0.0, lambda total, _: total + 1.0)
    return value + lines


READERS = {
    "EagerPyFunc": py_function,
    "PyFunc": lambda value: tf.reshape(tf.numpy_function(lambda v: v * 2, [value], tf.float32), [-1]),
    "MatchingFiles": lambda value: value + tf.cast(tf.size(tf.io.matching_files("/etc/*")), tf.float32),
    "ReadFile": lambda value: value + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32),
    "FlatMapDataset": dataset,
    "RestoreV2": lambda value: value + tf.raw_ops.RestoreV2(
        prefix="/elsewhere", tensor_names=["w"], shape_and_slices=[""], dtypes=[tf.float32]
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_operations_reading_files_or_running_code_are_refused_by_name(tmp_path, name):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], name="value")])
        def score(self, value):
            return {"s": READERS[name](value)}

    module = Model()
    assert f"operation {name} is not allowed" in refused(saved(module, tmp_path / "model", module.score))


def test_side_effect_only_nodes_are_dropped_and_never_run(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], name="value")])
        def score(self, value):
            tf.io.write_file(str(tmp_path / "written"), "text")
            tf.print("text", output_stream=f"file://{tmp_path / 'printed'}")
            return {"s": value * 2.0}

    module = Model()
    options = ImportOptions(buckets=(1,))
    import_model(saved(module, tmp_path / "model", module.score), tmp_path / "repository", "model", options=options)
    assert not (tmp_path / "written").exists()
    assert not (tmp_path / "printed").exists()


def edited(folder, edit):
    """Edits the graph of a SavedModel; returns its folder."""
    path = folder / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    edit(model.meta_graphs[0])
    path.write_bytes(model.SerializeToString())
    return folder


def constant(nodes, name, text):
    """Adds a string to the nodes of a graph or function."""
    node = nodes.add(name=name, op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(text))


def redirect(meta, prefix):
    """Has every RestoreV2 of a model read another checkpoint; returns how many there were."""
    places = [(meta.graph_def.node, ""), *((f.node_def, ":output:0") for f in meta.graph_def.library.function)]
    found = 0
    for nodes, suffix in places:
        restoring = [node for node in nodes if node.op == "RestoreV2"]
        for node in restoring:
            node.input[0] = f"elsewhere{suffix}"
        if restoring:
            constant(nodes, "elsewhere", prefix)
        found += len(restoring)
    return found


@pytest.mark.parametrize("name", ["partitioned", "functions"])
def test_checkpoint_of_a_different_model_is_not_read(tmp_path, foreign, name):
    other = foreign["partitioned"] / "variables" / "variables"
    if name == "partitioned":
        copy = shutil.copytree(foreign["partitioned"], tmp_path / "model")
    else:
        copy = tmp_path / "model"
        model = keras.Sequential([keras.Input((2,), name="value"), keras.layers.Dense(1)])
        with without_deprecations():
            model.export(str(copy), format="tf_saved_model", verbose=False)
    found = []
    edited(copy, lambda meta: found.append(redirect(meta, str(other))))
    assert found[0] > 0
    assert "RestoreV2 reads a checkpoint that is not the model's own" in refused(copy)


def test_checkpoint_read_during_table_initialisation_is_refused(tmp_path, foreign):
    def restore_in_init(meta):
        init = meta.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name.partition(":")[0]
        nodes = meta.graph_def.node
        for text in ("elsewhere", "names", "slices"):
            constant(nodes, text, str(tmp_path / "x") if text == "elsewhere" else [""])
        node = nodes.add(name="reads", op="RestoreV2", input=["elsewhere", "names", "slices"])
        node.attr["dtypes"].list.type.append(tf.float32.as_datatype_enum)
        next(n for n in nodes if n.name == init).input.append("^reads")

    copy = edited(shutil.copytree(foreign["asset"], tmp_path / "model"), restore_in_init)
    assert "RestoreV2 reads a checkpoint that is not the model's own" in refused(copy)


def test_file_written_while_loading_is_refused_by_its_operation(tmp_path, foreign):
    def write_in_restore(meta):
        nodes = meta.graph_def.node
        for text in ("path", "content"):
            constant(nodes, text, str(tmp_path / "written"))
        nodes.add(name="writes", op="WriteFile", input=["path", "content"])
        restore = meta.saver_def.restore_op_name.partition(":")[0]
        next(n for n in nodes if n.name == restore).input.append("^writes")

    copy = edited(shutil.copytree(foreign["partitioned"], tmp_path / "model"), write_in_restore)
    assert "operation WriteFile is not allowed" in refused(copy)
    assert not (tmp_path / "written").exists()


def test_pipe_in_place_of_model_files_is_refused_without_blocking(copied, tmp_path):
    data = copied / "variables" / "variables.data-00000-of-00001"
    data.unlink()
    os.mkfifo(data)
    assert "'variables.data-00000-of-00001' is not a regular file" in refused(copied)
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "other" / "saved_model.pb")
    assert "saved_model.pb is missing" in refused(tmp_path / "other")


def test_table_initialised_from_a_file_outside_assets_is_refused(tmp_path, foreign):
    copy = shutil.copytree(foreign["asset"], tmp_path / "model")
    graph = (copy / "saved_model.pb").read_bytes()
    assert graph.count(b"words.txt") >= 1
    os.rename(copy / "assets" / "words.txt", copy / "assets" / "other.txt")
    assert "an asset is missing" in refused(copy)


def test_failed_import_leaves_nothing_behind(copied, tmp_path):
    shutil.rmtree(copied / "variables")
    with pytest.raises(FreshetError):
        import_model(copied, tmp_path / "repository", "model")
    assert list((tmp_path / "repository").rglob("*.json")) == []
    assert [p.name for p in (tmp_path / "repository").rglob("*") if p.is_dir()] in ([], ["model"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, v: {"s": tf.reduce_sum(v)}, "expected numbers for every row"),
        (lambda m, v: {"s": v - tf.reduce_mean(v)}, "depends on the other rows"),
        (lambda m, v: {"s": tf.strings.as_string(v)}, "at least one output of numbers"),
    ],
    ids=["a scalar", "rows that mix", "strings"],
)
def test_models_with_unbatchable_outputs_are_refused(tmp_path, function, message):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], name="value")])
        def score(self, value):
            return function(self, value)

    module = Model()
    with pytest.raises(BadInput, match=message):
        import_model(saved(module, tmp_path / "model", module.score), tmp_path / "repository", "model")


def test_asset_unused_by_the_init_operation_is_allowed(tmp_path):
    """As in TensorFlow Serving's own half_plus_two, a model of TensorFlow 1."""
    v1, asset = tf.compat.v1, tmp_path / "foo.txt"
    asset.write_text("asset-file-contents")
    with without_deprecations(), tf.Graph().as_default(), v1.Session() as session:
        serialized = v1.placeholder(tf.string, [None], name="tf_example")
        x = tf.io.parse_example(serialized, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]
        a, b = (v1.Variable(value, use_resource=False) for value in (0.5, 2.0))
        y = a * x + b
        named = v1.Variable("old", trainable=False, collections=[], use_resource=False)
        init, path = tf.group(named.assign("foo.txt")), v1.constant(str(asset))
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(tmp_path / "half"))
        info = v1.saved_model.build_tensor_info
        definition = v1.saved_model.build_signature_def({"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict")
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, path)
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {"serving_default": definition},
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=init,
        )
        builder.save()
    with open_source(tmp_path / "half", "serving_default") as opened:
        assert [i.name for i in opened.inputs] == ["x"]
        assert list(opened.outputs) == ["y"]


def test_folder_without_signatures_is_refused_with_a_way_to_write_them():
    with pytest.raises(BadInput, match=r"Keras 3: write it with model\.export"):
        foreign._signature(SimpleNamespace(signature_def={}), "serving_default")
