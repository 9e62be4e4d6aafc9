"""The first run of a file: it ends."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.trial import run_bounded
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_native.native_models import ENDLESS, spelled


def test_endless_run_is_ended(tmp_path):
    model = read_native(spelled(tmp_path / "m.onnx", ENDLESS))
    with pytest.raises(BadInput, match=r"expected a graph that computes samples within 0\.1 s"):
        run_bounded(model.session, ["y"], {"x": np.ones((1, 2), np.float32)}, max_s=0.1)


def test_failure_of_a_run_is_the_library_s_own(tmp_path):
    text = "g (int64[batch] i) => (float[batch, 2] y) { a = Gather (t, i) y = Shrink (a) }"
    model = read_native(spelled(tmp_path / "m.onnx", text, t=np.ones((3, 2), np.float32)))
    with pytest.raises(Exception, match="indices element out of data bounds"):
        run_bounded(model.session, ["y"], {"i": np.array([5])})


def test_run_that_takes_gigabytes_is_ended(tmp_path):
    text = """g (float[batch, 2] x) => (float[batch] y) {
        turned = Transpose (x)
        pairs = MatMul (x, turned)
        y = ReduceMax <axes = [1], keepdims: int = 0> (pairs)
    }"""
    model = read_native(spelled(tmp_path / "m.onnx", text))
    with pytest.raises(BadInput, match="expected a graph that computes samples in 2147483648 bytes"):
        run_bounded(model.session, ["y"], {"x": np.ones((1 << 15, 2), np.float32)}, max_s=60)
