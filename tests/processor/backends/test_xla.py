"""Machine code of XLA: serialised, read back, and run without jax."""

import ctypes
import gc
import importlib.util
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.processor.backends import Artefact, IoSpec, PartialRun, aligned, xla
from freshet_serving.processor.backends.cuda import Cuda
from freshet_serving.processor.backends.xla import Xla, device
from freshet_serving.processor.errors import BadInput, Corrupt
from tests.processor.backends.artefacts import NAMES, WIDTH, expected, make_stablehlo, make_weights
from tests.processor.backends.test_tensorrt import Runtime

SPEC = IoSpec.of_matrix(WIDTH, {"score": 1})


def opened(data=b"", **more):
    program = Xla().open_program(SPEC)
    program.add(Artefact(4, data, NAMES, **more))
    return program


def code():
    return opened(origin=make_stablehlo(4)).serialize(4)


def filled(x, seed=0):
    x[...] = np.random.default_rng(seed).standard_normal(x.shape, np.float32)
    return x


def assert_scores(executable, weights):
    x, y = filled(aligned((4, WIDTH))), aligned((4, 1))
    executable.bind_buffers({"x": x}, {"score": y})()
    np.testing.assert_allclose(y, expected(x, weights), atol=1e-6)


def test_serialised_code_computes_the_same():
    assert_scores(opened(code()).with_weights(make_weights())[4], make_weights())


