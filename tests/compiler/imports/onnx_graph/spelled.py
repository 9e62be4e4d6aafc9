"""ONNX models as PyTorch's exporters spell them, written down here so that tests need no PyTorch.

The bags are copies of what torch.onnx.export writes: TorchScript's (1.13 and 2.14 alike), dynamo's optimised, dynamo's
with optimize=False, where every branch that PyTorch knows how to take is still there, and dynamo's with a padding_idx.
"""

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, parser

from freshet_serving.compiler.imports.onnx_graph.bags import find_bags, splits_of
from freshet_serving.compiler.imports.onnx_graph.branches import decided
from freshet_serving.compiler.imports.onnx_graph.onnx_reader import read_onnx

ROWS, DIM = 20, 4
TABLE = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
ENDLESS = 2**63 - 1
MODES = ("sum", "mean", "max")
NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max}


def written(path, text, opset=17, **weights):
    """A model in ONNX's textual form, with `opset` and initialisers put in, as a file."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name.replace("__", ".")))
    path.write_bytes(proto.SerializeToString())
    return path


def made(path, op, inputs, outputs=1, opset=17, constants=(), domain="", **attributes):
    """A model of one operator. inputs: name -> array; of these `constants` are initialisers, the rest have a batch."""
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in inputs.items() if k in constants and v is not None]
    given = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), ["batch", *v.shape[1:]])
        for k, v in inputs.items()
        if k not in constants and v is not None
    ]
    names = [f"out{i}" for i in range(outputs)]
    node = helper.make_node(
        op, [k if v is not None else "" for k, v in inputs.items()], names, domain=domain, **attributes
    )
    graph = helper.make_graph([node], "g", given, [helper.make_empty_tensor_value_info(n) for n in names], weights)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(proto.SerializeToString())
    return path


def translator(path):
    """The translation of a file, in a function that does not know the batch: fed -> outputs in order.

    fed: the file's inputs; of a ragged one, ids and row splits.
    """
    # Here alone: what is spelled is imported without TensorFlow too.
    from freshet_serving.compiler.frameworks import tf
    from freshet_serving.compiler.imports.onnx_graph.translation import Translation, weights_of

    model = read_onnx(path)
    body, offsets = find_bags(type(model)(model.inputs, decided(model.body), model.opset))
    weights = weights_of(body)
    taken = {pair.offsets for pair in offsets}
    specs = {one.name: tf.TensorSpec(one.dims, one.dtype) for one in model.inputs if one.name not in taken}
    specs |= {splits_of(pair.ids): tf.TensorSpec([None], tf.int64) for pair in offsets}

    def run(*tensors):
        given = dict(zip(specs, tensors))
        for pair in offsets:
            splits = given[splits_of(pair.ids)]
            given.setdefault(pair.offsets, splits if pair.ends else splits[:-1])
        return Translation(body, weights, model.opset, given).run()

    function = tf.function(run, input_signature=list(specs.values()), autograph=False)

    def compute(fed):
        found = function(*(fed[name] for name in specs))
        return [found[name].numpy() for name in body.outputs]

    return compute


def translated(path, fed):
    """Return the reply to one request of a translated file."""
    return translator(path)(fed)


def reference(path, fed):
    """What ONNX Runtime gives."""
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    wanted = {info.name for info in session.get_inputs()}
    return session.run(None, {name: value for name, value in fed.items() if name in wanted})


def check_same(path, fed):
    """Asserts that both give the same."""
    for got, wanted in zip(translated(path, fed), reference(path, fed), strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def torchscript_bag(reduce="ReduceSum", last=False, matrix=0, opset=17):
    """A Loop over bags that Slice ids."""
    old = opset < 13
    axes = ", axes: ints = [0]" if old or (reduce != "ReduceSum" and opset < 18) else ""
    axes_input = "" if axes else ", zero"

    def unsqueeze(name):
        return f"Unsqueeze <axes: ints = [0]> ({name})" if old else f"Unsqueeze ({name}, zero)"

    given = f"int64[batch, {matrix}] ids" if matrix else "int64[n] ids, int64[batch] off"
    flat, offsets = ("flat", "steps") if matrix else ("ids", "off")
    head = "".join(
        [
            """shape = Shape (ids)
            all_of_it = ReduceProd <keepdims: int = 0> (shape)
            columns = Gather <axis: int = 0> (shape, one)
            nothing = Constant <value: tensor = int64 {0}> ()
            steps = Range (nothing, all_of_it, columns)
            whole = Constant <value: tensor = int64[1] {-1}> ()
            flat = Reshape (ids, whole)"""
            if matrix
            else ""
        ]
    )
    ends = f"same = Identity ({offsets})" if last else ""
    splits = offsets if last else "splits"
    joined = (
        ""
        if last
        else f"""count = Shape ({flat})
        first = Constant <value: tensor = int64 {{0}}> ()
        length = Gather <axis: int = 0> (count, first)
        lengths = {unsqueeze("length")}
        splits = Concat <axis: int = 0> ({offsets}, lengths)"""
    )
    return f"""g ({given}) => (float[batch, {DIM}] y) {{
        true = Constant <value: tensor = bool {{1}}> ()
        one = Constant <value: tensor = int64 {{1}}> ()
        zero = Constant <value: tensor = int64[1] {{0}}> ()
        {head}
        {ends}
        {joined}
        from = Constant <value: tensor = int64[1] {{1}}> ()
        to = Constant <value: tensor = int64[1] {{{ENDLESS}}}> ()
        step = Constant <value: tensor = int64[1] {{1}}> ()
        tail = Slice ({splits}, from, to, zero, step)
        bags = Shape (tail)
        at = Constant <value: tensor = int64 {{0}}> ()
        trip = Gather <axis: int = 0> (bags, at)
        y = Loop (trip, true) <body: graph = b (int64 i, bool c) => (bool again, float[d] row) {{
            begin = Gather <axis: int = 0> ({splits}, i)
            end = Gather <axis: int = 0> (tail, i)
            begins = {unsqueeze("begin")}
            ends = {unsqueeze("end")}
            mine = Slice ({flat}, begins, ends, zero)
            rows = Gather <axis: int = 0> ("emb.weight", mine)
            row = {reduce} <keepdims: int = 0{axes}> (rows{axes_input})
            again = Cast <to: int = 9> (true)
        }}>
    }}"""


LOOP = """
    result_58, index_59 = Loop ("", cond_9, result, index) <body: graph = b (int64 n, bool c, result_11, index_12)
      => (cond_out, result_54, index_56) {
        slice_index = Reshape (index_12, neg_1)
        one_a = CastLike (one, slice_index)
        tmp_14 = Add (slice_index, one_a)
        start = Slice (splits, slice_index, tmp_14)
        tmp_16 = Add (slice_index, one_a)
        two_a = CastLike (two, slice_index)
        tmp_17 = Add (slice_index, two_a)
        end = Slice (splits, tmp_16, tmp_17)
        empty = Equal (start, end)
        row = If (empty) <then_branch: graph = t () => (none) {
            none = Constant <value: tensor = float[1,4] {0,0,0,0}> ()
        }, else_branch: graph = e () => (some) {
            BRANCH
        }>
        result_54 = SequenceInsert (result_11, row)
        one_b = CastLike (one, index_12)
        index_56 = Add (index_12, one_b)
        cond_out = Less (index_56, bags)
    }>
    stacked = ConcatFromSequence <axis: int = 0> (result_58)
    y = Cast <to: int = 1> (stacked)
