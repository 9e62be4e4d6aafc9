"""TensorRT with a library and a GPU that are played. Nothing here proves that it runs; that takes a GPU."""

import gc
import importlib.util
import logging
import sys
from types import ModuleType

import numpy as np
import pytest

from freshet_serving.processor.backends import Artefact, IoSpec, load_backend
from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError
from tests.processor.backends.artefacts import NAMES, WIDTH, expected, make_onnx_origin, make_weights
from tests.support.played_gpu import put_cuda, put_tensorrt

SPEC = IoSpec.of_matrix(WIDTH, {"score": 1})


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


@pytest.fixture
def gpu(monkeypatch):
    """CUDA's runtime on a played H200, with a played TensorRT."""
    runtime = put_cuda(monkeypatch)
    runtime.library = put_tensorrt(monkeypatch, runtime)
    return runtime


def artefact(backend, rows=4, **changes):
    engine = backend.build(make_onnx_origin(), rows, SPEC)
    return Artefact(**{"bucket": rows, "data": engine, "weights": NAMES, "target": "cuda-sm_90"} | changes)


def opened(**changes):
    """A program with an artefact."""
    backend = load_backend("tensorrt")
    program = backend.open_program(SPEC)
    program.add(artefact(backend, **changes))
    return program


def assert_scores(executable, weights):
    inputs, outputs = SPEC.allocate_inputs(executable.bucket), SPEC.allocate_outputs(executable.bucket)
    inputs["x"][...] = np.random.default_rng(5).standard_normal(inputs["x"].shape)
    executable.bind_buffers(inputs, outputs)()
    np.testing.assert_allclose(outputs["score"], expected(inputs["x"], weights), atol=1e-6)


def test_missing_library_gives_a_one_line_error(monkeypatch):
    for name in ("tensorrt", "tensorrt_rtx_libs", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
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


def test_pypis_library_serves_where_nvidias_is_missing(gpu, monkeypatch):
    played = sys.modules["tensorrt"]
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_libs", ModuleType("tensorrt_rtx_libs"))
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", played)
    assert load_backend("tensorrt").library == f"tensorrt_rtx {played.__version__}"


def test_buckets_share_one_copy_of_the_weights_on_the_device(gpu):
    backend, weights = load_backend("tensorrt"), make_weights()
    program = backend.open_program(SPEC)
    for bucket in (4, 16):
        program.add(artefact(backend, bucket))
    executables = program.with_weights(weights)
    assert sum(map(len, gpu.device.values())) == sum(w.nbytes for w in weights.values())
    for executable in executables.values():
        assert_scores(executable, weights)


def test_new_weights_build_no_engine_and_leave_old_bindings_alone(gpu):
    program = opened()
    old = program.with_weights(make_weights(0))[4]
    weights, built = make_weights(1), gpu.library.built
    new = program.with_weights(weights)[4]
    # The caller may change the arrays as soon as with_weights() returns.
    kept = {name: w.copy() for name, w in weights.items()}
    for w in weights.values():
        w[...] = np.nan
    for executable, read in ((old, make_weights(0)), (new, kept), (old, make_weights(0))):
        assert_scores(executable, read)
    assert gpu.library.built == built


def test_device_memory_and_streams_go_back_with_the_last_binding(gpu):
    program = opened()
    executable = program.with_weights(make_weights())[4]
    run = executable.bind_buffers(SPEC.allocate_inputs(4), SPEC.allocate_outputs(4))
    del executable
    gc.collect()
    run()
    assert len(gpu.streams) == 1
    del run
    gc.collect()
    assert (gpu.device, gpu.streams) == ({}, set())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"target": "cuda-sm_80"}, BadInput, "foreign: compiled for cuda-sm_80, the device here is cuda-sm_90"),
        ({"data": b"none"}, Corrupt, "executable b4: refused by tensorrt 1.0-played"),
        ({"data": b""}, Corrupt, "has neither compiled code nor a portable form"),
        ({"bucket": 8}, BadInput, r"executable b8: expected x float32 \[8, 12\], score .* and the listed weights"),
        # An engine without an input for a weight would serve the value that it was built with.
        ({"weights": [*NAMES, "mlp_1/kernel"]}, BadInput, "expected .* and the listed weights"),
    ],
)
def test_unfit_engine_is_refused(changes, error, message, gpu):
    with pytest.raises(error, match=message):
        opened(**changes)


def test_engine_of_another_library_is_built_from_its_model(gpu):
    assert_scores(opened(data=b"", origin=make_onnx_origin()).with_weights(make_weights())[4], make_weights())


@pytest.mark.parametrize("name", ["mlp_0/bias", "mlp_0/kernel"])
def test_weight_of_another_shape_is_refused(name, gpu):
    program = opened()
    with pytest.raises(BadInput, match=f"dense weight '{name}': expected float32"):
        program.with_weights(make_weights() | {name: np.zeros((3,), np.float32)})
    assert not gpu.device


def test_model_that_does_not_parse_is_refused_with_the_librarys_reason(gpu, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(BadInput, match="cannot be compiled for backend tensorrt: this is no ONNX"):
        load_backend("tensorrt").build(b"\xff", 4, SPEC)
    other = IoSpec.of_matrix(WIDTH, {"score": 2})
    with pytest.raises(BadInput, match=r"expected .*score float32 \[4, 2\], got outputs score float32 \[4, 1\]"):
        load_backend("tensorrt").build(make_onnx_origin(), 4, other)


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx_bindings") is None, reason="needs TensorRT-RTX, and no GPU")
def test_real_library_builds_engines_for_gpus_that_are_elsewhere():
    from freshet_serving.processor.backends.tensorrt import EngineBuilder

    builder = EngineBuilder()
    assert {"cuda-sm_80", "cuda-sm_89", "cuda-sm_120"} <= set(builder.targets())
    assert len(builder.build(make_onnx_origin(), 16, SPEC, "cuda-sm_89")) > 1000
    with pytest.raises(BadInput, match="cannot be compiled for backend tensorrt"):
        builder.build(b"\xff", 16, SPEC, "cuda-sm_89")


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