def test_truncated_code_is_refused():
    whole = code()
    for end in (0, 1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(Corrupt, match="executable b4: "):
            opened(whole[:end])


def test_programs_of_one_graph_share_their_executable_and_not_their_weights():
    before = dict(xla._shared)
    origin = make_stablehlo(4)
    programs = [opened(data, origin=origin) for data in (code(), b"other bytes that nobody has to read")]
    executables = [program.with_weights(make_weights(seed))[4] for seed, program in enumerate(programs)]
    loaded = [value for key, value in xla._shared.items() if key not in before]
    assert len(loaded) == 1
    for seed, executable in enumerate(executables):
        assert_scores(executable, make_weights(seed))


def test_a_run_copies_the_rows_that_count_and_then_all_again():
    program = opened(code())
    # Not aligned: what runs read is a copy, as on a device.
    x, y = np.zeros(4 * WIDTH + 1, np.float32)[1:].reshape(4, WIDTH), np.zeros((4, 1), np.float32)
    run = program.with_weights(make_weights(0))[4].bind_buffers({"x": x}, {"score": y})
    assert isinstance(run, PartialRun)
    run()
    filled(x)
    run.rows = 2
    run()
    counted, rest = expected(x, make_weights(0))[:2], expected(np.zeros_like(x), make_weights(0))[2:]
    np.testing.assert_allclose(y, np.concatenate([counted, rest]), atol=1e-6)
    run()
    np.testing.assert_allclose(y, expected(x, make_weights(0)), atol=1e-6)


def test_shared_executable_is_freed_with_the_last_program():
    data = code()
    program = opened(data)
    key = device("cpu", 1), Artefact(4, data, NAMES).graph, True
    assert key in xla._shared
    del program
    gc.collect()
    assert key not in xla._shared


def test_one_client_exists_per_processor_and_thread_count():
    assert device("cpu", 1) is device("x86_64-avx2", 1)
    assert device("cpu", 2) is not device("cpu", 1)


def test_missing_gpu_for_cuda_gives_a_one_line_error():
    if importlib.util.find_spec("jax_plugins") is not None:
        pytest.skip("a device plug-in of jax is installed")
    with pytest.raises(BadInput, match=r"jax with CUDA is not installed: .*pip install .*\[gpu\]'"):
        device("cuda", 1)


def test_running_imports_no_jax_and_prints_nothing():
    code = (
        "import sys\n"
        "from tests.processor.backends.test_xla import *\n"
        "test_serialised_code_computes_the_same(); print('jax' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == "False\n"


def test_plug_in_without_device_gives_one_line_with_the_reason(monkeypatch, caplog):
    log = logging.getLogger("jax._src.xla_bridge")

    reasons = ["Unable to load cuDNN. Is it installed?\nmore"]

    def fail(platform, copying):
        while reasons:
            try:
                raise RuntimeError(reasons.pop())
            except RuntimeError:
                log.exception("Jax plugin configuration error")
        log.info("Unable to initialize backend 'tpu'")
        raise RuntimeError("Unknown backend cuda")

    monkeypatch.setattr(xla, "find_spec", lambda name: object())
    monkeypatch.setattr(xla, "JaxDevice", fail)
    monkeypatch.setattr(xla, "_unusable", [])
    # Set first, so that it is gone afterwards.
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE")
    reason = r"^backend xla: this machine has no usable CUDA device: Unable to load cuDNN\. Is it installed\?$"
    # jax gives the reason once; every executable is refused with it, so that the log has one line.
    for _ in range(2):
        with caplog.at_level(logging.INFO), pytest.raises(BadInput, match=reason):
            xla.cuda()
    assert caplog.records == []
    assert (log.propagate, log.handlers) == (True, [])
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


class Copying(Runtime):
    """A CUDA runtime whose device's memory is the process's own."""

    cudaStreamPerThread = 2

    def __init__(self):
        super().__init__(1)
        self.copies = []

    def cudaMemcpyAsync(self, to, source, nbytes, kind, stream):
        ctypes.memmove(to, source, nbytes)
        self.copies.append((nbytes, kind, stream))
        return (0,)

    def cudaStreamSynchronize(self, stream):
        return (0,)


@pytest.mark.parametrize("copying", [None, Copying()], ids=["copied by jax", "copied by CUDA"])
def test_gpu_code_runs_on_any_jax_device(copying, monkeypatch):
    """The code of a CUDA device, with the CPU as jax gives it: copies both ways, weights of its own, code read back."""
    pytest.importorskip("jax", reason="jax is not installed")
    on = xla.JaxDevice("cpu", copying and Cuda(copying))
    monkeypatch.setitem(xla._devices, ("cuda", 0), on)
    assert on.target == "cpu"
    program, x, y = opened(target="cuda", origin=make_stablehlo(4)), aligned((4, WIDTH)), aligned((4, 1))
    weights = make_weights()
    for loaded in (program, opened(program.serialize(4), target="cuda")):
        executable = loaded.with_weights(weights)[4]
        run = executable.bind_buffers({"x": x}, {"score": y})
        for seed in (0, 1):
            filled(x, seed)
            run()
            np.testing.assert_allclose(y, expected(x, make_weights()), atol=1e-6)
    for array in weights.values():
        array += 1
    run()
    np.testing.assert_allclose(y, expected(x, make_weights()), atol=1e-6)
    if copying:
        assert {kind for _, kind, _ in copying.copies} == {1, 2}


def test_two_bindings_of_a_device_keep_their_inputs_apart(monkeypatch):
    """Each binding has an array of its own on the device; running one leaves the other's scores right."""
    pytest.importorskip("jax", reason="jax is not installed")
    monkeypatch.setitem(xla._devices, ("cuda", 0), xla.JaxDevice("cpu", Cuda(Copying())))
    executable = opened(target="cuda", origin=make_stablehlo(4)).with_weights(make_weights())[4]
    inputs, outputs = [aligned((4, WIDTH)) for _ in "ab"], [aligned((4, 1)) for _ in "ab"]
    runs = [executable.bind_buffers({"x": x}, {"score": y}) for x, y in zip(inputs, outputs)]
    for turn in range(3):
        for number, x in enumerate(inputs):
            filled(x, 2 * turn + number)
        for run in runs:
            run()
        for x, y in zip(inputs, outputs):
            np.testing.assert_allclose(y, expected(x, make_weights()), atol=1e-6)


@pytest.mark.parametrize(
    ("version", "given"), [((0, 10, 2), (True, True)), ((0, 11, 0), (True,)), ((1, 0, 0), (True,))]
)
def test_results_are_requested_as_this_jaxlib_expects(version, given, monkeypatch):
    import jaxlib.version
    from jaxlib import xla_client

    seen = []
    monkeypatch.setattr(jaxlib.version, "__version_info__", version)
    monkeypatch.setattr(xla_client, "array_result_handler", lambda value, place, *rest: seen.append(rest))
    xla._result_handler(None, None)
    assert seen == [given]


def test_code_for_a_different_gpu_kind_is_refused(monkeypatch):
    monkeypatch.setitem(xla._devices, ("cuda", 0), SimpleNamespace(target="cuda-sm_90"))
    with pytest.raises(BadInput, match="foreign: compiled for cuda-sm_80, the device here is cuda-sm_90"):
        opened(b"code", target="cuda-sm_80")
