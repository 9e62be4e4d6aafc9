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
from freshet_serving.compiler.backends.onnxruntime import to_onnx, with_inputs
from freshet_serving.compiler.backends.xla import LOWER_PRECISIONS, AheadGraph, stablehlo
from freshet_serving.compiler.building.parts import parts
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.bench import write_model
from freshet_serving.processor.backends.tensorrt import EngineBuilder
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.repository.version import GRAPH, VersionReader
from tests.corpus.entry import FROZEN, read_entry
from tests.gpu.engines import INPUTS, INSIDE, REFITTED, Refittable
from tests.gpu.package import folder_of
from tests.models.zoo.sequence_models import publish_untrained
from tests.support.onnx_weights import with_values

ZOO = ("zoo-deepfm", "zoo-dcn", "zoo-wide-deep", "zoo-mmoe", "zoo-esmm", "zoo-two-tower", "user-once")
IMPORTED = ("import-savedmodel", "import-onnx", "import-fallback")
XLA_TARGETS = ("cuda-sm_80", "cuda-sm_89", "cuda-sm_90", "cuda-sm_120")
ENGINE_TARGETS = ("cuda-sm_80", "cuda-sm_89", "cuda-sm_120")
SEQUENCES = ("din", "sasrec", "hstu", "stca")
"""Networks over a history, which is an input with a name."""
NAMES = ["bench", *ZOO, *SEQUENCES, *IMPORTED]
LENGTH = 16
BUCKET = 64
WAYS_OF, WAYS_TARGET, WAYS_BUCKETS = ("bench", "zoo-dcn", "zoo-mmoe"), "cuda-sm_89", (64, 4096)
SHAPE = re.compile(r"\w+\[([\d,]*)\]")


@dataclass(slots=True)
class Line:
    """One graph. inputs: the batch's, and the number of weights. error: of its StableHLO on the CPU. made: (bytes,
    seconds) by target, or why there is nothing."""

    name: str
    part: str
    inputs: str
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
            manifest = reader.manifest
            made = parts(graph, manifest.features, (BUCKET,), manifest.sequences)
            for part_name, part in made.by_subgraph.items():
                yield _compiled(name, part_name, part.graph, max(part.buckets), targets, engines)


def _compiled(
    name: str, part: str, graph: DenseGraph, bucket: int, targets: Sequence[str], engines: Sequence[str]
) -> Line:
    given = ", ".join(f"{n} {list(shape)}" for n, shape in graph.spec.input_shapes(bucket).items())
    line = Line(name, part, f"{given}; {len(graph.weights)} weights", len(graph.outputs))
    try:
        origin = stablehlo(graph, bucket)
        line.error = AheadGraph(graph, targets[0]).prove(bucket, origin)
    except FreshetError as error:
        line.made = dict.fromkeys(targets, str(error))
    else:
        line.source = hashlib.sha256(origin).hexdigest()[:12]
        for target in targets:
            line.made[target] = _xla(graph, origin, target, bucket)
        for precision in LOWER_PRECISIONS:
            line.made[f"{targets[-1]} {precision}"] = _xla(
                graph, stablehlo(graph, bucket, precision), targets[-1], bucket
            )
    for target in engines:
        line.made[f"RTX {target.removeprefix('cuda-')}"] = _engine(EngineBuilder(), graph, INPUTS, bucket, target)
    return line


def ways() -> Iterator[tuple[str, str, int, tuple[int, float] | str]]:
    """Network, way, bucket and what came of it, of the ways to new dense weights (tests.gpu.engines)."""
    with tempfile.TemporaryDirectory(prefix="freshet-gpu-") as folder:
        for name in WAYS_OF:
            reader = VersionReader(_version(name, Path(folder) / name))
            graph = DenseGraph.load(reader.folder / GRAPH, reader.dense())
            for way in (INPUTS, INSIDE, REFITTED):
                builder = Refittable() if way == REFITTED else EngineBuilder()
                for bucket in WAYS_BUCKETS:
                    yield name, way, bucket, _engine(builder, graph, way, bucket, WAYS_TARGET)


def _engine(builder: EngineBuilder, graph: DenseGraph, way: str, bucket: int, target: str) -> tuple[int, float] | str:
    try:
        bare = to_onnx(graph)[0]
        model = with_inputs(bare) if way == INPUTS else with_values(bare, graph.weights)
        started_s = time.perf_counter()
        return len(builder.build(model, bucket, graph.spec, target)), time.perf_counter() - started_s
    except FreshetError as error:
        return str(error)


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
    folder.mkdir()
    if name in SEQUENCES:
        publish_untrained(name, folder, LENGTH, buckets=(1, 8, BUCKET))
        return folder / "m" / "1"
    entry = read_entry(FROZEN / name)
    return Repository(entry.lay_out(folder, entry.moments[-1])).version(entry.model).folder


def markdown(
    lines: Sequence[Line],
    about: Sequence[str],
    tried: Sequence[tuple[str, str, int, tuple[int, float] | str]] = (),
) -> str:
    targets = list(dict.fromkeys(target for line in lines for target in line.made))
    text = [
        "# Compiled for GPUs without one",
        "",
        "Written by `make -C loadtest gpu-compile`: " + ", ".join(about) + ".",
        "",
        f"Batches of {BUCKET} rows (16 users), bytes and seconds a target. RTX: TensorRT-RTX. Weights are arguments of",
        "XLA's code and inputs of the engines, so neither holds any. XLA's executables take and give what the manifest",
        "says. The error is that of the StableHLO on the CPU, against TensorFlow's.",
        "",
        "| network | part | inputs | outputs | error | StableHLO | " + " | ".join(targets) + " |",
        "|" + "---|" * (6 + len(targets)),
    ]
    for line in lines:
        cells = [_cell(line.made.get(target, "")) for target in targets]
        ends = [line.inputs, str(line.outputs), f"{line.error:.0e}", line.source]
        text.append("| " + " | ".join([line.name, line.part, *ends, *cells]) + " |")
    if tried:
        text += ["", "## New dense weights in TensorRT", ""]
        text += [f"Engines for {WAYS_TARGET}: the way that is served, and two that are not."]
        text += ["", "| network | way | rows | engine |", "|---|---|---|---|"]
        text += [f"| {name} | {way} | {bucket} | {_cell(made)} |" for name, way, bucket, made in tried]
    return "\n".join([*text, ""])


def _cell(made: tuple[int, float] | str) -> str:
    return made.replace("|", "/") if isinstance(made, str) else f"{made[0]:,} B, {made[1]:.1f} s"
