"""The importer that an ONNX file is given to where TensorFlow is installed.

Where it is not: tests/test_distributions.py.
"""

import numpy as np
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import VersionReader
from tests.compiler.imports.onnx_native.native_models import GRU, GRU_WEIGHTS, normal, spelled

AS_IT_IS = "ONNX Runtime computes the graph as it is"
WEIGHTS = {"t": normal(20, 4), "w": normal(4, 1)}
PLAIN = "g (int64[n] i) => (float[n, 1] y) { r = Gather (t, i) y = MatMul (r, w) }"
HOT = """g (int64[n] i) => (float[n, 1] y) {
    h = OneHot (i, rows, off_on)
    r = MatMul (h, t)
    y = MatMul (r, w)
}"""
HOT_WEIGHTS = {**WEIGHTS, "rows": np.array([20]), "off_on": np.array([0, 1], np.float32)}
POOLED = """g (int64[n, any] i) => (float[n, 1] y) {
    r = Gather (t, i)
    m = ReduceMean <axes: ints = [1], keepdims: int = 0> (r)
    y = MatMul (m, w)
}"""
# Backends have no arithmetic on doubles: the translation leaves it to a stage.
DOUBLE = "g (double[n, 2] x) => (double[n, 2] y) { y = Mul (x, half) }"
DOUBLE_WEIGHTS = {"half": np.full(2, 0.5)}


def imported(tmp_path, text, weights, **options):
    path = spelled(tmp_path / "m.onnx", text, **weights)
    done = import_model(path, tmp_path / "models", "m", options=ImportOptions(buckets=(1, 8), **options))
    return VersionReader(done.folder).manifest


def notes(manifest):
    return [note for note in manifest.notes["import"]["notes"] if note.startswith(AS_IT_IS)]


def test_file_that_a_translation_serves_whole_is_translated(tmp_path):
    manifest = imported(tmp_path, PLAIN, WEIGHTS)
    assert (notes(manifest), manifest.stage) == ([], None)


def test_file_of_which_translation_leaves_a_stage_is_native(tmp_path):
    assert imported(tmp_path, DOUBLE, DOUBLE_WEIGHTS, translate=True).stage is not None

    manifest = imported(tmp_path, DOUBLE, DOUBLE_WEIGHTS)
    assert notes(manifest) == [f"{AS_IT_IS}: a translation leaves a part of it to TensorFlow"]
    assert manifest.stage is None


@pytest.mark.parametrize(
    ("text", "weights"), [(HOT, HOT_WEIGHTS), (POOLED, WEIGHTS)], ids=["one-hot ids", "any length"]
)
def test_what_takes_fewer_deltas_natively_is_translated(text, weights, tmp_path):
    manifest = imported(tmp_path, text, weights)
    assert notes(manifest) == []
    assert manifest.tables
    assert "w" in manifest.dense


def test_user_inputs_are_translated_and_computed_once(tmp_path):
    text = """g (int64[n] i, int64[n] j) => (float[n, 1] y) {
        a = Gather (t, i)
        b = Gather (u, j)
        c = Mul (a, b)
        y = MatMul (c, w)
    }"""
    manifest = imported(tmp_path, text, {**WEIGHTS, "u": normal(30, 4)}, user=("i",))
    assert notes(manifest) == []


def test_file_without_a_translation_says_why(tmp_path):
    manifest = imported(tmp_path, GRU, GRU_WEIGHTS)
    assert notes(manifest) == [f"{AS_IT_IS}: operator GRU of ai.onnx has no translation"]
    with pytest.raises(BadInput, match=r"m\.onnx: operator GRU of ai\.onnx has no translation: import it without --tr"):
        imported(tmp_path, GRU, GRU_WEIGHTS, translate=True)


def test_translation_is_asked_for_onnx_files_only(tmp_path):
    with pytest.raises(BadInput, match=r"translate: expected a file that ends in \.onnx, got 'saved'"):
        import_model(tmp_path / "saved", tmp_path / "models", "m", options=ImportOptions(translate=True))
