"""The comparison with ONNX Runtime: what is compared, what is left open, and what is said where it cannot be."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.onnx_graph import reference_check
from freshet_serving.compiler.imports.onnx_graph.bags import find_bags
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import read_onnx
from freshet_serving.compiler.imports.onnx_graph.reference_check import OnnxReference
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_graph.spelled import TABLE, changed, made, torchscript_bag, written
from tests.compiler.imports.onnx_native.native_models import ENDLESS

X = np.array([[1, -2], [3, 4], [5, 6]], np.float32)


def proof_of(path):
    model = read_onnx(path)
    return OnnxReference(path, model, find_bags(model)[1])


def bags(*lists):
    lengths = [len(part) for part in lists]
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return {"input/ids/values": np.array([i for part in lists for i in part], np.int64), "input/ids/row_splits": splits}


def rows_of(*lists):
    return np.stack([TABLE[list(part)].mean(0) if part else np.zeros(4) for part in lists]).astype(np.float32)


def test_difference_from_onnx_runtime_is_refused_with_its_size(tmp_path):
    found = proof_of(made(tmp_path / "m.onnx", "Neg", {"x": X}))
    assert found.check([({"input/x": X}, {"out0": -X})]) == []
    with pytest.raises(BadInput, match=r"output 'out0' differs by 0\.5 from ONNX Runtime's"):
        found.check([({"input/x": X}, {"out0": -X}), ({"input/x": X}, {"out0": 0.5 - X})])
    with pytest.raises(BadInput, match=r"output 'out0': expected shape \[3, 2\] as ONNX Runtime's, got \[3\]"):
        found.check([({"input/x": X}, {"out0": -X[:, 0]})])


@pytest.mark.parametrize("last", [False, True])
def test_rows_with_an_empty_mean_bag_are_not_compared(last, tmp_path):
    path = written(tmp_path / "m.onnx", torchscript_bag("ReduceMean", last=last), emb__weight=TABLE)
    lists = ((), (1, 2), (), (3,), ())
    found = proof_of(path)

    assert found.check([(bags(*lists), {"y": rows_of(*lists)})]) == []
    assert found.check([(bags((), ()), {"y": np.ones((2, 4))})]) == []
    wrong = rows_of(*lists)
    wrong[1, 0] += 0.01
    with pytest.raises(BadInput, match=r"output 'y' differs by 0\.01"):
        found.check([(bags(*lists), {"y": wrong})])


def test_file_rejected_by_onnx_runtime_is_reported_as_uncompared(tmp_path):
    unknown = made(tmp_path / "m.onnx", "Neg", {"x": X}, domain="com.example")
    (note,) = proof_of(unknown).check([({"input/x": X}, {"out0": -X})])
    assert note.startswith("not compared with ONNX Runtime, which rejects the file")

    text = "g (float[batch, 2] x) => (float[batch, 2] y) { y = Reshape (x, s) }"
    failing = written(tmp_path / "m.onnx", text, s=np.array([7, 7]))
    (note,) = proof_of(failing).check([({"input/x": X}, {"y": X})])
    assert note.startswith("not compared with ONNX Runtime, which fails on samples")


def test_nodes_that_outputs_do_not_need_are_never_run(tmp_path):
    text = """g (float[batch, 2] x) => (float[batch, 2] y) {
        huge = Constant <value: tensor = int64[2] {9999999, 9999999}> ()
        bomb = ConstantOfShape (huge)
        y = Neg (x)
    }"""
    assert proof_of(written(tmp_path / "m.onnx", text)).check([({"input/x": X}, {"y": -X})]) == []


def test_endless_file_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(reference_check, "MAX_S", 0.1)
    (note,) = proof_of(written(tmp_path / "m.onnx", ENDLESS)).check([({"input/x": X}, {"y": -X})])
    assert "fails on samples" in note


def test_external_data_is_that_which_was_checked(tmp_path):
    from tests.compiler.imports.onnx_graph.test_onnx_reader import outside

    text = "g (float[batch, 2] x) => (float[batch, 2] y) { y = Mul (x, w) }"
    path = written(tmp_path / "m.onnx", text, w=np.array([2, 3], np.float32))
    (tmp_path / "data").write_bytes(np.array([2, 3], np.float32).tobytes())
    found = proof_of(changed(path, lambda proto: outside(proto, "data")))
    (tmp_path / "data").unlink()

    assert found.check([({"input/x": X}, {"y": X * [2, 3]})]) == []


def test_last_place_of_a_half_is_no_difference_from_onnx_runtime(tmp_path):
    text = "g (float16[batch, 2] x) => (float16[batch, 2] y) { y = Neg (x) }"
    halves = X.astype(np.float16)
    checked = proof_of(written(tmp_path / "m.onnx", text))

    assert checked.check([({"input/x": halves}, {"y": np.nextafter(-halves, np.float16(9))})]) == []
    with pytest.raises(BadInput, match="more than float16 explains: export the model in float32"):
        checked.check([({"input/x": halves}, {"y": 1 - halves})])
