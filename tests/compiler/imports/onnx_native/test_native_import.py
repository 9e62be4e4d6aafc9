"""ONNX files that ONNX Runtime computes as they are, imported and served: scores, deltas, what is refused."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, analyse, import_model
from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.compiler.imports.package_proof import prove
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import labelled
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.onnx_native import native_models
from tests.compiler.imports.onnx_native.native_models import ITEMS, own_scores, spelled
from tests.compiler.imports.replies import replies, started

ROWS = 200
A, B = 3, 8
RANDOM = np.random.default_rng(7)
BUCKETS = (1, 8, 64)


def floats(columns):
    return RANDOM.standard_normal((ROWS, columns)).astype(np.float32)


def ids(*columns):
    return RANDOM.integers(0, ITEMS, (ROWS, *columns))


MODELS = {
    "regressor": (native_models.regressor, {"input": floats(6)}),
    "classifier": (native_models.classifier, {"input": floats(5)}),
    "scaled_linear": (native_models.scaled_linear, {"X": floats(4)}),
    "gru": (
        lambda path: spelled(path, native_models.GRU, **native_models.GRU_WEIGHTS),
        {"history": ids(5), "target": ids()},
    ),
    "lstm": (
        lambda path: spelled(path, native_models.LSTM, **native_models.LSTM_WEIGHTS),
        {"history": ids(5), "dense": floats(2)},
    ),
    "conv": (lambda path: spelled(path, native_models.CONV, **native_models.CONV_WEIGHTS), {"history": ids(5)}),
    "scan": (lambda path: spelled(path, native_models.SCAN, **native_models.SCAN_WEIGHTS), {"history": ids(5)}),
    "loop": (
        lambda path: spelled(path, native_models.LOOP, **native_models.LOOP_WEIGHTS),
        {"history": ids(5), "times": RANDOM.integers(0, 2, (ROWS, 1))},
    ),
    "attention": (
        lambda path: spelled(path, native_models.ATTENTION, microsoft=1, **native_models.ATTENTION_WEIGHTS),
        {"history": ids(5)},
    ),
}
WITH_TABLES = ("gru", "lstm", "conv", "scan", "attention")


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """name of one of MODELS -> (file, repository, manifest); each imported once."""
    folder, done = tmp_path_factory.mktemp("native"), {}

    def get(name):
        if name not in done:
            path = MODELS[name][0](folder / f"{name}.onnx")
            found = import_model(path, folder / name, name, options=ImportOptions(buckets=BUCKETS))
            done[name] = path, folder / name, VersionReader(found.folder).manifest
        return done[name]

    return get


def same_scores(got, wanted, names):
    for name in names:
        np.testing.assert_allclose(
            got[name].reshape(ROWS, -1), np.asarray(wanted[name], np.float32).reshape(ROWS, -1), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("name", [name for name in MODELS if name != "classifier"])
def test_served_scores_are_those_of_onnx_runtime(name, imported):
    path, repository, manifest = imported(name)
    inputs = MODELS[name][1]

    assert manifest.stage is None
    assert {e.backend for e in manifest.executables} == {"onnxruntime"}
    assert len({e.file for e in manifest.executables}) == 1
    numbers = [o.name for o in manifest.outputs if o.dtype != "string"]
    same_scores(replies(repository, name, inputs), own_scores(path, inputs), numbers)


def test_dictionaries_of_classes_are_served_as_a_matrix(imported):
    path, repository, manifest = imported("classifier")
    inputs = MODELS["classifier"][1]
    wanted = own_scores(path, inputs)
    wanted["probabilities"] = np.array([[row[0], row[1]] for row in wanted["probabilities"]])

    assert [(o.name, o.columns, o.dtype) for o in manifest.outputs] == [
        ("label", 1, "int64"),
        ("probabilities", 2, "float32"),
    ]
    same_scores(replies(repository, "classifier", inputs), wanted, wanted)


def test_output_of_strings_is_served_as_labels(imported):
    path, repository, manifest = imported("scaled_linear")
    assert [(o.name, o.labels) for o in manifest.outputs] == [("label", ["no", "yes"]), ("probabilities", None)]
    inputs = MODELS["scaled_linear"][1]
    found = labelled(replies(repository, "scaled_linear", inputs)["label"].ravel(), manifest.texts["label"])
    assert found.tolist() == own_scores(path, inputs)["label"].tolist()
    notes = manifest.notes["import"]["notes"]
    assert "ONNX Runtime computes the graph as it is: operator Scaler of ai.onnx.ml has no translation" in notes


def with_ids(inputs, old, new):
    """The inputs with one id in the place of another."""
    return {k: np.where(v == old, new, v) if v.dtype == np.int64 else v for k, v in inputs.items()}


@pytest.mark.parametrize("name", WITH_TABLES)
def test_delta_of_the_embedding_reaches_every_use(name, imported):
    _, repository, manifest = imported(name)
    inputs, replaced = (with_ids(MODELS[name][1], old, new) for old, new in ((A, B), (B, A)))
    output = manifest.outputs[0].name

    assert [table.name for table in manifest.tables] == ["items.weight"]
    with started(repository) as processor:
        before = [processor.process(PredictRequest(name, one)).outputs[output] for one in (inputs, replaced)]
        publisher = Publisher(repository, name)
        rows = publisher.served().rows("items.weight", np.array([B], np.int64))[1]
        publisher.publish({"items.weight": (np.array([A]), rows)})
        processor.poll()
        after = [processor.process(PredictRequest(name, one)).outputs[output] for one in (inputs, replaced)]

    assert np.abs(before[0] - before[1]).max() > 1e-4
    np.testing.assert_array_equal(after[0], after[1])
    np.testing.assert_array_equal(after[0], before[0])


def test_dense_delta_changes_the_weights_of_the_recurrent_layer(imported):
    _, repository, _ = imported("lstm")
    dense = VersionReader(repository / "lstm" / "1").dense()
    inputs = MODELS["lstm"][1]
    assert set(dense) == {"W", "R", "top.weight"}
    before = replies(repository, "lstm", inputs)["score"]
    Publisher(repository, "lstm").publish({}, dense={**dense, "top.weight": dense["top.weight"] * np.float32(2)})
    after = replies(repository, "lstm", inputs)["score"]
    np.testing.assert_allclose(after, 2 * before, rtol=1e-5, atol=1e-6)


def test_table_with_another_use_stays_one_dense_weight(tmp_path):
    tied = """g (int64[batch, 5] history) => (float[batch, 30] score) {
        rows = Gather ("items.weight", history)
        channels = Transpose <perm = [0, 2, 1]> (rows)
        folded = Conv <kernel_shape = [5]> (channels, "conv.weight")
        state = Squeeze (folded, last)
        turned = Transpose <perm = [1, 0]> ("items.weight")
        score = MatMul (state, turned)
    }"""
    weights = {
        "items__weight": native_models.normal(ITEMS, 4),
        "conv__weight": native_models.normal(4, 4, 5),
        "last": np.array([2]),
    }
    found = import_model(spelled(tmp_path / "tied.onnx", tied, **weights), tmp_path / "models", "tied")
    manifest = VersionReader(found.folder).manifest

    assert manifest.tables == []
    assert manifest.dense["items.weight"] == [ITEMS, 4]
    publisher = Publisher(tmp_path / "models", "tied")
    with pytest.raises(BadInput, match=r"items\.weight"):
        publisher.publish({"items.weight": (np.array([A]), weights["items__weight"][[B]])})


@pytest.mark.parametrize(
    ("columns", "nodes", "message"),
    [
        ("4", "y = MeanVarianceNormalization <axes = [0]> (x)", "depends on the other rows"),
        (
            "4",
            "fifth = Gather <axis = 0> (x, four) s = Add (x, fifth) y = Shrink (s)",
            "expected one that runs for any number of rows, got one that fails for 3 of",
        ),
        ("any", "y = Shrink (x)", r"input 'x': expected a fixed size of each row, got \['rows', 'any'\]"),
    ],
    ids=["mixes rows", "needs five rows", "free width"],
)
def test_graph_that_is_no_function_of_a_row_is_refused(columns, nodes, message, tmp_path):
    text = f"g (float[batch, {columns}] x) => (float[batch, {columns}] y) {{ {nodes} }}"
    with pytest.raises(BadInput, match=message):
        import_model(spelled(tmp_path / "m.onnx", text, four=np.array([4])), tmp_path / "models", "m")


def test_report_is_the_same_without_an_import(imported):
    path, _, manifest = imported("gru")
    report = analyse(path)
    assert report == manifest.notes["import"]
    assert report["sides"]["tables"] == {"Gather": 2}
    assert report["sides"]["dense"]["GRU"] == 1


def test_user_inputs_are_sent_once_and_computed_with_every_candidate(tmp_path):
    path = spelled(tmp_path / "m.onnx", native_models.GRU, **native_models.GRU_WEIGHTS)
    found = import_model(path, tmp_path / "models", "m", options=ImportOptions(buckets=(1, 8), user=("history",)))
    manifest = VersionReader(found.folder).manifest
    history, target = ids(5)[:1], ids()

    assert {f.input for f in manifest.features if f.side == "user"} == {"history"}
    assert "user-once: ONNX Runtime computes the user's part with every candidate" in found.report["notes"]
    got = replies(tmp_path / "models", "m", {"history": history, "target": target})
    same_scores(got, own_scores(path, {"history": history.repeat(ROWS, 0), "target": target}), ["score"])
    with pytest.raises(BadInput, match="user: expected one of the inputs history, target, got 'past'"):
        import_model(path, tmp_path / "models", "other", options=ImportOptions(user=("past",)))


def test_import_needs_no_tensorflow(tmp_path):
    path = native_models.regressor(tmp_path / "m.onnx")
    program = (
        "import sys, pathlib\n"
        "from freshet_serving.compiler.imports.importing import import_model\n"
        f"import_model(pathlib.Path({str(path)!r}), {str(tmp_path / 'models')!r}, 'm')\n"
        "print('tensorflow' in sys.modules, 'jax' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr[-2000:]


def test_weights_outside_the_file_become_tables_weights_and_constants(tmp_path):
    """As PyTorch's exporters write a large model: every initialiser in a file beside it."""
    path = spelled(tmp_path / "m.onnx", native_models.GRU, **native_models.GRU_WEIGHTS)
    proto = onnx.load_from_string(path.read_bytes())
    onnx.save_model(proto, path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    found = import_model(path, tmp_path / "models", "m", options=ImportOptions(buckets=BUCKETS))
    inputs = MODELS["gru"][1]
    inside = MODELS["gru"][0](tmp_path / "inside.onnx")

    assert (tmp_path / "m.onnx.data").stat().st_size > 0
    assert [t.name for t in VersionReader(found.folder).manifest.tables] == ["items.weight"]
    same_scores(replies(tmp_path / "models", "m", inputs), own_scores(inside, inputs), ["score"])


# Operators by the dozen, each for what is special about it.
OTHERS = {
    "a size that is a weight by its type": (
        'g (float[n,1,8] x) => (float[n,1,16] y) { y = Resize <mode: string = "linear"> (x, , scales) }',
        {"scales": np.array([1, 1, 2], np.float32)},
    ),
    "a quantised table": (
        "g (int64[n] i) => (float[n,4] y) { d = DequantizeLinear (q, s, z) r = Gather (d, i) y = Tanh (r) }",
        {"q": np.arange(80, dtype=np.int8).reshape(20, 4), "s": np.float32(0.1), "z": np.int8(3)},
    ),
    "a sequence of tensors": (
        """g (int64[n,3] i) => (float[n,4] y) {
            r = Gather (t, i)
            s = SplitToSequence <axis: int = 1, keepdims: int = 0> (r)
            y = SequenceAt (s, two)
        }""",
        {"t": native_models.normal(20, 4), "two": np.array(2)},
    ),
    "half precision": (
        "g (float16[n,4] x) => (float16[n,4] y) { a = Cast <to = 1> (x) b = Shrink (a) y = Cast <to = 10> (b) }",
        {},
    ),
    "truth values": (
        "g (bool[n,3] m) => (float[n,3] y) { a = Cast <to: int = 1> (m) y = Shrink <lambd: float = 0> (a) }",
        {},
    ),
    "one number a row": ("g (float[n] x) => (float[n] y) { y = Shrink (x) }", {}),
    "an image": (
        """g (float[n,1,6,6] image) => (float[n,2] y) {
            c = Conv <kernel_shape = [3, 3]> (image, w)
            p = GlobalAveragePool (c)
            y = Flatten (p)
        }""",
        {"w": native_models.normal(2, 1, 3, 3)},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_import_proves_every_kind_of_graph_on_samples(name, tmp_path):
    """Importing compares the package with ONNX Runtime on 200 rows, and refuses it if they differ."""
    text, weights = OTHERS[name]
    path = spelled(tmp_path / "m.onnx", text, **weights)
    found = import_model(path, tmp_path / "models", "m", options=ImportOptions(buckets=(1, 8)))
    assert found.report["notes"][0].startswith("ONNX Runtime computes the graph as it is")


COMPUTED_IDS = """g (int64[n, 1] i) => (float[n, 2] y) {
    j = Abs (i)
    k = Squeeze (j, one)
    a = Gather (t, k)
    y = Shrink <lambd: float = 0> (a)
}"""


def test_request_with_refused_ids_fails_alone(tmp_path):
    path = spelled(tmp_path / "m.onnx", COMPUTED_IDS, t=native_models.normal(12, 2), one=np.array([1]))
    import_model(path, tmp_path / "models", "m", options=ImportOptions(buckets=(8,)))
    good = {"i": np.arange(3).reshape(3, 1)}
    with started(tmp_path / "models") as processor:
        before = processor.process(PredictRequest("m", good)).outputs["y"]
        with pytest.raises(BadInput, match="the model refuses these inputs: an index or a size in it is out of range"):
            processor.process(PredictRequest("m", {"i": np.full((8, 1), 99)}))
        np.testing.assert_array_equal(processor.process(PredictRequest("m", good)).outputs["y"], before)


def test_single_number_beside_scores_is_left_out_with_a_note(tmp_path):
    text = "g (float[n,2] x) => (float[n,2] y, float total) { y = Shrink (x) total = ReduceMean <keepdims = 0> (w) }"
    importer = NativeImporter(spelled(tmp_path / "m.onnx", text, w=np.ones(2, np.float32)), "")

    assert [output.name for output in importer.draft().manifest("m", 1).outputs] == ["y"]
    assert any("output 'total' is one number for the whole batch: left out" in note for note in importer.notes)


def test_dynamic_quantisation_is_refused_with_its_cause_and_a_way_out(tmp_path):
    text = "g (float[n,2] x) => (float[n,2] y) { q, s, z = DynamicQuantizeLinear (x) y = DequantizeLinear (q, s, z) }"
    with pytest.raises(BadInput, match=r"quantised dynamically .* quantise that with quantize_static"):
        NativeImporter(spelled(tmp_path / "m.onnx", text), "")


HALF = """g (int64[n] item, float16[n,1] price) => (float16[n,1] score) {
    e = Gather (emb, item)
    x = Concat <axis = 1> (e, price)
    z = Gemm (x, w)
    score = Sigmoid (z)
}"""


def test_file_in_float16_gives_its_own_scores_within_its_precision(tmp_path):
    random = np.random.default_rng(0)
    emb, w = (random.standard_normal(shape).astype(np.float16) for shape in ((99, 4), (5, 1)))
    importer = NativeImporter(spelled(tmp_path / "m.onnx", HALF, emb=emb, w=w), "")
    prove(importer, importer.draft(), importer.draft().manifest("m", 1))


def named(path, *names, output="y"):
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2]) for name in (*names, output)]
    nodes = [onnx.helper.make_node("Concat", names, ["c"], axis=1), onnx.helper.make_node("Shrink", ["c"], [output])]
    infos[-1].type.tensor_type.shape.dim[1].dim_value = 2 * len(names)
    graph = onnx.helper.make_graph(nodes, "g", infos[:-1], infos[-1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_names_that_a_package_cannot_have_are_kept_beside_plain_ones(tmp_path):
    path = named(tmp_path / "m.onnx", "user:age", "item", output="p:click")
    importer = NativeImporter(path, "", samples={"user:age": [[1, 2]], "item": [[3, 4]]})
    manifest = importer.draft().manifest("m", 1)
    assert ([i.name for i in manifest.inputs], [o.name for o in manifest.outputs]) == (
        ["user_age", "item"],
        ["p_click"],
    )
    assert manifest.own_names == {"user:age": "user_age"}
    assert list(manifest.replies()) == ["p:click"]
    with pytest.raises(BadInput, match=r"got 'user:age', 'user/age'"):
        NativeImporter(named(path, "user:age", "user/age"), "")


def test_plain_names_add_nothing_to_the_manifest(tmp_path):
    manifest = NativeImporter(named(tmp_path / "m.onnx", "age", "item"), "").draft().manifest("m", 1)
    assert b"own_names" not in manifest.to_json()
    assert b"signatures" not in manifest.to_json()
