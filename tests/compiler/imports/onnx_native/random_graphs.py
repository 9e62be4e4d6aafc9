"""Small random ONNX graphs, as exporters write parts of models: ranks, free lengths, branches and loops."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from freshet_serving.processor.columns import Ragged
from tests.compiler.imports.onnx_native.native_models import normal, spelled

ITEMS, PLACES, DIM, LENGTH = 20, 16, 4, 5
CONSTANTS = """
    zero = Constant <value: tensor = int64 {0}> ()
    one = Constant <value: tensor = int64 {1}> ()
    two = Constant <value: tensor = int64 {2}> ()
    last = Constant <value: tensor = int64 {-1}> ()
    axis0 = Constant <value: tensor = int64[1] {0}> ()
    axis1 = Constant <value: tensor = int64[1] {1}> ()
    axis2 = Constant <value: tensor = int64[1] {2}> ()
    flat = Constant <value: tensor = int64[1] {-1}> ()
    go = Constant <value: tensor = bool {1}> ()
    none = Constant <value: tensor = float {0.0}> ()
    half = Constant <value: tensor = float {0.5}> ()
"""
SIZES = "size = Shape (history) length = Gather (size, one) rows = Gather (size, zero)"
"""What each part below may read, beside the constants."""
POSITIONS = {
    "none": "x0 = Gather (t, history)",
    "flat": "r = Range (zero, length, one) p = Gather (pos, r) h = Gather (t, history) x0 = Add (h, p)",
    "one row": (
        "r = Range (zero, length, one) u = Unsqueeze (r, axis0) p = Gather (pos, u) h = Gather (t, history) "
        "x0 = Add (h, p)"
    ),
    "every row": (
        "r = Range (zero, length, one) u = Unsqueeze (r, axis0) e = Expand (u, size) p = Gather (pos, e) "
        "h = Gather (t, history) x0 = Add (h, p)"
    ),
    "viewed": (
        "w1 = Reshape (length, flat) w2 = Concat <axis = 0> (flat, w1) v = Reshape (history, w2) vs = Shape (v) "
        "r = Range (zero, length, one) u = Unsqueeze (r, axis0) p = Gather (pos, u) h = Gather (t, v) x0 = Add (h, p)"
    ),
    "from the mask": (
        "k = LessOrEqual (history, zero) n = Not (k) c = Cast <to = 7> (n) q = CumSum (c, one) p = Gather (pos, q) "
        "h = Gather (t, history) x0 = Add (h, p)"
    ),
}
MASKS = {
    "none": "x1 = Identity (x0)",
    "zeroed": "m = Equal (history, zero) m3 = Unsqueeze (m, axis2) x1 = Where (m3, none, x0)",
    # mask[mask.all(1), -1] = 0, by dynamo
    "last kept": """
        m = LessOrEqual (history, zero) mi = Cast <to = 7> (m) ma = ReduceMin <axes = [1], keepdims: int = 0> (mi)
        full = Cast <to = 9> (ma) sel = Gather <axis: int = 1> (m, last) nz = NonZero (full)
        places = Transpose <perm = [1, 0]> (nz) f1 = Reshape (full, flat) fi = Cast <to = 7> (f1)
        count = ReduceSum <keepdims: int = 1> (fi) no = Not (go) off = Expand (no, count)
        put = ScatterND (sel, places, off) put1 = Unsqueeze (put, axis1) shown = Shape (put1)
        lasts = Expand (last, shown) mask = ScatterElements <axis: int = 1> (m, lasts, put1)
        m3 = Unsqueeze (mask, axis2) x1 = Where (m3, none, x0)
    """,
    "branch": """
        m = Equal (history, zero) mi = Cast <to = 7> (m) count = ReduceSum <keepdims: int = 0> (mi)
        any = Greater (count, zero)
        x1 = If (any) <then_branch = a () => (b3) { m3 = Unsqueeze (m, axis2) b3 = Where (m3, none, x0) },
                       else_branch = b () => (b4) { b4 = Identity (x0) }>
    """,
}
INNER = {
    "none": "x2 = Identity (x1)",
    "attention": (
        "tr = Transpose <perm = [0, 2, 1]> (x1) sc = MatMul (x1, tr) at = Softmax <axis: int = -1> (sc) "
        "x2 = MatMul (at, x1)"
    ),
    "length decides": """
        long = Greater (length, two)
        x2 = If (long) <then_branch = a () => (b1) { b1 = Mul (x1, half) },
                        else_branch = b () => (b2) { b2 = Neg (x1) }>
    """,
    "constant decides": """
        x2 = If (go) <then_branch = a () => (b1) { b1 = Mul (x1, half) }, else_branch = b () => (b2) { b2 = Neg (x1) }>
    """,
    "loop": """
        x2 = Loop <body = b (int64 bi, bool bc, float[n1, n2, n3] bv) => (bool again, float[n1, n2, n3] b5)
        { again = Identity (bc) b5 = Mul (bv, half) }> (two, go, x1)
    """,
    "summed so far": "x2 = CumSum (x1, one)",
    "twice": "x2 = Concat <axis = 1> (x1, x1)",
    "tiled": "one1 = Reshape (one, flat) tw = Concat <axis = 0> (one1, axis2, one1) x2 = Tile (x1, tw)",
    "top": "values, places2 = TopK <axis = 1> (x1, axis1) x2 = Identity (values)",
}
POOLS = {
    "sum": "y = ReduceSum <keepdims: int = 0> (x2, axis1)",
    "mean": "y = ReduceMean <axes = [1], keepdims: int = 0> (x2)",
    "last": "y = Gather <axis: int = 1> (x2, last)",
    "first": "y0 = Slice (x2, axis0, axis1, axis1) y = Squeeze (y0, axis1)",
    "mean of what is there": """
        eq = Equal (history, zero) ne = Not (eq) nf = Cast <to = 1> (ne)
        there = ReduceSum <keepdims: int = 1> (nf, axis1) least = Constant <value: tensor = float {1.0}> ()
        du = Max (there, least) su = ReduceSum <keepdims: int = 0> (x2, axis1) y = Div (su, du)
    """,
}
HEADS = {
    "matrix": "score = MatMul (y, w)",
    "flat": "z = MatMul (y, w) score = Squeeze (z, axis1)",
    "price": "j = Mul (y, half) z = MatMul (j, w) score = Add (z, price)",
}


@dataclass(frozen=True)
class RandomGraph:
    """A graph as parts, and whether its histories have any length."""

    parts: tuple[str, ...]
    free: bool

    @classmethod
    def drawn(cls, random):
        """Return one of the many graphs."""
        kinds = (POSITIONS, MASKS, INNER, POOLS, HEADS)
        return cls(tuple(str(random.choice(list(kind))) for kind in kinds), bool(random.integers(2)))

    def write(self, path: Path) -> Path:
        """Write it as an ONNX file."""
        position, mask, inner, pool, head = self.parts
        steps = [CONSTANTS, SIZES, POSITIONS[position], MASKS[mask], INNER[inner], POOLS[pool], HEADS[head]]
        given = f"int64[n, {'any' if self.free else LENGTH}] history" + (", float[n, 1] price" * (head == "price"))
        text = f"g ({given}) => (float[n{'' if head == 'flat' else ', 1'}] score) {{ {' '.join(steps)} }}"
        return spelled(path, text, t=normal(ITEMS, DIM), pos=normal(PLACES, DIM), w=normal(DIM, 1))

    def requests(self, random):
        """Yield columns of requests, and what ONNX Runtime is fed with."""
        for rows, length in ((1, 3), (4, 6), (7, 1)):
            ids = random.integers(0, ITEMS, (rows, length if self.free else LENGTH))
            ids[0] = 0
            feeds = {"history": ids}
            columns = {"history": Ragged.of(ids.tolist()) if self.free else ids}
            if self.parts[-1] == "price":
                feeds["price"] = random.standard_normal((rows, 1)).astype(np.float32)
                columns["price"] = feeds["price"][:, 0]
            yield columns, feeds
