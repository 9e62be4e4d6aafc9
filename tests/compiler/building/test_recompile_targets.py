"""`freshet compile --target`: code for GPUs beside the CPU's, played by XLA's CPU compiler, is served by such a GPU."""

import gc
import re
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.compiler.backends import xla as compiling
from freshet_serving.compiler.backends.xla import stablehlo
from freshet_serving.compiler.building.calibrate import Tolerance
from freshet_serving.processor.backends import xla as running
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.building.versions import compiled, given, scores
from tests.support.packages import open_version
from tests.support.played_gpu import put_cuda, put_tensorrt, put_xla

TARGETS = ("cuda-sm_90", "cuda-sm_80")
DELTAS = 25


@pytest.fixture
def folder(folder, monkeypatch):
    """A version, compiled for GPUs by XLA's compiler for the CPU."""
    compiler = running._Cpu(1)

    def ahead(origin, target, bucket):
        code = compiler.client.serialize_executable(compiler.compile(origin))
        return SimpleNamespace(serialize=lambda: code)

    monkeypatch.setattr(compiling, "compile_ahead", ahead)
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder for what tests have compiled, and the report of each by its name there."""
    return tmp_path_factory.mktemp("kept"), {}


@pytest.fixture
def compile_once(folder, kept):
    """compile_once(targets): compile the version for these, or copy what the first test that did so has got."""

    def compile_or_copy(targets, **options):
        files, reports = kept
        name = "-".join([*options.get("backends", ()), *targets])
        if name in reports:
            shutil.rmtree(folder)
            shutil.copytree(files / name, folder)
        else:
            reports[name] = compiled(folder, targets=targets, **options)
            shutil.copytree(folder, files / name)
        return reports[name]

    return compile_or_copy


@pytest.fixture
def gpu(monkeypatch):
    """Put a GPU into this machine; returns a function that does."""
    return lambda: put_xla(monkeypatch)


@pytest.fixture
def tensorrt(monkeypatch):
    """TensorRT, played, with no GPU; `patch` puts one."""
    module = put_tensorrt(monkeypatch)
    module.patch = monkeypatch
    return module


def test_gpu_code_is_listed_first_with_its_source_graph(folder, compile_once):
    report = compile_once(TARGETS)
    reader = VersionReader(folder)
    reader.verify()
    entries = reader.manifest.executables
    assert [(e.target, e.bucket) for e in entries] == [
        *[(target, bucket) for target in TARGETS for bucket in (1, 8)],
        ("cpu", 1),
        ("cpu", 8),
    ]
    assert [e.features for e in entries[:4]] == [[e.target] for e in entries[:4]]
    assert all(e.origin and e.sha256 and e.source for e in entries[:4])
    assert {e.target for e in report.chosen.values()} == {"cpu"}
    assert reader.manifest.notes["compile"]["targets"] == list(TARGETS)


def test_cpu_serves_without_a_gpu_and_logs_one_line(folder, compile_once, caplog):
    before = scores(open_version(folder))
    compile_once(("cuda-sm_80",))
    version = open_version(folder)
    np.testing.assert_allclose(scores(version), before, atol=1e-6)
    (line,) = [record.message for record in caplog.records if "refused" in record.message]
    assert line.startswith("ctr version 1: xla-cuda-sm_80 float32 b1, b8 refused: ")


def test_matching_gpu_loads_its_code_and_compiles_nothing(folder, compile_once, gpu):
    before = scores(open_version(folder))
    compile_once(TARGETS)
    played = gpu()
    version = open_version(folder)
    assert {(e.backend, e.target) for e in version.replicas.chosen.values()} == {("xla", "cuda-sm_90")}
    np.testing.assert_allclose(scores(version), before, atol=1e-6)
    assert played.compiled == 0


def test_another_kind_of_gpu_does_not_load_it(folder, compile_once, gpu):
    compile_once(("cuda-sm_80",))
    gpu()
    version = open_version(folder)
    assert {e.target for e in version.replicas.chosen.values()} == {"cpu"}


def test_code_of_another_jaxlib_is_compiled_anew_on_its_gpu(folder, compile_once, gpu, monkeypatch, caplog):
    """Beside executables of the CPU, which would otherwise serve and leave the GPU idle."""
    before = scores(open_version(folder))
    compile_once(TARGETS)
    monkeypatch.setattr(running.Xla, "__init__", lambda backend: vars(backend).update(library="jaxlib 99"))
    played = gpu()
    version = open_version(folder)
    assert {(e.backend, e.target) for e in version.replicas.chosen.values()} == {("xla", "cuda-sm_90")}
    np.testing.assert_allclose(scores(version), before, atol=1e-6)
    assert played.compiled == 2
    assert "stale: compiled by jaxlib" in caplog.text


def test_deltas_of_dense_weights_never_serve_stale_ones(folder, compile_once, gpu):
    """Weights are arguments of the code, so a flip compiles nothing and no executable can hold older ones."""
    compile_once(TARGETS)
    played = gpu()
    follow_deltas(folder, "xla", "cuda-sm_90")
    assert played.compiled == 0


def test_deltas_of_dense_weights_reach_tensorrts_engines_as_inputs(folder, compile_once, tensorrt):
    """As with XLA: an engine holds no weights, and all are the same engine before and after."""
    compile_once(("cuda-sm_80",), backends=("onnxruntime", "tensorrt"))
    built, device = tensorrt.built, put_cuda(tensorrt.patch, "80")
    tensorrt.runtime = device
    entries = [e for e in VersionReader(folder).manifest.executables if e.backend == "tensorrt"]
    assert [(e.target, e.bucket, e.frozen) for e in entries] == [("cuda-sm_80", 1, ""), ("cuda-sm_80", 8, "")]
    weights = sum(array.nbytes for array in VersionReader(folder).dense().values())
    device.copied[1] = 0
    version = follow_deltas(folder, "tensorrt", "cuda-sm_80")
    assert tensorrt.built == built
    # What was sent beside inputs: each delta's weights once, for both buckets.
    assert device.copied[1] > (DELTAS + 1) * weights
    # Generations that nobody reads have given their memory back.
    gc.collect()
    assert sum(map(len, device.device.values())) < 4 * weights
    del version


def follow_deltas(folder, backend, target):
    """Apply DELTAS with dense weights, on this GPU and on the CPU: the scores agree throughout."""
    before = VersionReader(folder).dense()
    with CpuAlone():
        on_cpu = open_version(folder)
    on_gpu, first = open_version(folder), scores(on_cpu)
    chosen = {(e.backend, e.target) for e in on_gpu.replicas.chosen.values()}
    assert (chosen, {e.target for e in on_cpu.replicas.chosen.values()}) == ({(backend, target)}, {"cpu"})
    for step in range(1, DELTAS + 1):
        dense = {name: (array * np.float32(1 + step / 50)).astype(np.float32) for name, array in before.items()}
        for version in (on_cpu, on_gpu):
            version.apply(Delta("ctr", 1, step, step - 1, {}, dense))
        np.testing.assert_allclose(scores(on_gpu), scores(on_cpu), atol=1e-5)
    assert abs(scores(on_gpu) - first).max() > 1e-3
    assert {(e.backend, e.target) for e in on_gpu.replicas.chosen.values()} == chosen
    return on_gpu


class CpuAlone:
    """While it is entered, no GPU is found."""

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setitem(sys.modules, "cuda.bindings", None)
        self.patch.setattr(running, "_devices", {k: d for k, d in running._devices.items() if k[0] == "cpu"})

    def __exit__(self, *error):
        self.patch.undo()


def test_engines_are_preferred_where_asked_for_and_xla_follows(folder, tensorrt):
    report = compiled(folder, backends=("onnxruntime", "tensorrt"), targets=TARGETS, buckets=(8,))
    assert [(e.backend, e.target) for e in report.manifest.executables] == [
        ("xla", "cuda-sm_90"),
        ("tensorrt", "cuda-sm_80"),
        ("xla", "cuda-sm_80"),
        ("onnxruntime", "cpu"),
    ]
    assert any(line.startswith("tensorrt@cuda-sm_90: target cuda-sm_90: tensorrt 1.0") for line in report.skipped)


@pytest.mark.parametrize(("precision", "bound"), [("bfloat16", 2e-3), ("float16", 4e-4)])
def test_lower_precision_of_a_gpu_is_checked_and_preferred(precision, bound, folder, gpu, tensorrt):
    exact = scores(open_version(folder))
    options = {"backends": ("onnxruntime", "tensorrt"), "targets": ("cuda-sm_90",), "buckets": (8,)}
    entries = compiled(folder, precision=precision, bound=Tolerance(bound), **options).manifest.executables
    assert [(e.backend, e.target, e.precision) for e in entries] == [
        ("xla", "cuda-sm_90", precision),
        ("xla", "cuda-sm_90", "float32"),
        ("onnxruntime", "cpu", "float32"),
    ]
    assert (entries[0].max_error, bool(entries[0].rows)) == (bound, True)
    on_cpu = open_version(folder)
    np.testing.assert_allclose(scores(on_cpu), exact, atol=1e-6)
    gpu()
    on_gpu = open_version(folder)
    assert on_gpu.replicas.computes == {8: f"xla {precision}"}
    assert 1e-6 < abs(scores(on_gpu) - exact).max() < bound
    # Weights for which it is too far off: float32 of the same GPU serves until others come.
    large = {name: array * np.float32(2) for name, array in VersionReader(folder).dense().items()}
    for version in (on_cpu, on_gpu):
        version.apply(Delta("ctr", 1, 1, 0, {}, large))
    assert "xla float32: xla" in on_gpu.replicas.computes[8]
    np.testing.assert_allclose(scores(on_gpu), scores(on_cpu), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"targets": ("cuda-sm_90",), "precision": "bfloat16", "bound": Tolerance(1e-7)},
            "^precision bfloat16: xla cuda bfloat16 b8: differs from TensorFlow by",
        ),
        ({"targets": ("cuda-sm_99",)}, "target: expected one of"),
    ],
    ids=["precision beyond the bound", "unknown target"],
)
def test_refused_compile_leaves_the_version_as_it_was(options, message, folder):
    before = (folder / "model.json").read_bytes()
    with pytest.raises(BadInput, match=message):
        compiled(folder, buckets=(8,), **options)
    assert (folder / "model.json").read_bytes() == before


@pytest.mark.parametrize("installed", [True, False])
def test_cpu_serves_a_package_with_engines_and_logs_one_line(installed, folder, compile_once, tensorrt, caplog):
    before = scores(open_version(folder))
    compile_once(("cuda-sm_80",), backends=("onnxruntime", "tensorrt"))
    tensorrt.patch.setitem(sys.modules, "cuda.bindings", None)
    if not installed:
        for name in ("tensorrt", "tensorrt_rtx_libs", "tensorrt_rtx_bindings"):
            tensorrt.patch.setitem(sys.modules, name, None)
    caplog.clear()
    with Processor.initialize(ProcessorConfig(str(folder.parents[1]), sessions=1)) as processor:
        got = processor.process(PredictRequest("ctr", given())).outputs["score"]
    np.testing.assert_allclose(got[:, 0], before, atol=1e-6)
    (line,) = [record.message for record in caplog.records if "tensorrt" in record.message]
    why = "the library cuda-python is not" if installed else "the library tensorrt is not installed"
    assert re.match(rf"ctr version 1: tensorrt-cuda-sm_80 float32 b1, b8 refused: backend tensorrt: {why}", line)


def test_a_graph_that_computes_something_else_is_not_compiled(folder, monkeypatch):
    def other(graph, bucket, precision):
        doubled = replace(graph, function=lambda x, w: {n: 2 * y for n, y in graph.function(x, w).items()})
        return stablehlo(doubled, bucket, precision)

    monkeypatch.setattr(compiling, "stablehlo", other)
    before = (folder / "model.json").read_bytes()
    with pytest.raises(BadInput, match=r"StableHLO b8: output 'score' differs by .* from TensorFlow's"):
        compiled(folder, targets=("cuda-sm_90",), buckets=(8,))
    assert (folder / "model.json").read_bytes() == before