"""
MEAN = """
    rows = Slice (weighed, start, end)
    tmp_29 = Sub (bags, one)
    at_end = Equal (index_12, tmp_29)
    some = If (at_end) <then_branch: graph = t2 () => (mean_a) {
        total = ReduceSum (rows, axis)
        tmp_33 = Shape <end: int = 1, start: int = 0> (ids)
        denominator = Sub (tmp_33, start)
        positive = Greater (denominator, index)
        mean_a = If (positive) <then_branch: graph = t3 () => (divided) {
            denominators = Cast <to: int = 1> (denominator)
            divided = Div (total, denominators)
        }, else_branch: graph = e3 () => (same) {
            same = Identity (total)
        }>
    }, else_branch: graph = e2 () => (mean_b) {
        mean_b = ReduceMean (rows, axis)
    }>
"""
SUM = """
    rows = Slice (weighed, start, end)
    some = ReduceSum (rows, axis)
"""
CHAIN = """
    zero = Constant <value: tensor = int64 {0}> ()
    mode = Constant <value_int: int = WHICH> ()
    is_sum = Equal (mode, zero)
    some = If (is_sum) <then_branch: graph = t4 () => (summed) {
        rows_a = Slice (weighed, start, end)
        summed = ReduceSum (rows_a, axis)
    }, else_branch: graph = e4 () => (other) {
        mode_b = Constant <value_int: int = WHICH> ()
        is_mean = Equal (mode_b, one)
        other = If (is_mean) <then_branch: graph = t5 () => (meant) {
            rows_b = Slice (weighed, start, end)
            meant = ReduceMean (rows_b, axis)
        }, else_branch: graph = e5 () => (most) {
            rows_c = Slice (weighed, start, end)
            most = ReduceMax (rows_c, axis)
        }>
    }>
