"""Graphs in which numbers of a request say how much is computed are refused, others are not."""

import numpy as np
import pytest
from onnx import parser

from freshet_serving.compiler.imports.importing import import_model
from freshet_serving.compiler.imports.onnx_native.value_sizes import check_sizes
from freshet_serving.processor.errors import BadInput, TooLarge
from tests.compiler.imports.onnx_native.native_models import spelled

CONSTANTS = """
    zero = Constant <value: tensor = int64 {0}> ()
    ten = Constant <value: tensor = int64 {10}> ()
    endless = Constant <value: tensor = int64 {9223372036854775807}> ()
    go = Constant <value: tensor = bool {1}> ()
    one = Constant <value: tensor = int64[1] {1}> ()
"""
BODY = "<body = b (int64 i, bool c, float[r, 4] v) => (bool again, float[r, 4] w) { w = Add (v, v) again = %s }>"


FLAGS = "f = Equal (k, zero) w0 = Cast <to = 7> (f) all = Identity (one) count = ReduceSum (w0) "


def checked(steps):
    text = f"g (float[n, 4] x, int64[n] k) => (y) {{ {CONSTANTS} {steps} }}"
    check_sizes(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))


@pytest.mark.parametrize(
    "steps",
    [
        "m = ReduceMax <keepdims: int = 0> (k) y = Range (zero, m, ten)",
        "y = ConstantOfShape (k)",
        "s = Shape (x) t = Add (s, k) y = Expand (x, t)",
        "y = Tile (x, k)",
        "f = Cast <to = 7> (x) m = ReduceMax (f) p = Reshape (m, one) y = Pad (x, p)",
        "d = Squeeze (k, zero) y = OneHot (k, d, one)",
        "d = Squeeze (k, zero) y = Loop" + BODY % "Identity (c)" + " (d, go, x)",
        "y = Loop" + BODY % "Less (v, v)" + " (endless, go, x)",
        "y = Loop" + BODY % "Less (v, v)" + ' ("", go, x)',
        "y = If (go) <then_branch = a () => (p) { p = Tile (x, k) }, else_branch = b () => (q) { q = Abs (x) }>",
        FLAGS + "big = Mul (count, ten) y = Expand (one, big)",
        FLAGS + "more = Add (count, k) y = Expand (one, more)",
        FLAGS + "again = ReduceSum (count) y = Expand (one, again)",
        FLAGS + "v = Where (f, k, zero) y = ConstantOfShape (v)",
        "y = Loop <body = b (int64 i, bool c, int64[r] v) => (bool again, int64[r] w) { again = Identity (c) "
        "f = Equal (k, zero) g = Cast <to = 7> (f) n = ReduceSum (g) w = Add (v, n) u = Expand (x, w) }> "
        "(ten, go, one)",
        "y, z = Scan <num_scan_inputs = 1, body = b (int64[r] v, int64 e) => (int64[r] w, int64[r] o) "
        "{ w = Add (v, e) o = ConstantOfShape (v) }> (one, k)",
        "y = Loop <body = b (int64 i, bool c, int64[r] v) => (bool again, int64[r] w) "
        "{ again = Identity (c) t = Cast <to = 7> (x) u = Tile (v, t) w = Identity (u) }> (ten, go, one)",
    ],
)
def test_size_from_values_is_refused(steps):
    with pytest.raises(BadInput, match="follows from shapes, got one that follows from numbers of the request"):
        checked(steps)


@pytest.mark.parametrize(
    "steps",
    [
        "s = Shape (x) y = Expand (k, s)",
        "s = Shape (x) n = Gather (s, zero) y = Range (zero, n, ten)",
        "y = Range (zero, ten, ten)",
        "y = Compress (x, k)",
        "y = Loop" + BODY % "Identity (c)" + " (ten, go, x)",
        "y = Loop" + BODY % "Less (v, v)" + " (ten, go, x)",
        "s = Size (x) y = Loop" + BODY % "Less (v, v)" + " (s, go, x)",
        "y = Gather (x, k)",
        FLAGS + "y = Expand (one, count)",
        FLAGS + "p = NonZero (f) w = Reshape (p, all) m = ReduceMax (w) y = Tile (x, m)",
        FLAGS + "c = Squeeze (count, zero) y = Range (zero, c, ten)",
        FLAGS + "c = Squeeze (count, zero) y = Loop" + BODY % "Identity (c)" + " (c, go, x)",
        FLAGS + "s = Size (x) t = Add (s, count) y = ConstantOfShape (t)",
        # What is carried beside values is none: the counter of a loop over rows.
        "n = Size (k) t = Less (zero, n) y, z = Loop <body = b (int64 i, bool c, float[r, 4] v, int64 j) => "
        "(bool again, float[r, 4] w, int64 l) { w = Add (v, x) l = Add (j, ten) again = Less (l, n) }> "
        '("", t, x, zero)',
    ],
)
def test_size_from_shapes_and_constants_is_taken(steps):
    checked(steps)


