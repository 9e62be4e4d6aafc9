import pytest

pytest.importorskip("tensorflow", reason="importing needs the train extra")
pytest.importorskip("onnx", reason="importing needs the train extra")
