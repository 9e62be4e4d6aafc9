"""Whole numbers that float32 does not hold pass through an ONNX graph unchanged: ids beside scores, the best ones."""

import numpy as np

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.whole_outputs import exact_outputs
from freshet_serving.compiler.imports.package_proof import prove
from tests.compiler.imports.onnx_native.native_models import spelled
from tests.compiler.imports.replies import declared_replies

IDS = np.array([[2**24 + 1, 7, -(2**24) - 1], [2**62 + 1, -(2**63), 2**63 - 1]])
PRICE = np.array([[0.1, 0.3, 0.2], [3.0, 1.0, 2.0]], np.float32)
NATIVE = """g (int64[n,3] ids, float[n,3] price)
        => (float[n,2] score, int64[n,2] best, int64[n,3] same, int64[n,2] place) {
    p = Shrink <lambd = 0.0> (price)
    k = Constant <value_ints = [2]> ()
    score, place = TopK (p, k)
    best = GatherElements <axis = 1> (ids, place)
    same = Identity (ids)
}"""
STAGED = """g (int64[n,m] ids, float[n,1] price) => (float[n,1] score, int64[n] most) {
    score = Shrink (price)
    most = ReduceMax <axes = [1], keepdims = 0> (ids)
}"""


def replies(tmp_path, path, inputs):
    import_model(path, tmp_path / "r", "m", options=ImportOptions(buckets=(1, 4)))
    return declared_replies(tmp_path / "r", "m", inputs)


def test_ids_that_pass_through_or_are_selected_keep_their_bits(tmp_path):
    found = replies(tmp_path, spelled(tmp_path / "m.onnx", NATIVE), {"ids": IDS, "price": PRICE})
    place = np.argsort(-PRICE, axis=1)[:, :2]
    assert found["same"].dtype == np.int64
    np.testing.assert_array_equal(found["same"], IDS)
    np.testing.assert_array_equal(found["best"], np.take_along_axis(IDS, place, 1))
    np.testing.assert_array_equal(found["place"], place)


def test_whole_types_are_exact_over_their_range(tmp_path):
    dtypes = ("int32", "uint32", "uint64")
    given, same = (", ".join(f"{dtype}[n] {name}{dtype}" for dtype in dtypes) for name in ("id_", "same_"))
    steps = " ".join(f"same_{dtype} = Identity (id_{dtype})" for dtype in dtypes)
    text = f"g ({given}, float[n,1] x) => ({same}, float[n,1] y) {{ {steps} y = Shrink (x) }}"
    ids = {d: np.array([np.iinfo(d).min, np.iinfo(d).max, 2**24 + 1], d) for d in dtypes}
    inputs = {f"id_{dtype}": values.astype(np.int64) for dtype, values in ids.items()}
    found = replies(tmp_path, spelled(tmp_path / "m.onnx", text), inputs | {"x": np.zeros((3, 1), np.float32)})
    for dtype, values in ids.items():
        assert (found[f"same_{dtype}"].dtype, found[f"same_{dtype}"].tolist()) == (values.dtype, values.tolist())


def test_whole_numbers_of_a_stage_are_exact(tmp_path):
    importer = NativeImporter(spelled(tmp_path / "m.onnx", STAGED), "")
    assert {o.name: (o.exact, o.columns) for o in importer.draft().manifest("m", 1).outputs} == {
        "most": (True, 3), "score": (False, 1),
    }  # fmt: skip
    prove(importer, importer.draft(), importer.draft().manifest("m", 1))


def test_places_and_counts_stay_single_numbers(tmp_path):
    outputs, inputs = exact_outputs(read_native(spelled(tmp_path / "m.onnx", NATIVE)))
    assert (outputs, inputs) == ({"best", "same"}, {"ids"})


def test_constants_above_24_bits_make_an_output_exact(tmp_path):
    text = "g (float[n,3] x) => (int64[n] id) { best = ArgMax <axis = 1, keepdims = 0> (x) id = Gather (names, best) }"
    path = spelled(tmp_path / "m.onnx", text, names=np.array([5, 2**40 + 1, 7]))
    assert exact_outputs(read_native(path)) == ({"id"}, set())
