"""TensorRT: what can be said without the library. Nothing here proves that it runs; that takes a GPU."""

import importlib.util
import sys

import pytest

from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.backends.registry import load_backend
from freshet_serving.processor.errors import BadInput, FreshetError


class Runtime:
    """A CUDA runtime that answers as it is told."""

    class cudaMemcpyKind:
        cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost = 1, 2

    def __init__(self, devices, status=0):
        self.devices, self.status = devices, status

    def cudaGetDeviceCount(self):
        return 0, self.devices

    def cudaMalloc(self, nbytes):
        return self.status, 4096

    def cudaFree(self, address):
        return (self.status,)


def test_missing_library_gives_a_one_line_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(BadInput, match=r"the library tensorrt is not installed: .*pip install .*\[tensorrt\]'"):
        load_backend("tensorrt")


def test_missing_device_gives_a_one_line_error():
    with pytest.raises(BadInput, match="backend tensorrt: this machine has no usable CUDA device"):
        Cuda(Runtime(0))


def test_failed_call_error_names_the_call_and_its_status():
    assert Cuda(Runtime(1)).call("cudaMalloc", 8) == 4096
    assert Cuda(Runtime(1)).call("cudaFree", 4096) is None
    with pytest.raises(FreshetError, match="CUDA: cudaMalloc failed with status 2"):
        Cuda(Runtime(1, status=2)).call("cudaMalloc", 8)


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is None, reason="needs TensorRT and an NVIDIA GPU")
@pytest.mark.tensorflow
def test_engines_compile_run_and_take_new_weights(tmp_path):
    from freshet_serving.compiler.building.compile import build, load, lower, variants
    from tests.compiler.building.test_compile import make_graph, rows, score

    graph = make_graph()
    for variant in variants("tensorrt"):
        entries = [build(lower(graph, variant), bucket, tmp_path) for bucket in (4, 16)]
        (program,) = load(graph, tmp_path, entries).programs
        other = {name: array * 1.5 + 0.01 for name, array in graph.weights.items()}
        for weights in (graph.weights, other):
            for executable in program.with_weights(weights).values():
                x = rows(executable.bucket, graph.width)
                assert abs(score(executable, x) - graph.run({"x": x}, weights)["score"]).max() < 1e-2
