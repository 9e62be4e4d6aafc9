"""ONNX models that the compiler does not translate, as exporters write them, without their frameworks."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, parser

ML = "ai.onnx.ml"
RANDOM = np.random.default_rng(36)


def spelled(path, text, opset=17, ml=0, microsoft=0, **weights):
    """A model in ONNX's textual form, with initialisers put in, as a file."""
    domains = [f'"" : {opset}', *([f'"{ML}" : {ml}'] if ml else []), *(['"com.microsoft" : 1'] if microsoft else [])]
    proto = parser.parse_model(f"<ir_version: 8, opset_import: [{', '.join(domains)}]> {text}")
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name.replace("__", ".")))
    path.write_bytes(proto.SerializeToString())
    return path


def own_scores(path: Path, fed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the scores of ONNX Runtime itself for a file."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(fed))))


def forest(trees, depth, columns, seed=0):
    """Attributes of a tree ensemble: complete trees of random splits."""
    random = np.random.default_rng(seed)
    nodes = 2 ** (depth + 1) - 1
    inner = 2**depth - 1
    tree, node = np.divmod(np.arange(trees * nodes), nodes)
    leaf = node >= inner
    attributes = {
        "nodes_treeids": tree.tolist(),
        "nodes_nodeids": node.tolist(),
        "nodes_featureids": np.where(leaf, 0, random.integers(0, columns, len(tree))).tolist(),
        "nodes_modes": ["LEAF" if end else "BRANCH_LEQ" for end in leaf],
        "nodes_values": np.where(leaf, 0, random.standard_normal(len(tree))).astype(np.float32).tolist(),
        "nodes_truenodeids": np.where(leaf, 0, 2 * node + 1).tolist(),
        "nodes_falsenodeids": np.where(leaf, 0, 2 * node + 2).tolist(),
        "nodes_hitrates": [1.0] * len(tree),
        "nodes_missing_value_tracks_true": [0] * len(tree),
    }
    weights = (random.standard_normal(int(leaf.sum())) / trees).astype(np.float32).tolist()
    leaves = {"treeids": tree[leaf].tolist(), "nodeids": node[leaf].tolist(), "ids": [0] * int(leaf.sum())}
    return attributes, leaves, weights


def regressor(path, trees=20, depth=4, columns=6, opsets=None):
    """A gradient boosting as LightGBM's and XGBoost's converters write it; the file may name ai.onnx.ml alone."""
    attributes, leaves, weights = forest(trees, depth, columns)
    targets = {f"target_{name}": values for name, values in leaves.items()} | {"target_weights": weights}
    node = helper.make_node(
        "TreeEnsembleRegressor", ["input"], ["variable"], domain=ML, n_targets=1, **attributes, **targets
    )
    given = [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, ["N", columns])]
    out = [helper.make_tensor_value_info("variable", onnx.TensorProto.FLOAT, ["N", 1])]
    return _saved(path, [node], given, out, opsets or {ML: 3})


def classifier(path, trees=10, depth=3, columns=5):
    """A boosted classifier: labels, and probabilities as dictionaries."""
    attributes, leaves, weights = forest(trees, depth, columns, seed=1)
    classes = {f"class_{name}": values for name, values in leaves.items()} | {"class_weights": weights}
    nodes = [
        helper.make_node(
            "TreeEnsembleClassifier",
            ["input"],
            ["label", "probability_tensor"],
            domain=ML,
            post_transform="LOGISTIC",
            classlabels_int64s=[0, 1],
            **attributes,
            **classes,
        ),
        helper.make_node("ZipMap", ["probability_tensor"], ["probabilities"], domain=ML, classlabels_int64s=[0, 1]),
    ]
    given = [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, ["N", columns])]
    kind = helper.make_map_type_proto(
        onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    )
    out = [
        helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["N"]),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(kind)),
    ]
    return _saved(path, nodes, given, out, {"": 9, ML: 3})


