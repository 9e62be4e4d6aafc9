"""Compile dense graphs for XLA: TensorFlow -> StableHLO with the weights as parameters -> a PJRT executable.

TensorFlow writes the StableHLO for a static batch; it is stored as a portable artifact without the source's names and
locations, so equal graphs give equal bytes. jaxlib's PJRT client compiles that for this machine and serialises it. A
machine with a GPU compiles the same artifact for CUDA; one without compiles it ahead for a target that it is given
(compiler.backends.gpu_targets).
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from freshet_serving.compiler.backends.base import MAX_ERROR, CompiledGraph, Variant, check_outputs
from freshet_serving.compiler.backends.gpu_targets import UNTUNED, compile_ahead
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.backends import Artefact, Program
from freshet_serving.processor.backends.xla import Xla, device, stablehlo_dialects
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.running.given_rows import outputs_of

# jaxlib has read this version since 2024; StableHLO promises five years of compatibility.
STABLEHLO = "1.0.0"
LOWER_PRECISIONS = ("bfloat16", "float16")
"""Precisions on a GPU: operands of every product are rounded, and sums are float32, as the weights that arrive."""
_NAMES = re.compile(r"@[A-Za-z_.$][\w.$-]*|@\"[^\"]*\"")


def variants() -> list[Variant]:
    Xla()
    here = [Variant("xla")]
    try:
        target = device("cuda", 0).target
    except BadInput:
        return here
    return here + [Variant("xla", precision, target) for precision in ("float32", *LOWER_PRECISIONS)]


def lower(graph: DenseGraph, variant: Variant) -> LoweredGraph:
    return LoweredGraph(graph, variant.target, variant.precision)


def lower_ahead(graph: DenseGraph, target: str, precision: str = "float32") -> AheadGraph:
    """Lower for a kind of GPU that need not be here; `precision` is float32 or one of LOWER_PRECISIONS."""
    return AheadGraph(graph, target, precision)


class LoweredGraph:
    """The graph for one target ("": this machine); StableHLO is written for each bucket."""

    backend = "xla"

    def __init__(self, graph: DenseGraph, target: str = "", precision: str = "float32") -> None:
        self.target, self.precision = target or this_machine().target, precision
        self._graph = graph
        self._backend = Xla()
        self._program = self._backend.open_program(graph.spec)

    @cached_property
    def definition(self) -> bytes:
        machine = " ".join(self._features())
        return f"{self._backend.library}\0{machine}\0".encode() + stablehlo(self._graph, 1, self.precision)

    def compile(self, bucket: int) -> CompiledGraph:
        origin, names = stablehlo(self._graph, bucket, self.precision), self._graph.weight_names
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

    def __init__(self, graph: DenseGraph, target: str, precision: str = "float32") -> None:
        self.target, self.precision = target, precision
        self._graph, self._library = graph, Xla().library

    @cached_property
    def definition(self) -> bytes:
        return f"{self._library}\0{self.target} {UNTUNED}\0".encode() + stablehlo(self._graph, 1, self.precision)

    def compile(self, bucket: int) -> CompiledGraph:
        """Compile a bucket; raise BadInput if its StableHLO, in float32, does not give the graph's scores."""
        origin, names = stablehlo(self._graph, bucket, self.precision), self._graph.weight_names
        if self.precision == "float32":
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

    def on_cpu(self, bucket: int, origin: bytes = b"") -> Program:
        """Return a bucket's StableHLO as a program of the CPU, which rounds to lower precisions as a GPU does."""
        program, origin = Xla().open_program(self._graph.spec), origin or stablehlo(self._graph, bucket, self.precision)
        program.add(Artefact(bucket, b"", self._graph.weight_names, self.precision, "cpu", origin))
        return program

    def prove(self, bucket: int, origin: bytes) -> float:
        """Return how far the StableHLO's outputs, on the CPU, are from TensorFlow's; raise BadInput if too far."""
        rows = self._graph.sample(bucket)
        executable = self.on_cpu(bucket, origin).with_weights(self._graph.weights)[bucket]
        got = outputs_of(executable, rows, self._graph.spec)
        return check_outputs(got, self._graph.run(rows), MAX_ERROR, f"StableHLO b{bucket}")


def stablehlo(graph: DenseGraph, bucket: int, precision: str = "float32") -> bytes:
    """Return the graph as a portable StableHLO artifact of a static batch; raise BadInput if XLA cannot compile it.

    Its arguments are the inputs, in the graph's order, and the weights by ascending name; its results are the outputs
    by ascending name.
    """
    names, ends = graph.weight_names, [output.name for output in graph.outputs]
    specs = [tf.TensorSpec(shape, tf.float32, name) for name, shape in graph.spec.input_shapes(bucket).items()]
    count = len(specs)
    specs += [tf.TensorSpec(graph.weights[name].shape, tf.float32, f"weight_{i}") for i, name in enumerate(names)]

    def flat(*arguments: Any) -> list[Any]:
        outputs = graph.function(dict(zip(graph.inputs, arguments)), dict(zip(names, arguments[count:])))
        return [tf.identity(outputs[name]) for name in ends]

    function = tf.function(flat, input_signature=specs, autograph=False, jit_compile=True)
    try:
        text = function.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    except Exception as error:
        raise BadInput("dense graph: cannot be compiled for backend xla") from error
    return portable(text, precision)


def portable(text: str, precision: str = "float32") -> bytes:
    """Return a module as a portable artifact, its symbols named by their order and source locations removed.

    Operands of its products are rounded to `precision`.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo as dialect

    with stablehlo_dialects():
        plain = ir.Module.parse(text).operation.get_asm(enable_debug_info=False)
        symbols: dict[str, str] = {"@main": "@main"}
        renamed = _NAMES.sub(lambda m: symbols.setdefault(m[0], f"@f{len(symbols)}"), plain)
        module = ir.Module.parse(renamed)
        if precision != "float32":
            _round_products(module, {"bfloat16": ir.BF16Type, "float16": ir.F16Type}[precision].get())
        artifact: bytes = dialect.serialize_portable_artifact(module, STABLEHLO)
    return artifact


def _round_products(module: Any, element: Any) -> None:
    """Convert float32 operands of every product of a module to a narrower type; results stay as they are."""
    from jaxlib.mlir import ir

    def narrow(operation: Any) -> Any:
        if operation.name in ("stablehlo.dot", "stablehlo.dot_general"):
            for i, operand in enumerate(operation.operands):
                wide = ir.RankedTensorType(operand.type)
                if wide.element_type == ir.F32Type.get():
                    with ir.InsertionPoint(operation), ir.Location.unknown():
                        narrower = ir.RankedTensorType.get(wide.shape, element)
                        convert = ir.Operation.create("stablehlo.convert", results=[narrower], operands=[operand])
                    operation.operands[i] = convert.result
        return ir.WalkResult.ADVANCE

    with ir.Location.unknown():
        module.operation.walk(narrow)