@pytest.mark.parametrize(
    "steps",
    [
        "huge = Constant <value_ints = [1000000, 1000000]> () y = ConstantOfShape (huge)",
        "huge = Constant <value_ints = [1000000, 1000000]> () y = Expand (one, huge)",
        "huge = Constant <value_ints = [100000000]> () y = Tile (one, huge)",
        "step = Constant <value_int = 1> () y = Range (zero, endless, step)",
        "huge = Constant <value_ints = [0, 0, 0, 100000000]> () y = Pad (x, huge)",
        "y = RandomNormal <shape = [100000, 100000]> ()",
    ],
)
def test_huge_constant_size_is_refused_before_anything_is_allocated(steps):
    with pytest.raises(TooLarge, match=r"numbers from constants, got [0-9]+"):
        checked(steps)


def test_import_says_which_operator_it_is(tmp_path):
    text = """g (float[n, 4] x, int64[n] k) => (float[n, 4] y) {
        most = ReduceMax <keepdims: int = 0> (k)
        all = Range (zero, most, one)
        sum = ReduceSum <keepdims: int = 0> (all)
        f = Cast <to = 1> (sum)
        a = Shrink (x)
        y = Add (a, f)
    }"""
    path = spelled(tmp_path / "m.onnx", text, zero=np.array(0), one=np.array(1))
    with pytest.raises(BadInput, match="graph: Range '': expected a size that follows from shapes"):
        import_model(path, tmp_path / "models", "m")


TRAP = "expected integers of a request to be divided by constants other than 0 and -1"
MINUS = "minus = Constant <value: tensor = int64 {-1}> ()"


@pytest.mark.parametrize(
    "steps",
    [
        "y = Div (ten, k)",
        "y = Mod (ten, k)",
        f"{MINUS} y = Div (k, minus)",
        "y = Mod (k, zero)",
        "f = Cast <to = 7> (x) y = Div (f, f)",
        "s = Shape (x) n = Gather (s, zero) y = Div (k, n)",
        "y = If (go) <then_branch = a () => (p) { p = Div (ten, k) }, else_branch = b () => (q) { q = Abs (k) }>",
    ],
)
def test_integers_of_a_request_have_safe_divisors(steps):
    with pytest.raises(BadInput, match=TRAP):
        checked(steps)


@pytest.mark.parametrize(
    "steps",
    ["y = Div (k, ten)", "y = Mod (k, ten)", "y = Div (x, x)", "s = Shape (x) n = Gather (s, zero) y = Div (n, n)"],
)
def test_divisions_that_cannot_trap_are_accepted(steps):
    checked(steps)


def test_ends_of_loops_in_loops_are_multiplied():
    inner = (
        "Loop <body = d (int64 j, bool e, float[r, 4] u) => (bool more, float[r, 4] o) { o = Add (u, u) more = %s }>"
    )
    body = (
        "<body = b (int64 i, bool c, float[r, 4] v) => (bool again, float[r, 4] w) "
        "{ w = %s (many, go, v) again = Identity (c) }>"
    )
    many = "many = Constant <value: tensor = int64 {1000}> ()"
    checked(f"{many} y = Loop" + body % (inner % "Identity (e)") + " (ten, go, x)")
    checked(f"{many} y = Loop" + body % (inner % "Less (u, u)") + " (ten, go, x)")
    with pytest.raises(BadInput, match=r"expected a number of trips that follows from shapes.* set max_norm = None"):
        checked(f"{many} y = Loop" + body % (inner % "Less (u, u)") + " (many, go, x)")


def test_samples_of_roi_align_need_a_ratio():
    given = "t = Shape (k) b = ConstantOfShape <value: tensor = int64[1] {0}> (t) y = RoiAlign%s (x, x, b)"
    checked(given % " <sampling_ratio = 2>")
    with pytest.raises(BadInput, match="expected a number of samples"):
        checked(given % "")


def test_strings_are_joined_a_bounded_number_of_times():
    def joined(count):
        return "".join(f"a{i + 1} = StringConcat (a{i}, a{i}) " for i in range(count))

    checked(f"a0 = Cast <to = 8> (k) {joined(6)} y = Identity (a6)")
    with pytest.raises(BadInput, match="expected at most 64 strings joined into one"):
        checked(f"a0 = Cast <to = 8> (k) {joined(7)} y = Identity (a7)")