"""


def dynamo_bag(branch=SUM, last=False):
    """Rows of all ids, then a Loop over bags that appends to a sequence."""
    bags = "size = Size (off) bags = Sub (size, one)" if last else "bags = Size (off)"
    splits = "splits = Identity (off)" if last else "splits = Concat <axis: int = 0> (off, indices_size)"
    return f"""g (int64[n] ids, int64[batch] off) => (float[batch, {DIM}] y)
      <int64 one = {{1}}, int64 two = {{2}}, int64 index = {{0}}, int64[1] neg_1 = {{-1}}, int64[1] axis = {{0}},
       int64[1] column = {{1}}, float[1] ones = {{1}}> {{
        shape = Shape <start: int = 0> (ids)
        spread = Expand (ones, shape)
        indices_1d = Reshape (ids, neg_1)
        new_weight = Gather ("emb.weight", indices_1d)
        each = Unsqueeze (spread, column)
        weighed = Mul (new_weight, each)
        indices_size = Shape (indices_1d)
        {bags}
        {splits}
        result = SequenceEmpty ()
        cond_9 = Less (index, bags)
        {LOOP.replace("BRANCH", branch)}
    }}"""


def unoptimised_bag(mode=0):
    """Of the modes sum, mean and max, one is taken by a branch on a constant; so is that offsets have no end."""
    text = dynamo_bag(CHAIN.replace("WHICH", str(mode)))
    return text.replace(
        "splits = Concat <axis: int = 0> (off, indices_size)",
        """include_last_offset = Constant <value_int: int = 0> ()
        as_bool = Cast <to: int = 9> (include_last_offset)
        yes = Constant <value: tensor = bool {1}> ()
        ends = Equal (as_bool, yes)
        splits = If (ends) <then_branch: graph = t0 () => (kept) { kept = Identity (off) },
          else_branch: graph = e0 () => (longer) {
            longer = Concat <axis: int = 0> (off, indices_size)
        }>""",
    )


PADDED = f"""g (int64[n] ids, int64[batch] off) => (float[batch, {DIM}] y)
  <int64 count = {{20}}, int64 padding_idx = {{3}}, int64[1] neg_1 = {{-1}}, int64[1] column = {{1}}, int64 i = {{0}},
   int64 one = {{1}}, int64[1] axis = {{0}}, float[1] ones = {{1}}, int64[0] nothing = {{}}> {{
    shape = Shape <start: int = 0> (ids)
    spread = Expand (ones, shape)
    rows = Gather ("emb.weight", ids)
    each = Unsqueeze (spread, column)
    weighed = Mul (rows, each)
    result = SequenceEmpty ()
    bags = Size (off)
    length = Size (ids)
    lengths = Reshape (length, neg_1)
    splits = Concat <axis: int = 0> (off, lengths)
    cond_1 = Less (i, bags)
    result_60, i_61 = Loop ("", cond_1, result, i) <body: graph = b (int64 n1, bool c1, result_16, i_17)
      => (cond_out, result_55, i_57) {{
        start = Gather (splits, i_17)
        tmp_19 = Add (i_17, one)
        end = Gather (splits, tmp_19)
        cond_2 = Less (start, end)
        j_36, kept = Loop ("", cond_2, start, nothing) <body: graph = b2 (int64 n2, bool c2, j, before)
          => (more, j_34, after) {{
            id = Gather (ids, j)
            negative = Less (id, i)
            normal = If (negative) <then_branch: graph = t () => (added) {{ added = Add (id, count) }},
              else_branch: graph = e () => (same) {{ same = Identity (id) }}>
            pads = Equal (normal, padding_idx)
            counts = Not (pads)
            after = If (counts) <then_branch: graph = t6 () => (longer) {{
                mine = Reshape (j, neg_1)
                longer = Concat <axis: int = 0> (before, mine)
            }}, else_branch: graph = e6 () => (unchanged) {{ unchanged = Identity (before) }}>
            j_34 = Add (j, one)
            more = Less (j_34, end)
        }}>
        size = Size (kept)
        empty = Equal (size, i)
        row = If (empty) <then_branch: graph = t7 () => (none) {{
            none = Constant <value: tensor = float[1,4] {{0,0,0,0}}> ()
        }}, else_branch: graph = e7 () => (some) {{
            mine_all = Gather (weighed, kept)
            some = REDUCE (mine_all, axis)
        }}>
        result_55 = SequenceInsert (result_16, row)
        i_57 = Add (i_17, one)
        cond_out = Less (i_57, bags)
    }}>
    stacked = ConcatFromSequence <axis: int = 0> (result_60)
    y = Cast <to: int = 1> (stacked)
}}"""


def bags_of(lengths, seed=1):
    """ids, offsets and row splits of bags of these lengths."""
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.random.default_rng(seed).integers(0, ROWS, splits[-1])
    return {"ids": ids, "off": splits[:-1], splits_of("ids"): splits}


def pooled(mode, fed, padding=None):
    """What PyTorch gives, by numpy: zeros for an empty bag."""
    bags = np.split(fed["ids"], fed["ids/row_splits"][1:-1])
    rows = [TABLE[bag[bag != padding]] for bag in bags]
    return np.stack([NUMPY[mode](r, axis=0) if len(r) else np.zeros(TABLE.shape[1]) for r in rows])


SPELLINGS = [
    *(
        (f"torchscript {r} {o}", torchscript_bag(r, opset=o), o, m)
        for o in (11, 17, 18)
        for r, m in (("ReduceSum", "sum"), ("ReduceMean", "mean"), ("ReduceMax", "max"))
    ),
    ("torchscript with an end", torchscript_bag("ReduceMean", last=True), 17, "mean"),
    ("dynamo sum", dynamo_bag(SUM), 20, "sum"),
    ("dynamo mean", dynamo_bag(MEAN), 20, "mean"),
    ("dynamo with an end", dynamo_bag(MEAN, last=True), 20, "mean"),
    *((f"dynamo unoptimised {m}", unoptimised_bag(i), 20, m) for i, m in enumerate(MODES)),
]


def truncated(path, nbytes):
    path.write_bytes(path.read_bytes()[:nbytes])
    return path


def changed(path, edit):
    """A file after `edit` has had its message."""
    proto = onnx.ModelProto.FromString(path.read_bytes())
    edit(proto)
    path.write_bytes(proto.SerializeToString())
    return path
