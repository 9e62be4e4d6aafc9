"""`make -C loadtest costly`: small requests that ask an imported model for much; loadtest/results/costly-requests.md.

Ten graphs over lists of free length, in one process and with two workers. Each gets the largest requests that its
limits let through in three shapes (one row, 256 rows and 20,000 rows for a list that is sent once, gzipped JSON: within
an eighth of the longest list that is answered), the same with a deadline of 200 ms, and requests beyond the limits,
while a small model is asked on a connection of its own. Memory is the highest resident size of all processes during the
requests, above that before them.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import helper, numpy_helper, parser
from rich.console import Console

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.limits import DEFAULTS, ROWS_AT_ONCE
from freshet_serving.processor.package import StageGrowth
from freshet_serving.processor.repository.version import VersionReader
from loadtest.load.launch import HOST, serving
from loadtest.load.processes import tree
from loadtest.reports.report import machine, opening, origin, store, table

RESULTS = Path(__file__).parents[1] / "results"
LAYOUTS = {"one process": "1", "two workers": "2"}
SHAPES = (1, 256, 20_000)
TOO_LARGE = 413
DEADLINE_S, AIM_MB, AIM_P99 = 0.2, 200, 3.0
ITEMS, DIM = 1_000, 16
SMALL = "small"
BODY = "(int64 i, bool c, float[r, q] v) => (bool again, float[r, q] w)"
HEAD = """
    two = Constant <value: tensor = int64[1] {2}> ()
    one = Constant <value: tensor = int64[1] {1}> ()
    second = Constant <value: tensor = int64 {1}> ()
    go = Constant <value: tensor = bool {1}> ()
    rows = Gather (t, past)
"""
TAIL = """
    user = ReduceMean <axes = [1], keepdims: int = 0> (mixed)
    other = Gather (t, item)
    flat = ReduceMean <axes = [1], keepdims: int = 0> (other)
    both = Mul (user, flat)
    sum = ReduceSum <keepdims: int = 0> (both, one)
    score = Shrink <lambd: float = 0.0> (sum)
"""
ATTENTION = """
    back{n} = Transpose <perm = [0, 2, 1]> ({x})
    pairs{n} = MatMul ({x}, back{n})
    soft{n} = Softmax <axis = 2> (pairs{n})
    {y} = MatMul (soft{n}, {x})
