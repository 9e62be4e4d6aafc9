"""`freshet compile` on versions in a repository: what is committed, when, and what a server makes of it."""

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import freshet_serving.compiler.building.recompile as packaging
from freshet_serving.compiler.building import subgraph_compiler
from freshet_serving.compiler.building.recompile import CompileOptions, compile_version, find_version
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.zoo import deepfm
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, NotFound
from freshet_serving.processor.extras import how_to_install
from freshet_serving.processor.package.delta import Delta
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry
from freshet_serving.processor.repository.version import MANIFEST, VersionReader
from tests.compiler.building.versions import USERS, Silent, compiled, parquet, scores
from tests.support.packages import open_version

BOTH = ("onnxruntime", "xla")


def files(folder):
    return {p.relative_to(folder).as_posix() for p in (folder / "compiled").rglob("*") if p.is_file()}


def test_manifest_lists_the_fastest_executable_per_bucket_and_its_cost(folder):
    before = scores(open_version(folder))
    report = compiled(folder, BOTH)
    reader = VersionReader(folder)
    reader.verify()
    manifest = reader.manifest
    assert {e.bucket for e in manifest.executables} == {1, 8}
    notes = manifest.notes["compile"]
    by_bucket = {b: [m for m in notes["measured"] if m["bucket"] == b] for b in (1, 8)}
    version = open_version(folder)
    for bucket, measured in by_bucket.items():
        assert len(measured) == len({"onnxruntime", "xla"} & {m["variant"] for m in measured})
        best = min(measured, key=lambda m: m["cost_us"])
        assert version.replicas.chosen[bucket].backend == best["variant"]
        assert version.replicas.costs.cost[bucket] == pytest.approx(best["cost_us"] * 1e-6)
    assert set(notes["flip_ms"]) == {m["variant"] for m in notes["measured"]}
    assert report.manifest == manifest
    np.testing.assert_allclose(scores(version), before, atol=1e-5)


@pytest.mark.parametrize("backend", ["openvino", "xla"])
def test_machine_code_serves_dense_deltas_without_recompiling(backend, folder):
    pytest.importorskip({"openvino": "openvino", "xla": "jaxlib"}[backend], reason="the library is not installed")
    plain = open_version(folder)
    wanted = [scores(plain)]
    dense = {name: array * np.float32(1.3) for name, array in VersionReader(folder).dense().items()}
    delta = Delta("ctr", 1, 1, 0, {}, dense, published_at=1.7e9)
    plain.apply(delta)
    wanted.append(scores(plain))

    compiled(folder, (backend,), buckets=(8,))
    version = open_version(folder)
    assert {e.backend for e in version.replicas.chosen.values()} == {backend}
    for step, reference in enumerate(wanted):
        if step:
            version.apply(delta)
        np.testing.assert_allclose(scores(version), reference, atol=1e-5)
    version.rollback(0)
    np.testing.assert_allclose(scores(version), wanted[0], atol=1e-5)


def test_reader_of_the_old_manifest_still_finds_its_files(folder):
    before = VersionReader(folder)
    compiled(folder, buckets=(2, 16))
    for entry in before.manifest.executables:
        assert before.file(entry.file)
    scores(open_version(folder))
    middle = VersionReader(folder)
    compiled(folder, buckets=(4,))
    for entry in middle.manifest.executables:
        assert middle.file(entry.file)
    assert not any(e.file in files(folder) for e in before.manifest.executables if "-rows1." in e.file)
    assert [e.bucket for e in VersionReader(folder).manifest.executables] == [4]


def test_manifest_is_replaced_atomically_while_being_read(folder):
    stop, seen, broken = threading.Event(), set(), []

    def read():
        while not stop.is_set():
            try:
                reader = VersionReader(folder)
                for entry in reader.manifest.executables:
                    reader.file(entry.file)
                seen.add(tuple(e.bucket for e in reader.manifest.executables))
            except Exception as error:
                broken.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for buckets in ((2, 8), (1, 4)):
            compiled(folder, buckets=buckets)
    finally:
        stop.set()
        thread.join()
    assert broken == []
    assert (1, 8) in seen


LADDER = (1, 64, 128)


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """A repository with version 1 of a model half of whose features are the user's."""
    root = tmp_path_factory.mktemp("divided")
    random = np.random.default_rng(5)
    features = [
        Feature("item", "id", "item", side="item", table="user", width=8),
        Feature("user", "id", "user", side="user", table="user", offset=8, width=8),
        Feature("age", "float", "age", side="user", offset=16),
        Feature("price", "float", "price", side="item", offset=17),
    ]
    inputs = [Input("item", "int64"), Input("user", "int64"), Input("age", "float32"), Input("price", "float32")]
    table = TableEntry("user", 8, USERS)
    manifest = Manifest("m", 1, "deepfm", 1.7e9, inputs, features, [table], [Output("score")], 18, {}, {})
    rows = {"user": (np.arange(USERS, dtype=np.int64), random.standard_normal((USERS, 8), np.float32))}
    model = deepfm.build(DenseInput.from_features(features), (64, 16), seed=2)
    publish_version(root, manifest, rows, DenseGraph.from_keras(model.scores), buckets=LADDER)
    return root


