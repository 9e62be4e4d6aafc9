"""Compile dense graphs for XLA: TensorFlow -> StableHLO with the weights as parameters -> a PJRT executable.

TensorFlow writes the StableHLO for a static batch; it is stored as a portable artifact without the source's names and
locations, so equal graphs give equal bytes. jaxlib's PJRT client compiles that for this machine and serialises it. A
machine with a GPU compiles the same artifact for CUDA; one without compiles it ahead for a target that it is given
(compiler.backends.gpu_targets).
"""

from __future__ import annotations

import re
from typing import Any

from freshet_serving.compiler.backends.base import MAX_ERROR, CompiledGraph, Variant
from freshet_serving.compiler.backends.gpu_targets import UNTUNED, compile_ahead
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.backends import Artefact
from freshet_serving.processor.backends.xla import Xla, device
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.running.bounded import row_errors
from freshet_serving.processor.running.given_rows import outputs_of

# jaxlib has read this version since 2024; StableHLO promises five years of compatibility.
STABLEHLO = "1.0.0"
_NAMES = re.compile(r"@[A-Za-z_.$][\w.$-]*|@\"[^\"]*\"")


def variants() -> list[Variant]:
    """Return the variants of this machine: its processor, and CUDA if there is such a device."""
    Xla()
    found = [Variant("xla")]
    try:
        return [*found, Variant("xla", target=device("cuda", 0).target)]
    except BadInput:
        return found


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    return LoweredGraph(graph, variant.target)


def lower_ahead(graph: DenseGraph, target: str) -> AheadGraph:
    """Return the graph to be compiled for a kind of GPU that need not be here."""
    return AheadGraph(graph, target)


class LoweredGraph:
    """The graph as a TensorFlow function; StableHLO is written for each bucket."""

    backend = "xla"
    precision = "float32"

    def __init__(self, graph: DenseGraph, target: str = "") -> None:
        """Compile for a target; raise BadInput if XLA cannot compile the graph.

        Args:
            graph: The dense graph.
            target: The target; "" for this machine.
        """
        self.target = target or this_machine().target
        self._graph = graph
        self._backend = Xla()
        self._program = self._backend.open_program(graph.spec)

    @property
    def definition(self) -> bytes:
        machine = " ".join(self._features())
        return f"{self._backend.library}\0{machine}\0".encode() + stablehlo(self._graph, 1)

    def compile(self, bucket: int) -> CompiledGraph:
        origin, names = stablehlo(self._graph, bucket), self._graph.weight_names
        self._program.add(Artefact(bucket, b"", names, self.precision, self.target, origin))
        return CompiledGraph(
            data=self._program.serialize(bucket),
            suffix=".pjrt",
            weights=names,
            library=self._backend.library,
            features=self._features(),
            origin=origin,
            origin_suffix=".stablehlo",
        )

    def _features(self) -> list[str]:
        features = sorted(this_machine().features)
        return [*features, self.target] if self.target.startswith("cuda") else features


class AheadGraph:
    """The graph for a kind of GPU that is not here. The same StableHLO is run on the CPU to check it."""

    backend = "xla"
    precision = "float32"

    def __init__(self, graph: DenseGraph, target: str) -> None:
        self.target, self._graph, self._library = target, graph, Xla().library

    @property
    def definition(self) -> bytes:
        return f"{self._library}\0{self.target} {UNTUNED}\0".encode() + stablehlo(self._graph, 1)

    def compile(self, bucket: int) -> CompiledGraph:
        """Compile a bucket; raise BadInput if its StableHLO does not give the graph's scores."""
        origin, names = stablehlo(self._graph, bucket), self._graph.weight_names
        self.prove(bucket, origin)
        return CompiledGraph(
            data=compile_ahead(origin, self.target, bucket).serialize(),
            suffix=".pjrt",
            weights=names,
            library=self._library,
            features=[self.target],
            origin=origin,
            origin_suffix=".stablehlo",
        )

    def prove(self, bucket: int, origin: bytes) -> float:
        """Return how far the StableHLO's outputs, on the CPU, are from TensorFlow's; raise BadInput if too far."""
        spec, given = self._graph.spec, self._graph.sample(bucket)
        program = Xla().open_program(spec)
        program.add(Artefact(bucket, b"", self._graph.weight_names, self.precision, "cpu", origin))
        got = outputs_of(program.with_weights(self._graph.weights)[bucket], given, spec)
        wanted, worst = self._graph.run(given), 0.0
        for name, array in got.items():
            error = float(row_errors({name: array}, wanted).max(initial=0.0))
            if error > MAX_ERROR:
                raise BadInput(f"StableHLO b{bucket}: output {name!r} differs by {error:.3g} from TensorFlow's")
            worst = max(worst, error)
        return worst


def stablehlo(graph: DenseGraph, bucket: int) -> bytes:
    """Return the graph as a portable StableHLO artifact.

    Its arguments are the inputs, in the graph's order, and the weights by ascending name; its results are the outputs
    by ascending name.

    Args:
        graph: The dense graph.
        bucket: Rows of the static batch.

    Raises:
        BadInput: XLA cannot compile the graph.
    """
    names, ends = graph.weight_names, [output.name for output in graph.outputs]
    specs = [tf.TensorSpec(shape, tf.float32, name) for name, shape in graph.spec.input_shapes(bucket).items()]
    count = len(specs)
    specs += [tf.TensorSpec(graph.weights[name].shape, tf.float32, f"weight_{i}") for i, name in enumerate(names)]

    def flat(*given: Any) -> list[Any]:
        outputs = graph.function(dict(zip(graph.inputs, given)), dict(zip(names, given[count:])))
        return [tf.identity(outputs[name]) for name in ends]

    function = tf.function(flat, input_signature=specs, autograph=False, jit_compile=True)
    try:
        text = function.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    except Exception as error:
        raise BadInput("dense graph: cannot be compiled for backend xla") from error
    return portable(text)


def portable(text: str) -> bytes:
    """Return the module as a portable artifact, its symbols named by their order and source locations removed."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import stablehlo as dialect

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    with ir.Context() as context:
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        dialect.register_dialect(context)
        plain = ir.Module.parse(text).operation.get_asm(enable_debug_info=False)
        symbols: dict[str, str] = {"@main": "@main"}
        renamed = _NAMES.sub(lambda m: symbols.setdefault(m[0], f"@f{len(symbols)}"), plain)
        artifact: bytes = dialect.serialize_portable_artifact(ir.Module.parse(renamed), STABLEHLO)
    return artifact
