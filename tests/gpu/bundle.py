"""`make -C loadtest gpu-bundle`: what `make gpu-check` takes to a machine with a GPU and no TensorFlow or Internet.

bundle.json                what made it
repository/bench/1/        the benchmark's DeepFM: tables, dense weights, ONNX and StableHLO for every bucket and
                           subgraph, and machine code for the GPUs that were named, TensorRT-RTX's if it is installed
repository/clicks/1/       the corpus's DeepFM whose requests are divided, likewise
repository/histories/1/    a network over histories, likewise
inputs.onnx, dense.onnx    bench's dense graph with its weights as inputs and inside, for TensorRT
delta.safetensors          rows and dense weights of step 1
reference.safetensors      requests (ids, floats), the dense input (x0, x1) and TensorFlow's scores (score0, score1)
                           before and after the delta
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.backends.gpu_targets import prepare
from freshet_serving.compiler.backends.onnxruntime import to_onnx, with_inputs
from freshet_serving.compiler.building.compile import build, lower, lower_ahead
from freshet_serving.compiler.building.parts import parts
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.bench import FLOATS, TABLES, bench_delta, write_model
from freshet_serving.processor.backends.tensorrt import EngineBuilder
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import ExecutableEntry
from freshet_serving.processor.package.tensors import write_tensors
from freshet_serving.processor.repository.version import GRAPH, VersionReader
from freshet_serving.processor.tables.table import descriptor
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.corpus.entry import FROZEN, read_entry
from tests.gpu.engines import available
from tests.gpu.package import HISTORIES, folder_of, relist
from tests.models.zoo.sequence_models import learned, publish
from tests.support.onnx_weights import with_values

BACKENDS = ("onnxruntime", "xla")
REFERENCE_ROWS = 1000
FORMAT = "freshet-gpu-bundle/1"
OVER_HISTORIES, LENGTH = "stca", 64


def write_bundle(out: Path, rows: int, buckets: Sequence[int], targets: Sequence[str] = ()) -> Path:
    """Writes a bundle into an empty or new folder; returns it. rows: of each of the 26 tables. targets: kinds of GPU to
    compile for."""
    prepare(targets)
    write_model(out / "repository", rows)
    folder = folder_of(out / "repository")
    manifest, graph = compile_parts(folder, buckets, targets)
    entry = read_entry(FROZEN / "user-once")
    entry.lay_out(out / "repository", entry.moments[-1])
    compile_parts(folder_of(out / "repository", entry.model), buckets, targets)
    publish(learned(OVER_HISTORIES, LENGTH), out / "repository", model=HISTORIES)
    compile_parts(folder_of(out / "repository", HISTORIES), buckets, targets)
    bare = to_onnx(graph)[0]
    (out / "inputs.onnx").write_bytes(with_inputs(bare))
    (out / "dense.onnx").write_bytes(with_values(bare, graph.weights))

    random = np.random.default_rng(0)
    dense = {
        n: (w * random.uniform(0.9, 1.1, w.shape)).astype(np.float32).reshape(w.shape) for n, w in graph.weights.items()
    }
    delta = replace(bench_delta(manifest, 1, max(1, rows // 10) * TABLES), dense=dense)
    write_delta(out / "delta.safetensors", delta)
    inputs = {
        "ids": random.integers(0, rows + rows // 10 + 1, (REFERENCE_ROWS, TABLES)),
        "floats": random.standard_normal((REFERENCE_ROWS, FLOATS)).astype(np.float32),
    }
    version, plan = ServedVersion(VersionReader(folder), 1, SystemClock()), SparsePlan(manifest)
    arrays = dict(inputs)
    for step, weights in enumerate((graph.weights, dense)):
        if step:
            version.apply(delta)
        tables = [descriptor(t, a) for t, a in zip(manifest.tables, version.change.frame.arrays)]
        x = np.zeros((REFERENCE_ROWS, manifest.width), np.float32)
        plan.fill(BatchView.of(np.array(tables, np.int64), version.change.epoch, plan.bind_inputs(inputs)), x)
        arrays |= {f"x{step}": x, f"score{step}": graph.run({"x": x}, weights)["score"]}
    with open(out / "reference.safetensors", "wb") as file:
        write_tensors(file, arrays, {})
    about = {"format": FORMAT, "made_at": time.time(), "rows": rows, "buckets": sorted(set(buckets))}
    (out / "bundle.json").write_text(json.dumps(about, indent=1))
    return out


def compile_parts(folder: Path, buckets: Sequence[int], targets: Sequence[str]) -> tuple[Manifest, DenseGraph]:
    """Compiles every part of a version; returns its manifest and graph. Nothing is measured: the check does that."""
    reader, executables = VersionReader(folder), list[ExecutableEntry]()
    graph, before = DenseGraph.load(folder / GRAPH, reader.dense()), reader.manifest
    found = parts(graph, before.features, buckets, before.sequences)
    ahead = [(backend, target) for target in targets for backend in (*(["tensorrt"] if available() else []), "xla")]
    for name, part in found.by_subgraph.items():
        lowered = [lower(part.graph, Variant(backend)) for backend in BACKENDS]
        for backend, target in ahead:
            # TensorRT-RTX knows fewer kinds of GPU than XLA.
            if backend == "xla" or target in EngineBuilder().targets():
                lowered.append(lower_ahead(part.graph, target, backend))
        executables += [build(one, bucket, folder, found.listed(name)) for one in lowered for bucket in part.buckets]
    named = found.described(before, executables)
    return relist(folder, executables, named), graph