def scaled_linear(path, columns=4):
    """scikit-learn's StandardScaler and LogisticRegression as skl2onnx writes them; labels are strings."""
    nodes = [
        helper.make_node("Scaler", ["X"], ["scaled"], domain=ML, offset=[0.5] * columns, scale=[2.0] * columns),
        helper.make_node(
            "LinearClassifier",
            ["scaled"],
            ["label", "raw"],
            domain=ML,
            classlabels_strings=["no", "yes"],
            coefficients=[*(-0.3 for _ in range(columns)), *(0.3 for _ in range(columns))],
            intercepts=[0.1, -0.1],
            multi_class=1,
            post_transform="LOGISTIC",
        ),
        helper.make_node("Normalizer", ["raw"], ["probabilities"], domain=ML, norm="L1"),
    ]
    given = [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [None, columns])]
    out = [
        helper.make_tensor_value_info("label", onnx.TensorProto.STRING, [None]),
        helper.make_tensor_value_info("probabilities", onnx.TensorProto.FLOAT, [None, 2]),
    ]
    return _saved(path, nodes, given, out, {"": 15, ML: 1})


def _saved(path, nodes, given, out, opsets):
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    graph = helper.make_graph(nodes, "g", given, out)
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())
    return path


def normal(*shape):
    return (RANDOM.standard_normal(shape) * 0.5).astype(np.float32)


ENDLESS = """g (float[batch, 2] x) => (float[batch, 2] y) {
    forever = Constant <value: tensor = int64 {9223372036854775807}> ()
    go = Constant <value: tensor = bool {1}> ()
    y = Loop (forever, go, x) <body: graph = b (int64 i, bool c, float[n, 2] v) => (bool again, float[n, 2] w) {
        again = Identity (c)
        w = Add (v, v)
    }>
}"""
"""A loop of as many trips as there are numbers."""

ITEMS, DIM, HIDDEN, LENGTH = 30, 4, 3, 5

