"""Name the operators of ONNX that have a translation, without importing TensorFlow."""

from __future__ import annotations

from pathlib import Path

from freshet_serving.compiler.imports.onnx_graph.bags import DOMAIN, find_bags
from freshet_serving.compiler.imports.onnx_graph.branches import decided
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import (
    OPSETS,
    OURS,
    OnnxModel,
    load_proto,
    needed_nodes,
    read_onnx,
)

# fmt: off
TRANSLATED = frozenset(
    {
        "Abs", "Acos", "Add", "And", "ArgMax", "ArgMin", "Asin", "Atan", "BatchNormalization", "Cast", "CastLike",
        "Ceil", "Celu", "Clip", "Concat", "ConstantOfShape", "Cos", "Cosh", "CumSum", "Div", "Dropout", "Einsum",
        "Elu", "EmbeddingBag", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
        "GatherND", "Gelu", "Gemm", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf",
        "IsNaN",
        "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "LpNormalization", "MatMul",
        "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "PRelu", "Pad", "Pow",
        "RMSNormalization", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
        "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape",
        "Round", "ScatterND", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax",
        "Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu",
        "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
    }
)
# fmt: on
BRANCH = "If"


def untranslated(path: Path) -> str:
    """Return why a file cannot be translated, as far as its operators and their version say; "" if they do not.

    Raise BadInput if the file is broken or unsafe, TooLarge beyond a limit.
    """
    proto = load_proto(path)
    versions = {entry.version for entry in proto.opset_import if entry.domain in OURS}
    old = sorted(versions - set(OPSETS))
    if old and old[0] < OPSETS[0]:
        return f"opset {old[0]} has no translation, which begins at {OPSETS[0]}"
    for node in proto.graph.node:
        # Loops may be bags, which have a translation.
        if node.domain not in OURS:
            return _lacking(node.op_type, node.domain)
    if not versions or old:
        return ""
    model = read_onnx(path)
    body, _ = find_bags(OnnxModel(model.inputs, decided(model.body), model.opset))
    # What is inside a branch is not looked at, since known sizes may decide it.
    translated = TRANSLATED | {BRANCH}
    nodes = needed_nodes(body)
    return next((_lacking(n.op, n.domain) for n in nodes if n.domain not in ("", DOMAIN) or n.op not in translated), "")


def _lacking(op: str, domain: str) -> str:
    return f"operator {op[:64]} of {domain[:64] or 'ai.onnx'} has no translation"
