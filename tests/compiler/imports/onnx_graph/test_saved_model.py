"""ONNX files all the way into packages: names, inputs, tables, what is refused."""

import time

import numpy as np
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.foreign import refused
from tests.compiler.imports.onnx_graph.spelled import (
    SUM,
    TABLE,
    bags_of,
    changed,
    dynamo_bag,
    torchscript_bag,
    truncated,
    written,
)
from tests.compiler.imports.onnx_native.native_models import ENDLESS

RANDOM = np.random.default_rng(9)
FIELDS = """g (float[batch, 2] dense, int64[batch, 3] ids) => (float[batch, 1] "the/score") {
    c0 = Constant <value: tensor = int64 {0}> ()
    c2 = Constant <value: tensor = int64 {2}> ()
    first = Gather <axis: int = 1> (ids, c0)
    third = Gather <axis: int = 1> (ids, c2)
    a = Gather <axis: int = 0> ("fields.0.weight", first)
    b = Gather <axis: int = 0> ("fields.1.weight", third)
    x = Concat <axis: int = 1> (dense, a, b)
    y = Gemm <transB: int = 1> (x, "top.weight", "top.bias")
    scaled = Mul (y, scale)
    "the/score" = Sigmoid (scaled)
}"""
WEIGHTS = {
    "fields__0__weight": RANDOM.standard_normal((30, 4)).astype(np.float32),
    "fields__1__weight": RANDOM.standard_normal((50, 4)).astype(np.float32),
    "top__weight": RANDOM.standard_normal((1, 10)).astype(np.float32),
    "top__bias": np.ones(1, np.float32),
    "scale": np.float32(1.5),
}


def imported(path, tmp_path, **options):
    done = import_model(path, tmp_path / "repository", "model", options=ImportOptions(buckets=(1, 8), **options))
    return VersionReader(done.folder), done.report


def test_tables_keep_initialiser_names_and_id_columns_need_no_stage(tmp_path):
    reader, report = imported(written(tmp_path / "m.onnx", FIELDS, **WEIGHTS), tmp_path)
    manifest = reader.manifest

    assert report["source"] == "ONNX"
    assert {t.name: (t.rows, t.dim) for t in manifest.tables} == {
        "fields.0.weight": (30, 4),
        "fields.1.weight": (50, 4),
    }
    assert {f.table: (f.input, f.column) for f in manifest.features if f.table} == {
        "fields.0.weight": ("ids", 0),
        "fields.1.weight": ("ids", 2),
    }
    assert {name: array.shape for name, array in reader.dense().items()} == {
        "top.weight": (1, 10),
        "top.bias": (1,),
        "scale": (),
    }
    assert [output.name for output in manifest.outputs] == ["the_score"]
    assert manifest.stage is None
    assert report["notes"] == []


def not_imported(path, tmp_path):
    """What the import of a model ends with."""
    with pytest.raises(BadInput) as refusal:
        imported(path, tmp_path)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("text", "opset", "combiner"),
    [(torchscript_bag("ReduceMean", last=True), 13, "mean"), (dynamo_bag(SUM), 20, "sum")],
    ids=["torchscript", "dynamo"],
)
def test_ids_and_offsets_become_one_ragged_input_that_takes_deltas(text, opset, combiner, tmp_path):
    """The samples that a user gives are named as the inputs of the package."""
    path, samples = written(tmp_path / "m.onnx", text, opset, emb__weight=TABLE), {"ids": [[1, 2], [3], [4, 5, 6]]}
    reader, report = imported(path, tmp_path, samples=samples)
    manifest = reader.manifest

    assert [(i.name, i.ragged) for i in manifest.inputs] == [("ids", True)]
    assert [(t.name, t.rows) for t in manifest.tables] == [("emb.weight", 20)]
    assert [f.combiner for f in manifest.features] == [combiner]
    assert manifest.stage is None
    assert report["notes"] == []


def test_version_is_written_next_to_its_source_in_the_repository(tmp_path):
    path = tmp_path / "repository" / "model" / "3"
    path.mkdir(parents=True)
    written(path / "model.onnx", FIELDS, **WEIGHTS)
    options = ImportOptions(buckets=(1,))
    done = import_model(path / "model.onnx", tmp_path / "repository", "model", 3, options=options)
    assert done.folder == path
    assert (path / "model.onnx").is_file()


def test_invalid_or_truncated_onnx_file_is_refused_in_one_line(tmp_path):
    path = written(tmp_path / "m.onnx", FIELDS, **WEIGHTS)
    assert "not an ONNX file" in refused(truncated(path, 40))
    path.write_bytes(b"zip")
    assert "not an ONNX file" in refused(path)


def test_loop_that_is_not_a_bag_is_refused_without_running(tmp_path):
    begun = time.monotonic()
    assert "operator Loop of ai.onnx (opset 17) is not supported" in refused(written(tmp_path / "m.onnx", ENDLESS))
    assert time.monotonic() - begun < 10


def test_model_whose_rows_depend_on_each_other_is_refused(tmp_path):
    text = "g (float[batch, 2] x) => (float[batch, 2] y) { m = ReduceMean <axes: ints = [0]> (x) y = Sub (x, m) }"
    assert "depends on the other rows" in not_imported(written(tmp_path / "m.onnx", text), tmp_path)


