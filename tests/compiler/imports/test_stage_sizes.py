"""Translated ONNX graphs whose sizes follow from numbers of a request are refused before they run."""

import pytest

pytest.importorskip("tensorflow", reason="importing needs the train extra")

from freshet_serving.compiler.imports.importing import import_model
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_native.hostile_models import HOSTILE

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("name", ["constant_of_shape_by_value", "expand_by_value"])
def test_size_from_values_is_refused_in_a_stage(name, tmp_path):
    with pytest.raises(BadInput, match="expected a size that follows from shapes, got one that follows from numbers"):
        import_model(HOSTILE[name](tmp_path / "model.onnx"), tmp_path / "repository", "hostile")