def asked(n, users=1):
    random = np.random.default_rng(n)
    return {
        "item": random.integers(0, USERS + 3, n),
        "user": random.integers(0, USERS + 3, users),
        "age": random.standard_normal(users).astype(np.float32),
        "price": random.standard_normal(n).astype(np.float32),
    }


def served(repository, *requests):
    """Scores of the requests, divided wherever they can be; and how many were."""
    with Processor.initialize(ProcessorConfig(repository=str(repository), sessions=1)) as processor:
        graphs = processor.predictor.replica("m").graphs
        if graphs.user is not None:
            graphs.pays = lambda parts, rows: True
        scores = [processor.process(PredictRequest("m", r)).outputs["score"] for r in requests]
        return scores, processor.host.group_stats()["default"].work.user_once


def buckets_of(repository):
    found = {}
    for entry in VersionReader(repository / "m" / "1").manifest.executables:
        found.setdefault(entry.subgraph, set()).add(entry.bucket)
    return found


@pytest.mark.long
def test_user_part_is_compiled_too_with_equal_scores(divided, tmp_path):
    repository = tmp_path / "repository"
    shutil.copytree(divided, repository)
    requests = [asked(1), asked(7), asked(64), asked(150), asked(70, users=70)]
    wanted, by_parts = served(repository, *requests)
    assert by_parts == 4
    before = VersionReader(repository / "m" / "1").manifest

    report = compile_version(repository / "m" / "1", CompileOptions(backends=BOTH), Silent())

    got, again = served(repository, *requests)
    assert again == by_parts
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert buckets_of(repository) == {"whole": set(LADDER), "user": {1, 4, 16}, "score": {64, 128}}
    assert report.manifest.graphs == before.graphs != {}
    notes = report.manifest.notes["compile"]
    assert {m["bucket"] for m in notes["parts"]["score"]} == {64, 128}
    assert any(line.startswith("user-once: ") for line in notes["passes"])
    assert set(report.others) == {"user", "score"}


