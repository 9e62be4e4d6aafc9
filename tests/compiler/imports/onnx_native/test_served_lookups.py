"""Initialisers that become tables, and the columns of inputs that their lookups read."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.served_lookups import find_lookups
from freshet_serving.compiler.imports.package_proof import prove
from tests.compiler.imports.onnx_native.native_models import ITEMS, normal, spelled

WEIGHTS = {"t": normal(ITEMS, 2), "zero": np.array(0), "two": np.array(2), "all": np.array([-1]), "one": np.array([1])}


def lookups(tmp_path, steps, ids="ids", columns="int64[n, 3]", **weights):
    text = f"g ({columns} ids, int64[n] other) => (r) {{ {steps} rows = Gather (t, {ids}) r = Shrink (rows) }}"
    return find_lookups(read_native(spelled(tmp_path / "m.onnx", text, **{**WEIGHTS, **weights})))


@pytest.mark.parametrize(
    ("steps", "ids", "columns", "axis", "dims"),
    [
        ("", "ids", [("ids", 0), ("ids", 1), ("ids", 2)], 0, (3, 2)),
        ("i = Transpose <perm = [1, 0]> (ids)", "i", [("ids", 0), ("ids", 1), ("ids", 2)], 1, (3, 2)),
        ("i = Gather <axis: int = 1> (ids, two)", "i", [("ids", 2)], 0, (2,)),
        ("i = Slice (ids, one, [3], one)".replace("[3]", "three"), "i", [("ids", 1), ("ids", 2)], 0, (2, 2)),
        ("f = Cast <to = 1> (ids) i = Cast <to = 7> (f)", "i", [("ids", 0), ("ids", 1), ("ids", 2)], 0, (3, 2)),
        ("i = Reshape (ids, all)", "i", [("ids", 0), ("ids", 1), ("ids", 2)], 0, (3, 2)),
        (
            "u = Unsqueeze (other, one) i = Concat <axis: int = 1> (u, ids)",
            "i",
            [("other", 0), ("ids", 0), ("ids", 1), ("ids", 2)],
            0,
            (4, 2),
        ),
    ],
)
def test_moved_ids_are_followed_to_their_columns(steps, ids, columns, axis, dims, tmp_path):
    (found,) = lookups(tmp_path, steps, ids, three=np.array([3]))
    assert list(found.columns) == columns
    assert (found.table, found.axis, found.dims) == ("t", axis, dims)


@pytest.mark.parametrize(
    ("steps", "ids"),
    [
        ("i = Add (ids, ids)", "i"),
        ("i = Sub (two, ids)", "i"),
        ("i = Add (ids, slopes)", "i"),
        ("u = Concat <axis: int = 1> (ids, ids) i = Add (u, six)", "i"),
        ("i = Abs (ids)", "i"),
        ("i = ReduceMax <keepdims: int = 0, axes = [1]> (ids)", "i"),
    ],
)
def test_computed_ids_are_no_lookup(steps, ids, tmp_path):
    more = {"slopes": np.arange(9).reshape(3, 3), "six": np.arange(6)}
    assert lookups(tmp_path, steps, ids, **more) == []


def test_constants_added_to_columns_are_found(tmp_path):
    steps = "i = Add (ids, first)"
    (found,) = lookups(tmp_path, steps, "i", first=np.array([0, 10, 20]))
    assert (found.columns, found.added) == ((("ids", 0), ("ids", 1), ("ids", 2)), (0, 10, 20))
    (found,) = lookups(tmp_path, "i = Add (ids, zero)", "i")
    assert (found.added, found.most_added) == ((), 0)


def test_ids_that_come_as_floats_are_found(tmp_path):
    steps = "part = Slice (ids, one, three, one) i = Cast <to = 7> (part)"
    (found,) = lookups(tmp_path, steps, "i", "float[n, 4]", three=np.array([3]))
    assert found.columns == (("ids", 1), ("ids", 2))


def test_initialiser_with_one_other_use_is_no_table(tmp_path):
    assert lookups(tmp_path, "l = Gather (t, other) turned = Transpose <perm = [1, 0]> (t)") != []
    text = """g (int64[n, 3] ids) => (r, s) {
        rows = Gather (t, ids)
        r = Shrink (rows)
        small = ReduceSum (t)
        s = Add (r, small)
    }"""
    assert find_lookups(read_native(spelled(tmp_path / "m.onnx", text, **WEIGHTS))) == []


def test_use_inside_a_body_is_another_use(tmp_path):
    text = """g (int64[n, 3] ids) => (r) {
        rows = Gather (t, ids)
        more = If (truth) <
            then_branch = a () => (x) { x = Gather (t, zero) }, else_branch = b () => (y) { y = Gather (t, two) }
        >
        s = Add (rows, more)
        r = Shrink (s)
    }"""
    weights = {**WEIGHTS, "truth": np.array(True)}
    assert find_lookups(read_native(spelled(tmp_path / "m.onnx", text, **weights))) == []


VIEWED = """g (int64[n,6] ids) => (float[n,1] y) {
    one = Constant <value_ints = [1]> () two = Constant <value_ints = [2]> () zero = Constant <value_ints = [0]> ()
    sizes = Shape (ids) rows = Slice (sizes, zero, one) length = Slice (sizes, one, two)
    SIZES
    viewed = Reshape (ids, view)
    e = Gather (emb, viewed)
    pooled = ReduceMean <axes = [1], keepdims = 0> (e)
    y = Gemm (pooled, w)
}"""
SIZES_OF_VIEWS = [
    "more = Mul (rows, one) view = Concat <axis = 0> (more, length)",
    "all = Size (ids) each = Div (all, rows) view = Concat <axis = 0> (rows, each)",
    "most = Max (length, one) view = Concat <axis = 0> (rows, most)",
]


@pytest.mark.parametrize("sizes", SIZES_OF_VIEWS)
@pytest.mark.parametrize("length", ["6", "m"])
def test_ids_behind_a_view_of_computed_sizes_are_looked_up(sizes, length, tmp_path):
    random = np.random.default_rng(0)
    weights = {"emb": random.standard_normal((50, 4)), "w": random.standard_normal((4, 1))}
    text = VIEWED.replace("SIZES", sizes).replace("n,6", f"n,{length}")
    path = spelled(tmp_path / "m.onnx", text, **{name: w.astype(np.float32) for name, w in weights.items()})
    importer = NativeImporter(path, "")
    manifest = importer.draft().manifest("m", 1)
    prove(importer, importer.draft(), manifest)
    # Behind a view of a free length `w` is a weight of the stage, which takes deltas as a table does.
    assert [table.name for table in manifest.tables] == (["emb", "w"] if length == "m" else ["emb"])
