"""`make -C loadtest verdict-loadgen`: the server, judged by MLCommons' LoadGen; loadtest/results/verdict-loadgen.md.

LoadGen drives `freshet serve` as it starts without options, from a process of its own, over binary KServe and over
gRPC. Its own verdict and logs are kept. This is no MLPerf result: runs are shorter, tables smaller, data drawn.

The rate that is possible comes first: what queries take on these cores without any server, and a simulation of one that
loses nothing. In the Server scenario queries come as a Poisson process; the highest rate that LoadGen calls VALID is
searched for with short runs, then judged by a long one. Then once more with a delta a second. In the Offline scenario
all queries are there from the beginning. Server and client share the cores: what each took is beside every line.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from freshet_serving.serving.codecs.messages import message
from loadtest.bench.calibration_rows import chosen, compile_with_practice
from loadtest.bench.harness import CORES
from loadtest.bench.verdict import dcnv2_shape as shape
from loadtest.bench.verdict.loadgen_side import LoadGenJob, LoadGenVerdict, Queries
from loadtest.bench.verdict.possible_rate import measured, possible
from loadtest.load.admin_calls import post_delta
from loadtest.load.encoding import ROW_SPLITS, encode_kserve
from loadtest.load.launch import HOST, RunningServer, serving
from loadtest.load.payload import Payload
from loadtest.load.processes import cpu_s, tree
from loadtest.reports.report import machine, opening, origin

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "loadtest" / "results"
LATENCY_MS, PERCENTILE = 60.0, 0.99
GOAL, DELTA_GOAL = 0.9, 0.93
DELTA_ROWS, DELTA_EVERY_S = 10_000, 1.0
QUERIES, PRACTICE = 200, 8
# Of the possible rate: where the search begins.
FIRST, STEPS = 0.9, 5
LONG_TRIES, STEP_BACK, DELTA_STEP = 4, 0.9, 0.97
PROTOCOLS = {"http": "KServe v2, binary, HTTP", "grpc": "KServe v2, raw, gRPC"}


class LoadGenJudge:
    """LoadGen at a running server."""

    def __init__(self, server: RunningServer, queries: Path, logs: Path, latency_s: float, console: Console) -> None:
        self._server, self._queries, self._logs, self._console = server, queries, logs, console
        self._latency_s = latency_s

    def run(self, name: str, scenario: str, protocol: str, rate: float, seconds: float) -> dict[str, Any]:
        """One run; its verdict, and the cores that the server took. name: of the folder of its logs."""
        port = {"http": self._server.http_port, "grpc": self._server.grpc_port, "none": 0}[protocol]
        logs = self._logs / name
        shutil.rmtree(logs, ignore_errors=True)
        job = LoadGenJob(
            scenario, protocol, port, str(self._queries), rate, seconds, str(logs), latency_s=self._latency_s
        )
        started_s, before_s = time.monotonic(), self._cpu_s()
        said = subprocess.run(
            [sys.executable, "-m", "loadtest.bench.verdict.loadgen_side"],
            input=json.dumps(asdict(job)),
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if said.returncode:
            raise SystemExit(f"LoadGen's process ended with {said.returncode}: {said.stderr[-2000:]}")
        taken_s = time.monotonic() - started_s
        found = LoadGenVerdict(**json.loads(said.stdout.splitlines()[-1]))
        server_cores = (self._cpu_s() - before_s) / taken_s
        self._console.print(
            f"  {name}: {rate:.1f} a second due, {'VALID' if found.valid else 'INVALID'}, {found.rate:.1f} answered, "
            f"p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms, server {server_cores:.2f} cores, client "
            f"{found.cores:.2f} {found.why}"
        )
        return {
            **asdict(found),
            "scenario": scenario,
            "due": rate,
            "seconds": seconds,
            "server_cores": round(server_cores, 3),
        }

    def highest(self, name: str, protocol: str, first: float, short_s: float, long_s: float) -> dict[str, Any]:
        """The Server run of long_s at the highest rate that is VALID, searched for from `first` on."""
        good, bad, rate = 0.0, float("inf"), first
        for _ in range(STEPS):
            # So few queries are never enough for LoadGen to be sure; their percentile says where to look.
            found = self.run(f"{name}-search", "Server", protocol, rate, short_s)
            if not found["failed"] and found["p99_ms"] <= self._latency_s * 1e3:
                good = rate
                rate = rate * 1.1 if bad == float("inf") else (good + bad) / 2
            else:
                bad = rate
                rate = (good + bad) / 2 if good else rate * 0.6
        shutil.rmtree(self._logs / f"{name}-search", ignore_errors=True)
        # Where no rate will do, one run says by how much.
        rate = good or first
        for _ in range(LONG_TRIES if good else 1):
            found = self.run(name, "Server", protocol, rate, long_s)
            if found["valid"]:
                break
            rate *= STEP_BACK
        return found

    def _cpu_s(self) -> float:
        return cpu_s(tree(self._server.pid))


@contextmanager
def deltas(server: RunningServer, files: Iterator[Path]) -> Iterator[list[float]]:
    """A delta every DELTA_EVERY_S while the block runs; seconds that each took until it was served."""
    taken: list[float] = []
    ended = threading.Event()

    def post() -> None:
        due_s = time.monotonic()
        for file in files:
            if ended.wait(max(0.0, due_s - time.monotonic())):
                return
            taken.append(post_delta(server.admin_port, shape.MODEL, file.read_bytes()))
            file.unlink()
            due_s += DELTA_EVERY_S

    thread = threading.Thread(target=post)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join()


def prepare(kept: Path, work: Path, most_rows: int, precision: str, console: Console) -> tuple[Path, str]:
    """A repository with the model, compiled; and what was chosen, by bucket. kept: where it stays as it is compiled;
    what is served is a copy, which deltas change."""
    compiled, repository = kept / f"{shape.MODEL}-{most_rows}-{precision}", work / "repository"
    if not compiled.exists():
        console.print("writing and compiling the model")
        made = work / "made"
        shape.write_model(made, most_rows)
        folder = made / shape.MODEL / "1"
        practice = shape.queries(most_rows, PRACTICE, seed=1)
        compile_with_practice(folder, [shape.ragged(each) for each in practice], precision)
        shutil.copytree(made, compiled)
        shutil.rmtree(made)
    shutil.copytree(compiled, repository)
    return repository, chosen(repository / shape.MODEL / "1")


def prepared(most_rows: int, count: int) -> Queries:
    """Queries as messages of each protocol."""
    made = shape.queries(most_rows, count)
    return Queries([_http(each) for each in made], [_grpc(each) for each in made], [len(m["floats"]) for m in made])


def _http(columns: shape.Columns) -> bytes:
    lists = {name: list(column) if name in shape.NAMES else column for name, column in columns.items()}
    request = encode_kserve(shape.SIGNATURE, lists)
    (sent,) = Payload(request.path, (request.body,), request.headers).messages(HOST, {})
    return sent


def _grpc(columns: shape.Columns) -> bytes:
    infer = message("inference.ModelInferRequest")(model_name=shape.MODEL)
    tensors: dict[str, NDArray[Any]] = {}
    for name, column in columns.items():
        if name not in shape.NAMES:
            tensors[name] = column
            continue
        tensors[name] = column.ravel()
        tensors[name + ROW_SPLITS] = np.arange(len(column) + 1) * column.shape[1]
    for name, tensor in tensors.items():
        infer.inputs.add(name=name, datatype="FP32" if tensor.dtype == np.float32 else "INT64", shape=tensor.shape)
        infer.raw_input_contents.append(tensor.tobytes())
    data: bytes = infer.SerializeToString()
    return data


def page(results: dict[str, Any]) -> str:
    """verdict-loadgen.md."""
    lines = opening("LoadGen as the judge", __doc__, results)
    scaled = ", ".join(f"{count:,}" for count in shape.ROWS if count > results["most_rows"])
    service_s, mean = results["service_s"], sum(results["pairs"]) / len(results["pairs"])
    lines += [
        f"The model: {len(shape.NAMES)} tables of dim {shape.DIM}, {sum(shape.HOT)} ids a pair, cross network of "
        f"{shape.CROSS_LAYERS} layers and rank {shape.RANK}. Scaled down: tables of {scaled} rows have "
        f"{results['most_rows']:,} here. {QUERIES} different queries, {mean:.0f} "
        f"pairs on average. p99 has to stay within {results['latency_ms']:g} ms.",
        "",
        f"Compiled with `--precision {results['precision']}`: {results['chosen']}. Layout: {results['layout']}.",
        "",
        "Without a server a query takes, of one core while all compute: "
        + ", ".join(f"{pairs} pairs {seconds * 1e3:.1f} ms" for pairs, seconds in service_s.items())
        + f". Possible by that: **{results['possible']:.1f} queries a second** in the Server scenario, "
        f"{results['most']:.1f} with all cores always busy.",
        "",
        "| run | LoadGen says | queries a second | of the possible | p50 ms | p99 ms | server, cores | client, cores |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, run in results["runs"].items():
        most = results["most"] if run["scenario"] == "Offline" else results["possible"]
        said = "VALID" if run["valid"] else f"INVALID: {run['why']}"
        due = run["rate"] if run["scenario"] == "Offline" else run["due"]
        told = f"{due:.1f} | {due / most:.2f} | {run['p50_ms']:.1f} | {run['p99_ms']:.1f}"
        lines.append(f"| {name} | {said} | {told} | {run['server_cores']:.2f} | {run['cores']:.2f} |")
    for line in verdicts(results):
        lines += ["", line]
    return "\n".join(lines) + "\n"


def verdicts(results: dict[str, Any]) -> list[str]:
    """A sentence for each protocol."""
    said = []
    for protocol, text in PROTOCOLS.items():
        alone, beside = (results["runs"].get(f"{protocol}-server{kind}") for kind in ("", "-deltas"))
        if not alone or not beside:
            continue
        share, kept = alone["due"] / results["possible"], beside["due"] / alone["due"]
        met = "met" if alone["valid"] and share >= GOAL else "**missed**"
        kept_met = "met" if beside["valid"] and kept >= DELTA_GOAL else "**missed**"
        used = (alone["server_cores"] + alone["cores"]) / CORES
        said.append(
            f"{text}, p99 within {results['latency_ms']:g} ms: {'VALID' if alone['valid'] else 'INVALID'} at "
            f"{alone['due']:.1f} queries a second (p99 {alone['p99_ms']:.0f} ms), {share:.2f} "
            f"of the possible rate; at least {GOAL} was aimed at: {met}. With a delta of {DELTA_ROWS:,} rows a second "
            f"{'VALID' if beside['valid'] else 'INVALID'} at {kept:.2f} of that, at least {DELTA_GOAL} was aimed at: "
            f"{kept_met} ({beside['deltas']} deltas, median {beside['delta_ms']:.0f} ms until served). Without deltas "
            f"the cores are {used:.0%} busy, {alone['server_cores'] / CORES:.0%} by the server."
        )
    return said


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest verdict-loadgen", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=600.0, help="of the runs that are reported")
    add("--search-seconds", type=float, default=30.0, help="of a run of the search")
    add("--most-rows", type=int, default=200_000, help="of a table")
    add("--precision", default="auto", help="as of `freshet compile`")
    add("--latency-ms", type=float, default=LATENCY_MS, help="that p99 has to stay within")
    add("--protocols", default=",".join(PROTOCOLS))
    add("--serve", default="", metavar="OPTIONS", help="of the server")
    add("--scratch", type=Path, help="a folder that keeps the compiled model for the next run")
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    about = {"machine": machine(), "origin": origin("-C loadtest verdict-loadgen", "ARGS", sys.argv[1:])}
    name = "verdict-loadgen" + ("" if arguments.latency_ms == LATENCY_MS else f"-{arguments.latency_ms:g}-ms")
    with TemporaryDirectory(prefix="freshet-verdict-") as folder:
        work = Path(folder)
        repository, runs_by_bucket = prepare(
            arguments.scratch or work, work, arguments.most_rows, arguments.precision, console
        )
        queries = prepared(arguments.most_rows, QUERIES)
        queries.save(work / "queries")
        console.print("measuring queries without a server")
        service_s = measured(repository, arguments.most_rows)
        rate = possible(service_s, shape.PAIRS, CORES, arguments.latency_ms / 1e3, PERCENTILE)
        mean_s = sum(service_s[pairs] * share for pairs, share in shape.PAIRS.items()) / sum(shape.PAIRS.values())
        results: dict[str, Any] = {
            **about,
            "latency_ms": arguments.latency_ms,
            "most_rows": arguments.most_rows,
            "precision": arguments.precision,
            "chosen": runs_by_bucket,
            "pairs": list(queries.pairs),
            "service_s": service_s,
            "possible": rate,
            "most": CORES / mean_s,
            "runs": {},
        }
        console.print(f"possible: {rate:.1f} a second, {results['most']:.1f} at most; {service_s}")
        if max(service_s.values()) / CORES > arguments.latency_ms / 1e3:
            raise SystemExit("no rate is possible: all cores take longer for the largest query; choose --latency-ms")
        with serving(repository, work / "server.log", shlex.split(arguments.serve)) as server:
            results["layout"] = server.layout
            judge = LoadGenJudge(server, work / "queries", arguments.out / name, arguments.latency_ms / 1e3, console)
            _runs(judge, server, work, arguments, results)
    (arguments.out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / f"{name}.md").write_text(page(results))
    print(page(results))


def _runs(
    judge: LoadGenJudge, server: RunningServer, work: Path, arguments: argparse.Namespace, results: dict[str, Any]
) -> None:
    rate, runs, short_s, long_s = results["possible"], results["runs"], arguments.search_seconds, arguments.seconds
    runs["nothing-behind"] = judge.run("nothing-behind", "Server", "none", rate, short_s)
    step = 1
    for protocol in arguments.protocols.split(","):
        runs[f"{protocol}-offline"] = judge.run(
            f"{protocol}-offline", "Offline", protocol, GOAL * results["most"], long_s / 2
        )
        alone = runs[f"{protocol}-server"] = judge.highest(
            f"{protocol}-server", protocol, FIRST * rate, short_s, long_s
        )
        due = alone["due"]
        for _ in range(LONG_TRIES if alone["valid"] else 1):
            steps = range(step, step + int(long_s / DELTA_EVERY_S) + 2)
            files = shape.write_deltas(work, arguments.most_rows, steps, DELTA_ROWS)
            due *= DELTA_STEP
            with deltas(server, iter(files)) as taken:
                found = judge.run(f"{protocol}-server-deltas", "Server", protocol, due, long_s)
            step += len(taken)
            if found["valid"]:
                break
        runs[f"{protocol}-server-deltas"] = {
            **found,
            "deltas": len(taken),
            "delta_ms": 1e3 * statistics.median(taken or [0.0]),
        }


if __name__ == "__main__":
    main()
