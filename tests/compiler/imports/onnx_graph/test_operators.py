"""Files are translated or not by their operators alone."""

import pytest
from onnx import helper

from freshet_serving.compiler.imports.onnx_graph.operators import TRANSLATED, untranslated
from freshet_serving.compiler.imports.onnx_graph.translation import TRANSLATORS
from tests.compiler.imports.onnx_graph.spelled import MEAN, SUM, TABLE, changed, dynamo_bag, torchscript_bag, written


def test_list_names_what_has_a_translator():
    assert sorted(TRANSLATED) == sorted(TRANSLATORS)


@pytest.mark.parametrize(
    ("text", "opset"), [(torchscript_bag("ReduceSum"), 17), (dynamo_bag(SUM), 20), (dynamo_bag(MEAN, last=True), 20)]
)
def test_loop_of_a_bag_is_translated(text, opset, tmp_path):
    assert untranslated(written(tmp_path / "m.onnx", text, opset, emb__weight=TABLE)) == ""


def test_first_operator_without_a_translation_is_named(tmp_path):
    path = written(tmp_path / "m.onnx", "g (float[n, 4] x) => (float[n, 4] z) { y = Abs (x) z = Shrink (y) }")
    assert untranslated(path) == "operator Shrink of ai.onnx has no translation"


def test_trees_alone_and_old_opsets_are_named(tmp_path):
    path = written(tmp_path / "m.onnx", "g (float[n, 4] x) => (float[n, 4] y) { y = Abs (x) }", 9)
    assert untranslated(path) == "opset 9 has no translation, which begins at 11"

    def trees(proto):
        proto.graph.node[0].op_type, proto.graph.node[0].domain = "TreeEnsembleClassifier", "ai.onnx.ml"
        del proto.opset_import[:]
        proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))

    changed(path, trees)
    assert untranslated(path) == "operator TreeEnsembleClassifier of ai.onnx.ml has no translation"
