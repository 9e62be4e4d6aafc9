"""OpenVINO: frozen code for the weights it was made with, its portable form for others."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("openvino", reason="the openvino extra is not installed")

from freshet_serving.processor.backends.base import Artefact, IoSpec, aligned, weights_hash
from freshet_serving.processor.backends.openvino import OpenVino
from freshet_serving.processor.errors import BadInput, Corrupt
from tests.processor.backends.artefacts import NAMES, WIDTH, expected, make_onnx_origin, make_weights

SPEC = IoSpec.of_matrix(WIDTH, {"score": 1})


def frozen(seed=0, origin=True):
    """Code with the weights of a seed inside."""
    portable = Artefact(4, b"", NAMES, origin=make_onnx_origin())
    code = OpenVino().open_program(SPEC).compile(portable, make_weights(seed)).export_model().read()
    held = weights_hash(make_weights(seed), NAMES)
    return Artefact(4, code, NAMES, origin=portable.origin if origin else b"", frozen=held)


def opened(artefact=None, **options):
    program = OpenVino().open_program(SPEC, **options)
    program.add(artefact or frozen())
    return program


def score(program, seed):
    x, y = aligned((4, WIDTH)), aligned((4, 1))
    x[...] = np.random.default_rng(7).standard_normal(x.shape, np.float32)
    program.with_weights(make_weights(seed))[4].bind_buffers({"x": x}, {"score": y})()
    np.testing.assert_allclose(y, expected(x, make_weights(seed)), atol=1e-6)


def test_frozen_code_serves_its_own_weights_without_compiling(monkeypatch):
    program = opened()
    monkeypatch.setattr(type(program), "compile", None)
    score(program, 0)


def test_frozen_code_never_answers_for_different_weights():
    program = opened()
    for seed in (1, 0, 2):
        score(program, seed)


def test_frozen_code_without_portable_form_refuses_new_weights():
    program = opened(frozen(origin=False))
    with pytest.raises(Corrupt, match="weights other than the frozen ones require its portable form"):
        program.with_weights(make_weights(1))


def test_truncated_code_is_refused():
    artefact = frozen()
    for end in (1, 100, len(artefact.data) // 2):
        with pytest.raises(Corrupt, match=r"executable b4: refused by openvino \d"):
            opened(Artefact(4, artefact.data[:end], NAMES))


def test_unknown_precision_is_named():
    with pytest.raises(BadInput, match="precision: expected one of float32, bfloat16, int8, got float16"):
        opened(Artefact(4, b"", NAMES, "float16", origin=make_onnx_origin()))


def test_deleted_binding_returns_its_warm_request():
    executable = opened(runs=2).with_weights(make_weights())[4]
    x, y = aligned((4, WIDTH)), aligned((4, 1))
    runs = [executable.bind_buffers({"x": x}, {"score": y}) for _ in range(2)]
    assert not executable._spare
    del runs
    assert len(executable._spare) == 2


def test_librarys_telemetry_is_never_loaded():
    code = (
        "import sys\n"
        "from freshet_serving.processor.backends.openvino import *\n"
        "from tests.processor.backends.artefacts import *\n"
        "program = OpenVino().open_program(IoSpec.of_matrix(WIDTH, {'score': 1}))\n"
        "program.add(Artefact(4, b'', NAMES, origin=make_onnx_origin()))\n"
        "program.with_weights(make_weights())\n"
        "sys.exit('openvino_telemetry' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