"""
GRAPHS = {
    "mean of a history": "mixed = Identity (rows)",
    "attention": ATTENTION.format(n=1, x="rows", y="mixed"),
    "four layers of attention": "".join(
        ATTENTION.format(n=n, x=x, y=y)
        for n, (x, y) in enumerate([("rows", "a"), ("a", "b"), ("b", "c"), ("c", "mixed")])
    ),
    "loop over events": f"""
        sizes = Shape (past)
        s = Gather (sizes, second)
        first = ReduceMax <axes = [1], keepdims: int = 0> (rows)
        last = Loop <body = b {BODY} {{ again = Identity (c) h = Sin (v) w = Cos (h) }}> (s, go, first)
        mixed = Unsqueeze (last, one)
    """,
    "loop that doubles": f"""
        sizes = Shape (past)
        s = Gather (sizes, second)
        first = ReduceMax <axes = [1], keepdims: int = 0> (rows)
        last = Loop <body = b {BODY} {{ again = Identity (c) w = Concat <axis = 0> (v, v) }}> (s, go, first)
        mixed = Unsqueeze (last, one)
    """,
    "target attention": """
        target = Gather (t, item)
        shape = Shape (rows)
        wide = Expand (target, shape)
        less = Sub (rows, wide)
        more = Mul (rows, wide)
        joined = Concat <axis = 2> (rows, wide, less, more)
        hidden = MatMul (joined, w)
        active = Relu (hidden)
        weight = ReduceMean <axes = [2]> (active)
        mixed = Mul (rows, weight)
    """,
    "all pairs, wide": """
        a = Unsqueeze (rows, two)
        b = Unsqueeze (rows, one)
        pairs = Mul (a, b)
        mixed = ReduceMax <axes = [2], keepdims: int = 0> (pairs)
    """,
    "recurrent": """
        steps = Transpose <perm = [1, 0, 2]> (rows)
        all, state = GRU <hidden_size = 16> (steps, k, r)
        mixed = Transpose <perm = [1, 0, 2]> (state)
    """,
    "convolution": """
        channels = Transpose <perm = [0, 2, 1]> (rows)
        out = Conv <pads = [2, 2]> (channels, f)
        mixed = Transpose <perm = [0, 2, 1]> (out)
    """,
    "sorted": """
        n = Shape (past)
        length = Gather (n, one)
        best, places = TopK <axis = 1> (rows, length)
        mixed = Mul (best, rows)
    """,
}


class Case(NamedTuple):
    """One imported model, and what was measured of it."""

    name: str
    growth: StageGrowth


def write(path: Path, graph: str) -> Path:
    """Write a graph with its weights."""
    random = np.random.default_rng(0)
    shapes = {"t": (ITEMS, DIM), "w": (4 * DIM, 32), "k": (1, 48, DIM), "r": (1, 48, 16), "f": (DIM, DIM, 5)}
    text = f"g (int64[n, any] past, int64[n, 1] item) => (float[n] score) {{ {HEAD} {graph} {TAIL} }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    used = {name for node in model.graph.node for name in node.input}
    for name, shape in shapes.items():
        if name in used:
            weights = random.normal(size=shape).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(weights, name))
    path.write_bytes(model.SerializeToString())
    return path


def small(path: Path) -> Path:
    """Write the model that is asked beside the others."""
    nodes = [
        helper.make_node("Gather", ["t", "item"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["score"], axes=[1, 2], keepdims=0),
    ]
    given = [helper.make_tensor_value_info("item", 7, ["n", 4])]
    out = [helper.make_tensor_value_info("score", 1, ["n"])]
    weights = numpy_helper.from_array(np.random.default_rng(1).normal(size=(ITEMS, DIM)).astype(np.float32), "t")
    graph = helper.make_graph(nodes, "g", given, out, [weights])
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    return path


def import_all(folder: Path, console: Console) -> tuple[Path, list[Case], dict[str, str]]:
    """Import every graph; returns the repository, the models, and why others were refused."""
    repository, cases, refused = folder / "repository", [], {}
    import_model(small(folder / "small.onnx"), repository, SMALL, options=ImportOptions(buckets=(1, 64)))
    for name, graph in GRAPHS.items():
        model = name.replace(" ", "-").replace(",", "")
        try:
            import_model(
                write(folder / f"{model}.onnx", graph), repository, model, options=ImportOptions(buckets=(1, 64))
            )
        except FreshetError as error:
            refused[name] = str(error)
            console.print(f"{name}: refused: {error}")
            continue
        stage = VersionReader(repository / model / "1").manifest.stage
        if stage is None or stage.growth is None:
            raise SystemExit(f"{name}: expected a measured stage")
        cases.append(Case(model, stage.growth))
    return repository, cases, refused


def longest(growth: StageGrowth, rows: int) -> int:
    """Return the longest list that the limits allow for so many rows."""
    least, most = 0, DEFAULTS.max_ids // -(-rows // ROWS_AT_ONCE) - rows
    while least < most:
        middle = (least + most + 1) // 2
        if growth.cells(rows, middle) <= DEFAULTS.max_cells:
            least = middle
        else:
            most = middle - 1
    return least


def body(rows: int, length: int) -> bytes:
    """Return a request for a list that is sent once, and so many candidates.

    The list has two items at random: one alone would be refused as compressed too well.
    """
    past = np.random.default_rng(length).integers(7, 9, length)
    inputs = {"past": [past.tolist()], "item": [[n % ITEMS] for n in range(rows)]}
    return gzip.compress(json.dumps({"inputs": inputs}).encode(), 9)


def answered(port: int, case: Case, rows: int) -> int:
    """Return a list's length near the longest that is answered: what a run needs at once may allow less than cells."""
    length = longest(case.growth, rows)
    while length > 1 and post(port, case.name, body(rows, length), {"content-encoding": "gzip"})[0] == TOO_LARGE:
        length = length * 7 // 8
    return length


def post(port: int, model: str, data: bytes, headers: Mapping[str, str]) -> tuple[int, float, str]:
    """Return status, seconds and the beginning of the reply."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    began_s = time.monotonic()
    try:
        connection.request("POST", f"/v1/models/{model}:predict", data, {"content-type": "application/json", **headers})
        reply = connection.getresponse()
        said = reply.read()
        return reply.status, time.monotonic() - began_s, said[:160].decode(errors="replace")
    finally:
        connection.close()


class Beside(threading.Thread):
    """Asks the small model all the time."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.times_ms: list[float] = []
        self.failed = 0
        self._port, self._stop_asking = port, threading.Event()

    def run(self) -> None:
        data = json.dumps({"inputs": {"item": [[1, 2, 3, 4]] * 16}}).encode()
        connection = http.client.HTTPConnection(HOST, self._port, timeout=60)
        while not self._stop_asking.is_set():
            began_s = time.monotonic()
            connection.request("POST", f"/v1/models/{SMALL}:predict", data)
            reply = connection.getresponse()
            reply.read()
            self.failed += reply.status != 200
            self.times_ms.append((time.monotonic() - began_s) * 1e3)
            time.sleep(0.002)

    def end(self) -> float:
        """Return the 99th percentile in milliseconds."""
        self._stop_asking.set()
        self.join()
        return float(np.percentile(self.times_ms, 99))


