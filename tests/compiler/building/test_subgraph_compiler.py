"""`freshet compile --precision`: what is checked by which rows, what serves, what a delta's weights change of it."""

import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest

import freshet_serving.compiler.backends.onnxruntime as onnxruntime_half
from freshet_serving.compiler.building.calibrate import Tolerance
from freshet_serving.compiler.building.compile import write_rows
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.machine import Machine, this_machine
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.package.manifest_entries import File
from freshet_serving.processor.package.tensors import crc32
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.repository.warmup import dump_warmup
from tests.compiler.building.versions import USERS, compiled, parquet, publish, scores
from tests.support.packages import open_version

pytestmark = pytest.mark.skipif(not this_machine().int8, reason="this processor does not multiply int8")

LOOSE = Tolerance(0.05, 1.0)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("published"), hidden=(64, 32))


@pytest.fixture(scope="module")
def in_int8(published, tmp_path_factory):
    """(report, version's folder) of a compile in int8, for which no rows are given."""
    repository = shutil.copytree(published, tmp_path_factory.mktemp("int8") / "repository")
    return compiled(repository / "ctr" / "1", precision="int8", bound=LOOSE), repository / "ctr" / "1"


@pytest.fixture
def data(tmp_path):
    random, n = np.random.default_rng(0), 400
    a, b = random.standard_normal((2, n)).astype(np.float32)
    tags = [random.integers(0, 5, 2).tolist() for _ in range(n)]
    label = (a + random.standard_normal(n) > 0).astype(np.int64)
    return parquet(tmp_path / "rows.parquet", user=random.integers(0, USERS, n), tags=tags, a=a, b=b, label=label)


def precisions(folder):
    """By bucket, in the order in which they are tried."""
    found = {}
    for entry in VersionReader(folder).manifest.executables:
        found.setdefault(entry.bucket, []).append(entry.precision)
    return found


def doubled(folder, scale):
    return {name: array * np.float32(scale) for name, array in VersionReader(folder).dense().items()}


def test_precision_auto_without_calibration_rows_is_float32(folder):
    report = compiled(folder, ("onnxruntime", "openvino"), bound=LOOSE, buckets=(8,))
    assert {p for listed in precisions(folder).values() for p in listed} == {"float32"}
    assert len(report.notes) == 1
    assert report.notes[0].startswith("precision: only float32, because a lower one cannot be checked: give --data")


def test_int8_without_calibration_rows_is_checked_on_generated_ones(folder, in_int8):
    before = scores(open_version(folder))
    report, folder = in_int8
    assert precisions(folder) == {1: ["int8", "float32"], 8: ["int8", "float32"]}
    assert report.notes[0].startswith(
        "precision: int8 was calibrated and checked on generated rows: for real ones, give --data"
    )
    version = open_version(folder)
    assert version.replicas.computes == {1: "onnxruntime int8", 8: "onnxruntime int8"}
    np.testing.assert_allclose(scores(version), before, atol=0.05)
    assert (scores(version) != before).any()


def test_precision_auto_picks_the_fastest_within_the_error_limits(folder, data):
    report = compiled(folder, data=data, bound=LOOSE)
    notes = report.manifest.notes["compile"]
    assert report.notes == []
    assert {m["variant"] for m in notes["measured"]} == {"onnxruntime", "onnxruntime int8"}
    assert set(notes["auc_change"]) == {"onnxruntime", "onnxruntime int8"}
    best = {b: min((m for m in notes["measured"] if m["bucket"] == b), key=lambda m: m["cost_us"]) for b in (1, 8)}
    wanted = {b: ["int8", "float32"] if "int8" in m["variant"] else ["float32"] for b, m in best.items()}
    assert precisions(folder) == wanted
    tight = compiled(folder, data=data, bound=Tolerance(1e-7, 1e-4), buckets=(8,))
    assert precisions(folder) == {8: ["float32"]}
    assert any("int8: scores change by" in line for line in tight.skipped)


def test_precision_auto_is_checked_on_recorded_requests(folder):
    inputs = VersionReader(folder).manifest.inputs
    requests = [
        {
            "user": np.array([n], np.int64),
            "tags": Ragged.of([[n % 5]]),
            "floats": np.array([[n / 9, -n / 9]], np.float32),
        }
        for n in range(9)
    ]
    assert {i.name for i in inputs} == set(requests[0])
    put(folder, "warmup.safetensors", dump_warmup(requests))
    report = compiled(folder, bound=LOOSE, buckets=(8,))
    assert {m["variant"] for m in report.manifest.notes["compile"]["measured"]} == {"onnxruntime", "onnxruntime int8"}


