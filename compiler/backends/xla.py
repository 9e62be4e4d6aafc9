"""Compiles dense graphs for XLA: TensorFlow -> StableHLO with the weights as parameters -> a PJRT executable.

TensorFlow writes the StableHLO for a static batch; it is stored as a portable artifact without names and places of the
source, so equal graphs give equal bytes. jaxlib's PJRT client compiles that for this machine, and serialises it by
itself. A machine with a GPU compiles the same artifact for CUDA.
"""

from __future__ import annotations

import re
from typing import Any

from freshet_serving.compiler.backends.base import CompiledGraph, Variant
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.backends import Artefact
from freshet_serving.processor.backends.xla import Xla, device
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine

# Read by jaxlib since 2024, and for five years from then on by StableHLO's own promise.
STABLEHLO = "1.0.0"
_NAMES = re.compile(r"@[A-Za-z_.$][\w.$-]*|@\"[^\"]*\"")


def variants() -> list[Variant]:
    """See compiler.backends.base.CompilerBackend.variants: this processor, and CUDA where there is such a device."""
    Xla()
    found = [Variant("xla")]
    try:
        return [*found, Variant("xla", target=device("cuda", 0).target)]
    except BadInput:
        return found


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    """See compiler.backends.base.CompilerBackend.lower."""
    return LoweredGraph(graph, variant.target)


class LoweredGraph:
    """compiler.backends.base.LoweredGraph: the graph as TensorFlow holds it; StableHLO follows for each bucket."""

    backend = "xla"
    precision = "float32"

    def __init__(self, graph: DenseGraph, target: str = "") -> None:
        """Raises BadInput when the graph uses what XLA cannot compile."""
        self.target = target or this_machine().target
        self._graph = graph
        self._backend = Xla()
        self._columns = {output.name: output.columns for output in graph.outputs}
        self._program = self._backend.open_program(graph.width, self._columns)

    @property
    def definition(self) -> bytes:
        machine = " ".join(self._features())
        return f"{self._backend.library}\0{machine}\0".encode() + stablehlo(self._graph, 1)

    def compile(self, bucket: int) -> CompiledGraph:
        """See compiler.backends.base.LoweredGraph.compile."""
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


def stablehlo(graph: DenseGraph, bucket: int) -> bytes:
    """The graph for `bucket` rows as a portable StableHLO artifact: x and the weights by ascending name in, the outputs
    by ascending name out. Raises BadInput when XLA cannot compile it."""
    names, ends = graph.weight_names, [output.name for output in graph.outputs]
    specs = [tf.TensorSpec((bucket, graph.width), tf.float32, "x")]
    specs += [tf.TensorSpec(graph.weights[name].shape, tf.float32, f"weight_{i}") for i, name in enumerate(names)]

    def flat(x: Any, *values: Any) -> list[Any]:
        outputs = graph.function(x, dict(zip(names, values)))
        return [tf.identity(outputs[name]) for name in ends]

    function = tf.function(flat, input_signature=specs, autograph=False, jit_compile=True)
    try:
        text = function.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    except Exception as error:
        raise BadInput("dense graph: cannot be compiled for backend xla") from error
    return portable(text)


def portable(text: str) -> bytes:
    """The module as a portable artifact, its symbols named by their order and places of the source left out."""
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
