import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.backends.base import Artefact, IoSpec
from freshet_serving.processor.backends.onnxruntime import _Executable
from freshet_serving.processor.backends.registry import load_backend
from freshet_serving.processor.errors import BadInput, Corrupt
from tests.processor.backends.artefacts import NAMES, SHAPES, WIDTH, expected, make_artefact, make_weights

OUTPUTS = {"score": 1}


def load(data=None, weights=None, names=NAMES, bucket=4, width=WIDTH, outputs=OUTPUTS, threads=1):
    data = make_artefact() if data is None else data
    weights = make_weights() if weights is None else weights
    program = load_backend("onnxruntime").open_program(IoSpec.of_matrix(width, outputs), threads)
    program.add(Artefact(bucket, data, names))
    return program.with_weights(weights)[bucket]


def score(executable, x):
    y = np.full((executable.bucket, 1), np.nan, np.float32)
    executable.bind_buffers({"x": x}, {"score": y})()
    return y


def rows(bucket, seed=0):
    return np.random.default_rng(seed).standard_normal((bucket, WIDTH), np.float32)


def test_buckets_with_equal_artefacts_share_one_session():
    data = make_artefact()
    program = load_backend("onnxruntime").open_program(IoSpec.of_matrix(WIDTH, OUTPUTS))
    for bucket in (1, 16, 4):
        program.add(Artefact(bucket, data, NAMES))

    loaded = program.with_weights(make_weights())

    assert {bucket: e.bucket for bucket, e in loaded.items()} == {1: 1, 16: 16, 4: 4}
    assert len({id(e._session.session) for e in loaded.values()}) == 1


def test_artefacts_of_a_static_bucket_load_at_that_bucket_only():
    x = rows(4)
    np.testing.assert_allclose(score(load(make_artefact(4)), x), expected(x, make_weights()), atol=1e-6)
    with pytest.raises(BadInput, match=r"b8: expected inputs x float32 \[8, 12\]"):
        load(make_artefact(4), bucket=8)


def test_truncated_artefact_is_refused():
    data = make_artefact()
    for end in range(0, len(data), 3):
        with pytest.raises(BadInput, match=r"^executable"):
            load(data[:end])


def test_graph_refused_by_the_library_gives_a_one_line_error():
    data = make_artefact().replace(b"Sigmoid", b"Sigmoyd")

    with pytest.raises(Corrupt, match=r"^executable b4: refused by onnxruntime [\d.]+$"):
        load(data)


@pytest.mark.parametrize("location", ["/etc/hostname", "../weights", "weights"])
def test_weights_come_from_memory_and_never_from_referenced_files(location, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").write_bytes(bytes(4096))
    x = rows(4)

    np.testing.assert_allclose(score(load(make_artefact(location=location)), x), expected(x, make_weights()), atol=1e-6)
    with pytest.raises(BadInput, match="differ from the manifest's: only one of the two has 'mlp_0/bias'"):
        load(make_artefact(location=location), names=[n for n in NAMES if n != "mlp_0/bias"])


@pytest.mark.parametrize("name", NAMES)
def test_weight_mismatch_error_names_the_weight_and_expected_value(name):
    shape = re.escape(str(list(SHAPES[name])))
    for bad in (np.zeros((3, 3, 3), np.float32), np.zeros(SHAPES[name], np.float64)):
        with pytest.raises(BadInput, match=f"dense weight '{name}': expected float32 {shape}, got float"):
            load(weights=make_weights() | {name: bad})


def test_artefact_with_wrong_width_or_outputs_is_refused():
    with pytest.raises(BadInput, match=r"expected inputs x float32 \[4, 13\]"):
        load(width=13)
    with pytest.raises(BadInput, match=r"expected outputs \['ctr'\], got \['score'\]"):
        load(outputs={"ctr": 1})
    with pytest.raises(BadInput, match=r"expected output score float32 \[4, 2\]"):
        load(outputs={"score": 2})


def test_unsupported_device_error_names_the_package_to_install():
    program = load_backend("onnxruntime").open_program(IoSpec.of_matrix(WIDTH, OUTPUTS))
    if "cuda" in load_backend("onnxruntime").targets():
        pytest.skip("this build has CUDA")
    with pytest.raises(BadInput, match=r"this build does not support cuda: .*pip install .*\[gpu\]'"):
        program.add(Artefact(4, make_artefact(), NAMES, target="cuda"))


def test_bindings_with_device_buffers_copy_in_both_directions():
    """As on a GPU, with the CPU as the device."""
    plain = load()
    session = replace(plain._session, device="cuda")
    values = SimpleNamespace(
        ortvalue_from_shape_and_type=lambda shape, dtype, device, number: (
            session.library.OrtValue.ortvalue_from_shape_and_type(shape, dtype, "cpu", number)
        )
    )
    library = SimpleNamespace(OrtValue=values)
    executable = _Executable(replace(session, library=library), 4, IoSpec.of_matrix(WIDTH, OUTPUTS))
    x, y = rows(4), np.zeros((4, 1), np.float32)
    run, other = (
        executable.bind_buffers({"x": x}, {"score": y}),
        executable.bind_buffers({"x": rows(4, 5)}, {"score": np.zeros((4, 1), np.float32)}),
    )
    for seed in (0, 3):
        x[...] = rows(4, seed)
        other(), run()
        np.testing.assert_allclose(y, expected(x, make_weights()), atol=1e-6)


class Device:
    """The library where it was built for CUDA: it remembers how sessions are asked for, and has a device or none."""

    def __init__(self, monkeypatch, providers):
        self.asked, self.providers = [], providers
        library = load_backend("onnxruntime").module
        monkeypatch.setattr(library, "get_available_providers", lambda: ["CUDAExecutionProvider"])
        monkeypatch.setattr(library, "preload_dlls", self.preload)
        monkeypatch.setattr(library, "set_default_logger_severity", lambda level: None)
        monkeypatch.setattr(library, "InferenceSession", self.open)

    def preload(self):
        print("Failed to load libcudnn.so.9")
        self.asked.append("preload")

    def open(self, data, options, **how):
        self.asked.append(how)
        return SimpleNamespace(get_providers=lambda: self.providers)


def test_gpu_session_loads_its_libraries_first_and_records_nothing(monkeypatch, capfd):
    """While the library records a run, the copies of all other threads fail."""
    library = Device(monkeypatch, ["CUDAExecutionProvider"])
    program = load_backend("onnxruntime").open_program(IoSpec.of_matrix(WIDTH, OUTPUTS))
    made = program._session(Artefact(4, make_artefact(), NAMES, target="cuda"), make_weights())
    assert library.asked == ["preload", {"providers": ["CUDAExecutionProvider"], "enable_fallback": False}]
    assert made.device == "cuda"
    assert "".join(capfd.readouterr()) == ""


def test_a_session_that_gets_no_gpu_is_one_clear_line(monkeypatch, capfd):
    Device(monkeypatch, ["CPUExecutionProvider"])
    program = load_backend("onnxruntime").open_program(IoSpec.of_matrix(WIDTH, OUTPUTS))
    program.add(Artefact(4, make_artefact(), NAMES, target="cuda"))
    with pytest.raises(BadInput, match=r"^backend onnxruntime: this machine has no usable device for cuda$"):
        program.with_weights(make_weights())
    assert "".join(capfd.readouterr()) == ""