# The history goes sequence first, as PyTorch's GRU does it; the target reads the same table by another way.
GRU = """g (int64[batch, 5] history, int64[batch] target) => (float[batch, 1] score) {
    turned = Transpose <perm = [1, 0]> (history)
    steps = Gather ("items.weight", turned)
    column = Unsqueeze (target, one)
    flat = Reshape (column, all)
    wanted = Gather <axis: int = 0> ("items.weight", flat)
    all_states, last = GRU <hidden_size: int = 3, linear_before_reset: int = 1> (steps, W, R, B)
    state = Squeeze (last, zero)
    both = Concat <axis: int = 1> (state, wanted)
    raw = Gemm (both, "top.weight", "top.bias")
    score = Sigmoid (raw)
}"""
GRU_WEIGHTS = {
    "items__weight": normal(ITEMS, DIM),
    "W": normal(1, 3 * HIDDEN, DIM),
    "R": normal(1, 3 * HIDDEN, HIDDEN),
    "B": normal(1, 6 * HIDDEN),
    "top__weight": normal(HIDDEN + DIM, 1),
    "top__bias": normal(1),
    "one": np.array([1]),
    "all": np.array([-1]),
    "zero": np.array([0]),
}
FREE_GRU = GRU.replace("int64[batch, 5] history", "int64[batch, any] history")
LSTM = """g (int64[batch, 5] history, float[batch, 2] dense) => (float[batch, 1] score) {
    rows = Gather ("items.weight", history)
    steps = Transpose <perm = [1, 0, 2]> (rows)
    states, last, cell = LSTM <hidden_size: int = 3> (steps, W, R)
    state = Squeeze (last, zero)
    both = Concat <axis: int = 1> (state, dense)
    score = MatMul (both, "top.weight")
}"""
LSTM_WEIGHTS = {
    "items__weight": normal(ITEMS, DIM),
    "W": normal(1, 4 * HIDDEN, DIM),
    "R": normal(1, 4 * HIDDEN, HIDDEN),
    "top__weight": normal(HIDDEN + 2, 1),
    "zero": np.array([0]),
}
CONV = """g (int64[batch, 5] history) => (float[batch, 2] score) {
    rows = Gather ("items.weight", history)
    channels = Transpose <perm = [0, 2, 1]> (rows)
    folded = Conv <kernel_shape = [3]> (channels, "conv.weight", "conv.bias")
    most = ReduceMax <axes = [2], keepdims: int = 0> (folded)
    score = Relu (most)
}"""
CONV_WEIGHTS = {"items__weight": normal(ITEMS, DIM), "conv__weight": normal(2, DIM, 3), "conv__bias": normal(2)}
SCAN = """g (int64[batch, 5] history) => (float[batch, 4] score) {
    rows = Gather ("items.weight", history)
    steps = Transpose <perm = [1, 0, 2]> (rows)
    first = ReduceSum <keepdims: int = 0> (steps, zero)
    start = Mul (first, nought)
    score, every = Scan <num_scan_inputs: int = 1, body = step (float[n, 4] state, float[n, 4] row)
        => (float[n, 4] next, float[n, 4] seen) {
            faded = Mul (state, half)
            next = Add (faded, row)
            seen = Identity (next)
        }> (start, steps)
}"""
SCAN_WEIGHTS = {
    "items__weight": normal(ITEMS, DIM),
    "zero": np.array([0]),
    "nought": np.float32(0),
    "half": np.float32(0.5),
}
# The number of trips is a number of the request: 1 for some row, else none.
LOOP = """g (int64[batch, 5] history, int64[batch, 1] times) => (float[batch, 4] score) {
    rows = Gather ("items.weight", history)
    first = ReduceSum <keepdims: int = 0> (rows, one)
    score = Loop <body = step (int64 i, bool go, float[n, 4] state)
        => (bool on, float[n, 4] next) {
            on = Identity (go)
            gate = Cast <to: int = 1> (times)
            more = Mul (state, gate)
            next = Add (state, more)
        }> (trips, true, first)
}"""
LOOP_WEIGHTS = {"items__weight": normal(ITEMS, DIM), "one": np.array([1]), "trips": np.array(2), "true": np.array(True)}
ATTENTION = """g (int64[batch, 5] history) => (float[batch, 4] score) {
    rows = Gather ("items.weight", history)
    seen = com.microsoft.Attention <num_heads: int = 2> (rows, "attention.weight", "attention.bias")
    score = ReduceMean <axes = [1], keepdims: int = 0> (seen)
}"""
# The query is the target; padding is masked by the ids themselves.
FREE_ATTENTION = """g (int64[batch, any] history, int64[batch] target) => (float[batch, 1] score) {
    rows = Gather ("items.weight", history)
    wanted = Gather ("items.weight", target)
    query = Unsqueeze (wanted, one)
    turned = Transpose <perm = [0, 2, 1]> (rows)
    products = MatMul (query, turned)
    logits = Mul (products, scale)
    padded = Equal (history, nothing)
    column = Unsqueeze (padded, one)
    masked = Where (column, low, logits)
    weights = Softmax <axis: int = 2> (masked)
    seen = MatMul (weights, rows)
    skipped = com.microsoft.BiasGelu (seen, "bias")
    both = Concat <axis: int = 2> (skipped, query)
    raw = MatMul (both, "top.weight")
    score = Squeeze (raw, two)
}"""
FREE_ATTENTION_WEIGHTS = {
    "items__weight": normal(ITEMS, DIM),
    "top__weight": normal(2 * DIM, 1),
    "bias": normal(DIM),
    "one": np.array([1]),
    "two": np.array([2]),
    "nothing": np.array(0),
    "low": np.float32(-1e9),
    "scale": np.float32(0.7),
}
ATTENTION_WEIGHTS = {
    "items__weight": normal(ITEMS, DIM),
    "attention__weight": normal(DIM, 3 * DIM),
    "attention__bias": normal(3 * DIM),
}