def put(folder, name, data):
    """Adds a file to a committed version."""
    (folder / name).write_bytes(data)
    manifest = VersionReader(folder).manifest
    files = manifest.files | {name: File(len(data), crc32(np.frombuffer(data, np.uint8)))}
    (folder / "model.json").write_bytes(replace(manifest, files=files).to_json())


def test_requested_precision_is_refused_with_its_measured_error(folder):
    before = (folder / "model.json").read_bytes()
    with pytest.raises(BadInput, match=r"precision int8: .*scores change by at least [\d.e-]+, expected at most 1e-07"):
        compiled(folder, precision="int8", bound=Tolerance(1e-7, 1e-4), buckets=(8,))
    assert (folder / "model.json").read_bytes() == before


def test_precision_unsupported_by_every_backend_is_refused(folder, monkeypatch):
    monkeypatch.setattr(onnxruntime_half, "this_machine", lambda: Machine(frozenset({"avx2"}), "old"))
    with pytest.raises(BadInput, match="precision: no backend here computes in int8; auto uses what is available"):
        compiled(folder, precision="int8")


def test_new_weights_exceeding_the_error_limit_fall_back_to_float32(folder, data):
    plain = open_version(folder)
    compiled(folder, precision="int8", data=data, bound=Tolerance(0.02, 1.0), buckets=(8,))
    version = open_version(folder)
    assert set(version.replicas.computes.values()) == {"onnxruntime int8"}
    told = []
    for step, scale in enumerate((4.0, 0.98), 1):
        delta = Delta("ctr", 1, step, step - 1, {}, doubled(folder, scale), published_at=1.7e9)
        version.apply(delta), plain.apply(delta)
        told.append(set(version.replicas.computes.values()))
        np.testing.assert_allclose(scores(version), scores(plain), atol=1e-5 if step == 1 else 0.05)
    assert len(told[0]) == 1
    assert next(iter(told[0])).startswith("onnxruntime float32: onnxruntime int8 is off by ")
    assert told[1] == {"onnxruntime int8"}


def test_processor_without_int8_support_serves_float32(in_int8, monkeypatch):
    monkeypatch.setattr(
        "freshet_serving.processor.running.opening.this_machine", lambda: Machine(frozenset({"avx2"}), "old")
    )
    version = open_version(in_int8[1])
    assert version.replicas.computes == {1: "onnxruntime float32", 8: "onnxruntime float32"}


def test_rows_with_a_different_width_are_not_used_for_comparison(in_int8, tmp_path):
    folder = shutil.copytree(in_int8[1], tmp_path / "ctr" / "1")
    name = write_rows(folder, "other", {"x": np.zeros((3, 2), np.float32)})
    put(folder, name, (folder / name).read_bytes())
    manifest = VersionReader(folder).manifest
    executables = [replace(e, rows=name if e.rows else "") for e in manifest.executables]
    (folder / "model.json").write_bytes(replace(manifest, executables=executables).to_json())
    with pytest.raises(Corrupt, match=r"expected 'x' float32 \[256, 10\] or fewer rows"):
        open_version(folder)


def test_candidate_part_may_be_int8_but_the_user_part_never(tmp_path, data):
    folder = publish(tmp_path / "repository", hidden=(256, 32)) / "ctr" / "1"
    expected, _ = served(folder)
    compiled(folder, precision="int8", data=data, bound=LOOSE, buckets=(1, 64))
    entries = VersionReader(folder).manifest.executables
    first = {(e.subgraph, e.bucket): e.precision for e in reversed(entries)}
    assert first == {
        ("whole", 1): "int8",
        ("whole", 64): "int8",
        ("score", 64): "int8",
        **{("user", bucket): "float32" for bucket in (1, 4, 16)},
    }
    candidate = next(e for e in entries if (e.subgraph, e.precision) == ("score", "int8"))
    nodes = onnx.load_from_string((folder / candidate.file).read_bytes()).graph.node
    assert sum(node.op_type == "ReduceMax" for node in nodes) == 2, "the part of a weight is one of them"
    got, divided = served(folder)
    assert divided
    np.testing.assert_allclose(got, expected, atol=0.05)
    assert (got != expected).any()


def served(folder, n=64):
    """The scores of a user's n candidates, and whether the user has a part of their own."""
    inputs = {
        "user": np.full(n, 3, np.int64),
        "tags": Ragged.of([[i % 5] for i in range(n)]),
        "floats": np.linspace(-1, 1, 2 * n, dtype=np.float32).reshape(n, 2),
    }
    with Processor.initialize(ProcessorConfig(str(folder.parents[1]), sessions=1)) as processor:
        scores = processor.process(PredictRequest("ctr", inputs)).outputs["score"]
        return scores, processor.predictor.replica("ctr").graphs.user is not None
