"""Compiles a dense graph for every bucket, and proves each result before it can be published."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from compiler.backends.base import Lowered
from compiler.dense import DenseGraph
from processor.backends import load_backend
from processor.backends.base import Artefact
from processor.errors import BadInput
from processor.package.manifest import Executable
from processor.userside import WHOLE

BUCKETS = (1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TOLERANCE = 1e-3


def compile_graph(
    graph: DenseGraph,
    version_folder: Path,
    buckets: Sequence[int] = BUCKETS,
    backend: str = "onnxruntime",
    progress: Callable[[int, int], None] | None = None,
    role: str = WHOLE,
) -> list[Executable]:
    """Writes compiled/<backend>-<target>/b<bucket>.* into the version's folder; returns their manifest
    entries.

    role: which part of a model's dense graph this one is (processor.userside); parts have a folder of their own. The
    caller adds the files to manifest.files. progress(done, total) is called after every bucket. Every
    executable is run once against TensorFlow. Raises BadInput for an unknown backend or
    bucket, and when the backend cannot express the graph or computes something else.
    """
    buckets = sorted(set(buckets))
    if not buckets or buckets[0] < 1:
        raise BadInput(f"buckets: positive batch sizes wanted, got {buckets[:8]}")
    lowered = lower(graph, backend)
    relative = f"compiled/{lowered.backend}-{lowered.target}" + (f"/{role}" if role != WHOLE else "")
    entries: list[Executable] = []
    for done, bucket in enumerate(buckets, 1):
        name, weights = lowered.compile(bucket, version_folder / relative)
        entries.append(
            Executable(
                backend=lowered.backend,
                target=lowered.target,
                bucket=bucket,
                file=f"{relative}/{name}",
                source=source_hash(lowered, bucket),
                weights=weights,
                role=role,
            )
        )
        if progress is not None:
            progress(done, len(buckets))
    _prove(graph, version_folder, entries)
    return entries


def lower(graph: DenseGraph, backend: str) -> Lowered:
    """The graph in the backend's language; raises BadInput for an unknown backend."""
    if backend == "onnxruntime":
        from compiler.backends import onnxruntime

        return onnxruntime.Lowered(graph)
    raise BadInput(f"backend: 'onnxruntime' wanted, got {backend[:64]!r}")


def source_hash(lowered: Lowered, bucket: int) -> str:
    """sha256 of the definition, the bucket and the backend: an executable of equal source is up to date."""
    digest = hashlib.sha256(lowered.definition)
    digest.update(f"\0{lowered.backend}\0{lowered.target}\0{bucket}".encode())
    return digest.hexdigest()


def _prove(graph: DenseGraph, version_folder: Path, entries: Sequence[Executable]) -> None:
    """Raises BadInput unless every executable computes what TensorFlow does on the graph's examples, or random rows."""
    artefacts = [Artefact(e.bucket, (version_folder / e.file).read_bytes(), e.weights) for e in entries]
    columns = {output.name: output.columns for output in graph.outputs}
    rows = max(e.bucket for e in entries)
    x = graph.sample(rows)
    wanted = graph.run(x)
    loaded = load_backend(entries[0].backend).load_all(artefacts, graph.weights, graph.width, columns)
    for executable in loaded:
        got = {name: np.zeros((executable.bucket, n), np.float32) for name, n in columns.items()}
        executable.bind(x[: executable.bucket], got)()
        _compare(got, wanted, executable.bucket)


def _compare(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], bucket: int) -> None:
    for name, values in got.items():
        reference = wanted[name][:bucket]
        if not np.allclose(values, reference, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            worst = float(np.nanmax(np.abs(values - reference)))
            raise BadInput(f"executable b{bucket}: output {name!r} is off by {worst:.3g} from TensorFlow's")