def resident_kb(pid: int, field: str) -> int:
    """Return the sum of a line of /proc/PID/status over a server's processes."""
    total = 0
    for one in tree(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
    return total


@contextmanager
def memory(pid: int, into: dict[str, Any]) -> Iterator[None]:
    """Measure how far the resident size rises while the block runs, in MB."""
    for one in tree(pid):
        Path(f"/proc/{one}/clear_refs").write_text("5")
    before = resident_kb(pid, "VmRSS")
    yield
    into["mb"] = (resident_kb(pid, "VmHWM") - before) / 1024


def measure(layout: str, repository: Path, cases: list[Case], folder: Path, console: Console) -> list[dict[str, Any]]:
    """Return the figures of one layout."""
    figures = []
    with serving(repository, folder / "serve.log", ["--workers", LAYOUTS[layout]]) as server:
        for case in cases:
            for rows in SHAPES:
                limit, length = longest(case.growth, rows), answered(server.http_port, case, rows)
                asked, beyond = body(rows, max(1, length)), body(rows, limit + limit // 50 + 2)
                post(server.http_port, case.name, body(1, 4), {})
                idle = Beside(server.http_port)
                idle.start()
                time.sleep(1.0)
                alone_ms = idle.end()
                one: dict[str, Any] = {"layout": layout, "model": case.name, "rows": rows, "length": length}
                one["bytes"], beside = len(asked), Beside(server.http_port)
                with memory(server.pid, one):
                    beside.start()
                    results = [post(server.http_port, case.name, asked, {"content-encoding": "gzip"}) for _ in range(3)]
                    beside_ms = beside.end()
                timed = {"content-encoding": "gzip", "x-request-timeout-ms": str(int(DEADLINE_S * 1e3))}
                late = post(server.http_port, case.name, asked, timed)
                more = post(server.http_port, case.name, beyond, {"content-encoding": "gzip"})
                one |= {"status": results[-1][0], "seconds": max(r[1] for r in results), "said": results[-1][2]}
                one |= {"late_status": late[0], "late_s": late[1], "beyond_status": more[0], "beyond_said": more[2]}
                one |= {"alone_p99_ms": alone_ms, "beside_p99_ms": beside_ms, "failed": beside.failed}
                figures.append(one)
                console.print(one)
    return figures


def page(results: Mapping[str, Any]) -> str:
    """Return the report."""
    lines = opening("Small requests that ask for much", __doc__ or "", results)
    lines += [f"Aims: at most {AIM_MB} MB, an answer within the deadline, p99 beside at most {AIM_P99} times.", ""]
    rows = [
        [f"{one['model']}, {one['layout']}", one["rows"], one["length"], one["bytes"], one["status"],
         f"{one['mb']:.0f}", f"{one['seconds']:.2f}", f"{one['late_status']} {one['late_s']:.2f}",
         one["beyond_status"], f"{one['beside_p99_ms'] / one['alone_p99_ms']:.1f}", one["failed"]]
        for one in results["figures"]
    ]  # fmt: skip
    heads = ["model", "rows", "list", "bytes", "status", "MB", "s", "with 200 ms", "beyond", "p99 beside", "failed"]
    lines += [table(heads, rows), "", "Refused when they were imported:", ""]
    return "\n".join([*lines, *(f"- {name}: {why}" for name, why in results["refused"].items()), ""])


def main() -> int:
    options = argparse.ArgumentParser(prog="make -C loadtest costly", description=__doc__)
    options.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    options.add_argument("--out", default=str(RESULTS / "costly-requests.md"))
    given, console = options.parse_args(), Console()
    made = origin("-C loadtest costly", "ARGS", sys.argv[1:])
    results: dict[str, Any] = {"machine": machine(), "origin": made, "figures": []}
    with tempfile.TemporaryDirectory(prefix="freshet-costly-") as temporary:
        repository, cases, results["refused"] = import_all(Path(temporary), console)
        for layout in given.layouts:
            results["figures"] += measure(layout, repository, cases, Path(temporary), console)
    store(Path(given.out).parent, Path(given.out).stem, results, page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