def test_output_without_rows_is_refused(tmp_path):
    for made in ("y = ReduceSum <keepdims: int = 0> (x)", "z = Neg (x) y = Identity (w)"):
        text = f"g (float[batch, 2] x) => (float y) {{ {made} }}"
        path = written(tmp_path / "m.onnx", text, w=np.ones(2, np.float32))
        assert "output 'y': expected numbers for every row" in not_imported(path, tmp_path)


def test_file_is_served_natively_if_its_translation_differs(tmp_path, monkeypatch):
    from freshet_serving.compiler.imports.onnx_graph import translation

    monkeypatch.setitem(translation.TRANSLATORS, "Sigmoid", lambda call: call.x())
    report = imported(written(tmp_path / "m.onnx", FIELDS, **WEIGHTS), tmp_path)[1]
    assert report["notes"][0].startswith(
        "ONNX Runtime computes the graph as it is: its translation was refused: output"
    )


def test_bag_with_extra_work_in_its_loop_is_refused(tmp_path):
    """It has all that a bag has, and one number more."""
    text = dynamo_bag(SUM).replace("some = ReduceSum (rows, axis)", "s = ReduceSum (rows, axis)\n some = Add (s, ones)")
    assert "from ONNX Runtime's" in not_imported(written(tmp_path / "m.onnx", text, 20, emb__weight=TABLE), tmp_path)


@pytest.mark.parametrize(("work", "staged"), [("Abs (ids)", True), ("Mod (ids, rows_of_it)", False)])
def test_bag_of_computed_ids_is_pooled_by_stage_or_transform(work, staged, tmp_path):
    """PyTorch's `bag(ids.abs(), offsets)`, which a stage computes, and `bag(ids % 20, offsets)`, a transform."""
    text = dynamo_bag(SUM).replace(
        "indices_1d = Reshape (ids, neg_1)",
        f"""
        rows_of_it = Constant <value: tensor = int64 {{20}}> ()
        small = {work}
        indices_1d = Reshape (small, neg_1)""",
    )
    reader, _ = imported(written(tmp_path / "m.onnx", text, 20, emb__weight=TABLE), tmp_path)
    stage = reader.manifest.stage
    assert [o.ragged for o in stage.outputs] == [True] if staged else stage is None
    assert [(t.name, t.rows) for t in reader.manifest.tables] == [("emb.weight", 20)]


def test_ids_may_have_any_integer_type(tmp_path):
    text = """g (int32[batch] a, uint8[batch] b) => (float[batch, 4] y) {
        x = Gather <axis: int = 0> ("emb.weight", a)
        i = Cast <to: int = 7> (b)
        z = Gather <axis: int = 0> ("more.weight", i)
        y = Add (x, z)
    }"""
    reader, _ = imported(written(tmp_path / "m.onnx", text, emb__weight=TABLE, more__weight=TABLE + 1), tmp_path)
    assert {t.name: t.rows for t in reader.manifest.tables} == {"emb.weight": 20, "more.weight": 20}


def test_models_in_other_float_types_keep_their_types(tmp_path):
    text = """g (float16[batch, 2] x, double[batch, 2] z) => (float16[batch, 2] y, double[batch, 2] w) {
        y = Mul (x, half)
        w = Mul (z, double)
    }"""
    path = written(tmp_path / "m.onnx", text, half=np.ones(2, np.float16), double=np.ones(2))
    reader, report = imported(path, tmp_path, translate=True)
    assert {i.name: (i.dtype, i.declared) for i in reader.manifest.inputs} == {
        "x": ("float32", "float16"),
        "z": ("float32", "float64"),
    }
    assert {o.name: o.dtype for o in reader.manifest.outputs} == {"y": "float16", "w": "float64"}
    assert sum("computed as float32" in note for note in report["notes"]) == 2


def test_inputs_with_colliding_plain_names_are_refused(tmp_path):
    text = 'g (float[n, 1] "a/b", float[n, 1] "a b") => (float[n, 1] y) { y = Add ("a/b", "a b") }'
    refusal = refused(written(tmp_path / "m.onnx", text))
    assert "input 'a/b': expected inputs whose names differ in letters and digits, got 'a b' too" in refusal


def test_fixed_batch_is_refused_with_export_advice(tmp_path):
    path = written(tmp_path / "m.onnx", FIELDS.replace("batch, 2", "1, 2"), **WEIGHTS)
    assert "got 1: export it with a batch of any size: dynamic_axes=" in refused(path)


def test_reference_model_is_fed_with_its_original_inputs(tmp_path):
    """A bag that nobody names: offsets are made of the row splits that requests have."""
    fed = bags_of([2, 0, 1])
    assert fed["off"].tolist() == [0, 2, 2]
    path = changed(written(tmp_path / "m.onnx", torchscript_bag(), emb__weight=TABLE), lambda proto: None)
    with pytest.raises(BadInput, match="user: expected one of the inputs ids"):
        imported(path, tmp_path, user=["off"])
