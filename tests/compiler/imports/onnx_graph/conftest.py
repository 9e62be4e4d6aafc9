import pytest

pytest.importorskip("onnx", reason="importing needs the train extra")
