"""`make -C loadtest gpu-compile`: networks compiled for GPUs on a machine without one, and a report.

For each network and each of its parts: the StableHLO gives TensorFlow's scores on the CPU; XLA compiles it for every
target, and the executable takes and gives what the manifest says; TensorRT-RTX, where it is installed, builds an engine
of the ONNX graph. Nothing is run on a GPU: loading and speed belong to `make gpu-check`.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from freshet_serving.compiler.backends.gpu_targets import compile_ahead, prepare
from freshet_serving.compiler.backends.onnxruntime import to_onnx
from freshet_serving.compiler.backends.xla import AheadGraph, stablehlo
from freshet_serving.compiler.building.parts import parts
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.bench import write_model
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.repository.version import GRAPH, VersionReader
from tests.corpus.entry import FROZEN, read_entry
from tests.gpu.engines import build_engine
from tests.gpu.package import folder_of

ZOO = ("zoo-deepfm", "zoo-dcn", "zoo-wide-deep", "zoo-mmoe", "zoo-esmm", "zoo-two-tower", "user-once")
IMPORTED = ("import-savedmodel", "import-onnx", "import-fallback")
XLA_TARGETS = ("cuda-sm_80", "cuda-sm_89", "cuda-sm_90", "cuda-sm_120")
ENGINE_TARGETS = ("SM80", "SM89", "SM120")
BUCKET = 64
SHAPE = re.compile(r"\w+\[([\d,]*)\]")


@dataclass(slots=True)
class Line:
    """One graph. error: of its StableHLO on the CPU. made: (bytes, seconds) by target, or why there is nothing."""

    name: str
    part: str
    inputs: int
    outputs: int
    error: float = 0.0
    source: str = ""
    made: dict[str, tuple[int, float] | str] = field(default_factory=dict)


def compile_all(names: Sequence[str], targets: Sequence[str], engines: Sequence[str]) -> Iterator[Line]:
    """Compiles every part of the networks, each for a batch of 64 rows or the part's largest below."""
    prepare(targets)
    with tempfile.TemporaryDirectory(prefix="freshet-gpu-") as folder:
        for name in names:
            reader = VersionReader(_version(name, Path(folder) / name))
            graph = DenseGraph.load(reader.folder / GRAPH, reader.dense())
            for part_name, part in parts(graph, reader.manifest.features, (BUCKET,)).by_subgraph.items():
                yield _compiled(name, part_name, part.graph, max(part.buckets), targets, engines)


def _compiled(
    name: str, part: str, graph: DenseGraph, bucket: int, targets: Sequence[str], engines: Sequence[str]
) -> Line:
    line = Line(name, part, len(graph.inputs) + len(graph.weights), len(graph.outputs))
    try:
        origin = stablehlo(graph, bucket)
        line.error = AheadGraph(graph, targets[0]).prove(bucket, origin)
    except FreshetError as error:
        line.made = dict.fromkeys(targets, str(error))
    else:
        line.source = hashlib.sha256(origin).hexdigest()[:12]
        for target in targets:
            line.made[target] = _xla(graph, origin, target, bucket)
    for engine in engines:
        started_s = time.perf_counter()
        try:
            nbytes = build_engine(to_onnx(graph)[0], graph.weights, bucket, engine)
            line.made[f"RTX {engine}"] = nbytes, time.perf_counter() - started_s
        except (FreshetError, RuntimeError) as error:
            line.made[f"RTX {engine}"] = str(error)
    return line


def _xla(graph: DenseGraph, origin: bytes, target: str, bucket: int) -> tuple[int, float] | str:
    started_s = time.perf_counter()
    try:
        executable = compile_ahead(origin, target, bucket)
    except FreshetError as error:
        return str(error)
    code, took_s = executable.serialize(), time.perf_counter() - started_s
    layout = executable.hlo_modules()[0].to_string().partition("entry_computation_layout={")[2].partition("\n")[0]
    taken, _, given = layout.partition("->")
    wanted = [*graph.spec.input_shapes(bucket).values(), *(graph.weights[name].shape for name in graph.weight_names)]
    if _shapes(taken) != wanted or _shapes(given) != [(bucket, output.columns) for output in graph.outputs]:
        return f"takes and gives something else: {layout[:200]}"
    return len(code), took_s


def _shapes(layout: str) -> list[tuple[int, ...]]:
    return [tuple(int(n) for n in found.split(",") if n) for found in SHAPE.findall(layout)]


def _version(name: str, folder: Path) -> Path:
    """The folder of a version with this network."""
    if name == "bench":
        write_model(folder, 50)
        return folder_of(folder)
    entry = read_entry(FROZEN / name)
    folder.mkdir()
    return Repository(entry.lay_out(folder, entry.moments[-1])).version(entry.model).folder


def markdown(lines: Sequence[Line], about: Sequence[str]) -> str:
    targets = list(dict.fromkeys(target for line in lines for target in line.made))
    text = [
        "# Compiled for GPUs without one",
        "",
        "Written by `make -C loadtest gpu-compile`: " + ", ".join(about) + ".",
        "",
    ]
    text += [
        f"Batches of {BUCKET} rows (16 users), bytes and seconds a target. Inputs are the batch and the weights; XLA's"
    ]
    text += [
        "XLA's executables take and give what the manifest says. The error is that of the StableHLO on the CPU,",
        "against TensorFlow's.",
    ]
    text += ["", "| network | part | inputs, outputs | error | StableHLO | " + " | ".join(targets) + " |"]
    text += ["|" + "---|" * (5 + len(targets))]
    for line in lines:
        cells = [_cell(line.made.get(target, "")) for target in targets]
        ends = f"{line.inputs}, {line.outputs}"
        text.append("| " + " | ".join([line.name, line.part, ends, f"{line.error:.0e}", line.source, *cells]) + " |")
    return "\n".join([*text, ""])


def _cell(made: tuple[int, float] | str) -> str:
    return made.replace("|", "/") if isinstance(made, str) else f"{made[0]:,} B, {made[1]:.1f} s"