def test_a_compile_replaces_only_the_subgraphs_that_change(divided, tmp_path):
    repository = tmp_path / "repository"
    shutil.copytree(divided, repository)
    folder = repository / "m" / "1"
    named = {e.subgraph: {} for e in VersionReader(folder).manifest.executables}
    for entry in VersionReader(folder).manifest.executables:
        named[entry.subgraph][entry.bucket] = (entry.file, (folder / entry.file).stat().st_mtime_ns)

    compile_version(folder, CompileOptions(backends=("onnxruntime",), buckets=(1, 64)), Silent())

    for entry in VersionReader(folder).manifest.executables:
        # What was compiled from the same graph is the same file, untouched.
        assert named[entry.subgraph][entry.bucket] == (entry.file, (folder / entry.file).stat().st_mtime_ns)
    assert buckets_of(repository) == {"whole": {1, 64}, "user": {1, 4, 16}, "score": {64}}

    compile_version(folder, CompileOptions(backends=("onnxruntime",), buckets=(1, 8)), Silent())

    assert buckets_of(repository) == {"score": {1, 8}}
    assert VersionReader(folder).manifest.graphs == {}
    wanted, by_parts = served(divided, asked(20), asked(70))
    got, none = served(repository, asked(20), asked(70))
    assert (by_parts, none) == (2, 0)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_split_unsupported_by_backends_is_omitted_and_reported(divided, tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    shutil.copytree(divided, repository)
    build = subgraph_compiler.build

    def refuse(lowered, bucket, folder, subgraph="score"):
        if subgraph == "score":
            raise BadInput("no words")
        return build(lowered, bucket, folder, subgraph)

    monkeypatch.setattr(subgraph_compiler, "build", refuse)
    report = compile_version(repository / "m" / "1", CompileOptions(backends=("onnxruntime",)), Silent())

    assert buckets_of(repository) == {"score": set(LADDER)}
    assert report.manifest.graphs == {}
    assert any("user-once: left out: no backend could compile the candidates' part" in p for p in report.passes)
    assert served(repository, asked(70))[1] == 0


def test_only_one_compile_runs_at_a_time(folder):
    with packaging._alone(folder), pytest.raises(Conflict, match="another compile of this version is running"):
        compiled(folder)
    with packaging._alone(folder):
        """The first one has let go of it."""


def test_failed_compile_leaves_the_version_unchanged(folder, monkeypatch):
    manifest, before = (folder / MANIFEST).read_bytes(), files(folder)
    monkeypatch.setattr(subgraph_compiler, "calibrate", lambda *a, **k: (_ for _ in ()).throw(BadInput("no")))
    with pytest.raises(BadInput, match="no"):
        compiled(folder, buckets=(3,))
    assert (folder / MANIFEST).read_bytes() == manifest
    assert files(folder) == before
    scores(open_version(folder))


def test_missing_backends_are_named_and_the_others_compiled(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    report = compiled(folder, ("openvino", "onnxruntime"), buckets=(4,))
    assert report.skipped == [f"backend openvino: the library openvino is not installed: {how_to_install('openvino')}"]
    assert {e.backend for e in report.manifest.executables} == {"onnxruntime"}
    with pytest.raises(BadInput, match="backends: none can be compiled here: backend openvino: the library"):
        compiled(folder, ("openvino",))


def test_precision_unsupported_by_the_processor_is_skipped_with_reason(folder, monkeypatch):
    pytest.importorskip("openvino", reason="the openvino extra is not installed")
    from freshet_serving.compiler.backends import openvino
    from freshet_serving.processor.machine import Machine

    monkeypatch.setattr(openvino, "this_machine", lambda: Machine(frozenset({"x86_64"}), "old"))
    report = compiled(folder, ("openvino:bfloat16", "onnxruntime"), buckets=(4,))
    assert report.skipped == ["backend openvino: this machine cannot compute in bfloat16"]


def test_progress_is_reported_part_by_part(folder):
    reporter = Silent()
    compile_version(folder, CompileOptions(backends=("onnxruntime",), buckets=(1, 2, 4)), reporter)
    assert reporter.told == [["compiling for onnxruntime", 3, 3], ["measuring", 3, 3]]


def test_buckets_come_from_a_traffic_sample(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(packaging, "_prices", lambda graph, rows: {b: float(b) for b in packaging.PRICED})
    sample = parquet(tmp_path / "s.parquet", rows=[5] * 20 + [40] * 70)
    report = compiled(folder, sample=sample, most=2)
    assert sorted(report.chosen) == [5, 40]


def test_tampered_or_truncated_executable_is_replaced_at_load(folder, monkeypatch):
    pytest.importorskip("jaxlib", reason="the xla extra is not installed")
    honest = subgraph_compiler.calibrate

    def favouring(*arguments, **options):
        found = honest(*arguments, **options)
        found.measured = [replace(e, cost_us=0.1) if e.sha256 else e for e in found.measured]
        return found

    monkeypatch.setattr(subgraph_compiler, "calibrate", favouring)
    compiled(folder, BOTH, buckets=(8,))
    reader = VersionReader(folder)
    assert [e.backend for e in reader.manifest.executables] == ["xla", "onnxruntime"]
    wanted = scores(open_version(folder))
    path = folder / reader.manifest.executables[0].file
    whole = path.read_bytes()
    for damage in (lambda: os.truncate(path, 100), lambda: path.write_bytes(whole[:-1] + b"\0"), path.unlink):
        path.write_bytes(whole)
        damage()
        version = open_version(folder)
        assert version.replicas.chosen[8].backend == "onnxruntime"
        np.testing.assert_allclose(scores(version), wanted, atol=1e-5)


@pytest.mark.long
def test_foreign_executable_is_recompiled_without_tensorflow(folder):
    pytest.importorskip("jaxlib", reason="the xla extra is not installed")
    compiled(folder, ("xla",), buckets=(8,))
    wanted = scores(open_version(folder))
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["executables"][0]["features"].append("avx9000")
    (folder / MANIFEST).write_text(json.dumps(manifest))
    np.save(folder.parent / "wanted.npy", wanted)
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['jax'] = None\n"
        "from pathlib import Path; import numpy as np\n"
        "from freshet_serving.processor.columns import Ragged\n"
        "from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig\n"
        f"root = Path({str(folder.parent)!r})\n"
        "with Processor.initialize(ProcessorConfig(str(root.parent), sessions=1)) as p:\n"
        "    floats = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)\n"
        "    tags = Ragged.of([[i % 5, 77] for i in range(5)])\n"
        "    inputs = {'user': np.arange(5), 'tags': tags, 'floats': floats}\n"
        "    got = p.process(PredictRequest('ctr', inputs)).outputs['score'][:, 0]\n"
        "np.testing.assert_allclose(got, np.load(root / 'wanted.npy'), atol=1e-5)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "foreign: compiled for a processor with avx9000" in done.stderr


def test_versions_are_found_by_folder_or_name(folder):
    root = folder.parents[1]
    assert find_version(str(folder), None, None).folder == folder
    assert find_version("ctr", str(root), None).folder == folder
    assert find_version("ctr", str(root), 1).folder == folder
    for target, repository, version, message in (
        ("ctr", str(root), 2, "model 'ctr' version 2 is not in the repository"),
        ("other", str(root), None, "model 'other' is not in the repository"),
        (str(root), None, None, "not a version of a model"),
    ):
        with pytest.raises(NotFound, match=message):
            find_version(target, repository, version)
    with pytest.raises(BadInput, match="version: only allowed with --repository"):
        find_version(str(folder), None, 1)


def test_version_without_graph_or_with_damaged_table_is_refused(folder):
    table = folder / "tables/user.safetensors"
    whole = table.read_bytes()
    table.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Corrupt, match="does not match its checksum"):
        compiled(folder)
    table.write_bytes(whole)
    manifest = VersionReader(folder).manifest
    bare = replace(manifest, files={n: f for n, f in manifest.files.items() if not n.startswith("graph/")})
    (folder / MANIFEST).write_bytes(bare.to_json())
    with pytest.raises(BadInput, match="version 1 of 'ctr' has no graph to compile"):
        compiled(folder)
