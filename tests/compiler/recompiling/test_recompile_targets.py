"""`freshet compile --target`: code for GPUs beside the CPU's, played by XLA's CPU compiler, is served by such a GPU."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")
pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.compiler.backends import xla as compiling
from freshet_serving.compiler.backends.xla import stablehlo
from freshet_serving.processor.backends import xla as running
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.recompiling.versions import compiled, publish, scores
from tests.support.packages import open_version

pytestmark = pytest.mark.tensorflow

TARGETS = ("cuda-sm_90", "cuda-sm_80")


class PlayedGpu(running._Cpu):
    """The device cuda-sm_90, with the CPU's compiler; counts what is compiled on it."""

    target = "cuda-sm_90"

    def __init__(self):
        super().__init__(1)
        self.compiled = 0

    def compile(self, stablehlo):
        self.compiled += 1
        return super().compile(stablehlo)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("published"))


@pytest.fixture
def folder(published, tmp_path, monkeypatch):
    shutil.copytree(published, tmp_path / "repository")
    compiler = running._Cpu(1)

    def ahead(origin, target, bucket):
        code = compiler.client.serialize_executable(compiler.compile(origin))
        return SimpleNamespace(serialize=lambda: code)

    monkeypatch.setattr(compiling, "compile_ahead", ahead)
    return tmp_path / "repository" / "ctr" / "1"


@pytest.fixture
def gpu(monkeypatch):
    """Put a GPU into this machine; returns a function that does."""

    def put():
        played = PlayedGpu()
        monkeypatch.setitem(running._devices, ("cuda", 0), played)
        return played

    return put


def test_gpu_code_is_listed_first_with_its_source_graph(folder):
    report = compiled(folder, targets=TARGETS)
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


def test_cpu_serves_without_a_gpu_and_logs_one_line(folder, caplog):
    before = scores(open_version(folder))
    compiled(folder, targets=("cuda-sm_90",))
    version = open_version(folder)
    np.testing.assert_allclose(scores(version), before, atol=1e-6)
    (line,) = [record.message for record in caplog.records if "refused" in record.message]
    assert line.startswith("ctr version 1: xla-cuda-sm_90 float32 b1, b8 refused: ")


def test_matching_gpu_loads_its_code_and_compiles_nothing(folder, gpu):
    before = scores(open_version(folder))
    compiled(folder, targets=TARGETS)
    played = gpu()
    version = open_version(folder)
    assert {(e.backend, e.target) for e in version.replicas.chosen.values()} == {("xla", "cuda-sm_90")}
    np.testing.assert_allclose(scores(version), before, atol=1e-6)
    assert played.compiled == 0


def test_another_kind_of_gpu_does_not_load_it(folder, gpu):
    compiled(folder, targets=("cuda-sm_80",))
    gpu()
    version = open_version(folder)
    assert {e.target for e in version.replicas.chosen.values()} == {"cpu"}


def test_a_hundred_deltas_of_dense_weights_never_serve_stale_ones(folder, gpu):
    """Weights are arguments of the code, so a flip compiles nothing and no executable can hold older ones."""
    compiled(folder, targets=TARGETS)
    on_cpu, before = open_version(folder), VersionReader(folder).dense()
    played = gpu()
    on_gpu, first = open_version(folder), scores(on_cpu)
    for step in range(1, 101):
        dense = {name: (array * np.float32(1 + step / 50)).astype(np.float32) for name, array in before.items()}
        for version in (on_cpu, on_gpu):
            version.apply(Delta("ctr", 1, step, step - 1, {}, dense))
        if step % 20 == 0:
            np.testing.assert_allclose(scores(on_gpu), scores(on_cpu), atol=1e-5)
            assert abs(scores(on_gpu) - first).max() > 1e-3
    assert {e.target for e in on_gpu.replicas.chosen.values()} == {"cuda-sm_90"}
    assert played.compiled == 0


def test_a_graph_that_computes_something_else_is_not_compiled(folder, monkeypatch):
    def other(graph, bucket):
        doubled = replace(graph, function=lambda x, w: {n: 2 * y for n, y in graph.function(x, w).items()})
        return stablehlo(doubled, bucket)

    monkeypatch.setattr(compiling, "stablehlo", other)
    before = (folder / "model.json").read_bytes()
    with pytest.raises(BadInput, match=r"StableHLO b1: output 'score' differs by .* from TensorFlow's"):
        compiled(folder, targets=("cuda-sm_90",))
    assert (folder / "model.json").read_bytes() == before


def test_an_unknown_target_leaves_the_version_as_it_was(folder):
    before = (folder / "model.json").read_bytes()
    with pytest.raises(BadInput, match="target: expected one of"):
        compiled(folder, targets=("cuda-sm_99",))
    assert (folder / "model.json").read_bytes() == before
