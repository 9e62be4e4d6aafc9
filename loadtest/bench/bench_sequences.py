"""`make -C loadtest bench-sequences`: candidates over a history, beside PyTorch and ONNX Runtime; results/sequences.md.

One request of one user with 256 candidates and a full history, 64 floats a row, 2 layers of 64, one thread. Freshet's
engine runs in this process, from the request's arrays to scores, lookups of all rows included. Beside it, in turn:

- **PyTorch**: a module on a CPU that computes the user once, with the same weights and with looked-up rows given, in
  inference mode and in a process of its own.
- **Expanded**: the same graph in ONNX Runtime with the history copied to each candidate, its inputs given.

Times are of a processor, medians of the rounds. A ratio is the peer's time over Freshet's, by round: its median, and in
brackets its lower quartile. Scores of all sides are compared before. GEMM: the request's floating-point operations over
Freshet's time, as a share of what ONNX Runtime does in one product of 1,024 x 1,024 matrices here. Networks and lengths
that the last run left out keep the figures of earlier runs.

DIN is written as in its paper, with the candidate copied beside every event, and compiled twice: with the compiler's
rules for pairs (compiler/passes/pairs.py) and without them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from freshet_serving.processor.columns import Column, Ragged
from freshet_serving.processor.engine import PredictReply, PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package import Feature, Input, Manifest, Output, SequenceEntry, TableEntry
from freshet_serving.processor.package.sequences import SequenceColumn
from loadtest.reports.report import machine, opening, origin, table

RESULTS = Path(__file__).parents[1] / "results"
PEER = Path(__file__).parent / "sequence_peer.py"
NETWORKS, LENGTHS, EXPANDED = ("stca", "sasrec", "hstu"), (50, 256, 1024), 256
DIN, RULES = "loadtest.bench.plain_din:build", ("pairs", "pair products")
ATTENTIONS = {"64": 2.5, "80,40": 1.8}
"""Units of DIN's attention, and the ratio that is aimed at."""
CANDIDATES, DIM, LAYERS, USERS, ITEMS = 256, 64, 2, 100, 10_000
AIM_TORCH, AIM_EXPANDED = 0.95, 20
TURN_S, PRODUCT = 0.2, 1024
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class SequenceFigures:
    """One network at one length: microseconds of a processor a request, and ratios to the peers, lower quartile first.

    Attributes:
        gemm: The share of the rate of one product of matrices.
        torch: Ratios to PyTorch; empty where it was not measured.
        expanded: Ratios to the expanded graph; empty where it was not measured.
    """

    network: str
    length: int
    engine_us: float
    gemm: float
    torch_us: float
    torch: list[float]
    expanded_us: float
    expanded: list[float]


@dataclass(frozen=True, slots=True)
class DinFigures:
    """DIN of one attention at one length: microseconds of a processor a request with and without the compiler's rules.

    Attributes:
        ratio: Time without over time with, lower quartile first.
    """

    attention: str
    length: int
    ruled_us: float
    plain_us: float
    ratio: list[float]


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """A published network, and one request to it: as columns, and with its rows looked up."""

    repository: Path
    columns: Mapping[str, Column]
    rows: Arrays
    weights: Arrays
    graph: Any
    flops: float


def manifest(network: str, length: int) -> Manifest:
    """A user, an item, and a history of items."""
    timed = network == "hstu"
    wide = (DIM + 1) * length
    history = SequenceEntry(
        "history",
        [SequenceColumn("history.item", "ids", "history.item", "item", 0, wide)],
        length,
        wide + length * timed,
        ["history.item"] + ["history.time"] * timed,
        time="history.time" if timed else "",
    )
    features = [
        Feature("user", "id", "user", side="user", table="user", offset=0, width=16),
        Feature("item", "id", "item", side="item", table="item", offset=16, width=DIM),
    ]
    inputs = [Input("user", "int64"), Input("item", "int64")]
    inputs += [Input(name, "int64", ragged=True) for name in history.inputs]
    tables = [TableEntry("user", 16, 0), TableEntry("item", DIM, 0)]
    arch = DIN if network == "din" else f"freshet_serving.models.zoo.{network}:build"
    return Manifest(
        network, 1, arch, 0.0, inputs, features, tables, [Output("score")], 16 + DIM, {}, {}, sequences=[history]
    )


def published(
    folder: Path,
    network: str,
    length: int,
    attention: Sequence[int] = (),
    buckets: Sequence[int] = (1, CANDIDATES),
) -> SequenceRequest:
    """Publish a network of random weights. Needs the train extra.

    Args:
        folder: The repository.
        network: One of NETWORKS, or "din".
        length: Events of the history.
        attention: Units of DIN's attention.
        buckets: Rows that it is compiled for.
    """
    from freshet_serving.compiler.building.parts import parts
    from freshet_serving.compiler.passes.flops import flops
    from freshet_serving.compiler.passes.graph import Graph
    from freshet_serving.models.config.model_section import NetworkConfig
    from freshet_serving.models.config.train_section import TrainSettings
    from freshet_serving.models.training.publication import publish_version
    from freshet_serving.models.training.trainer import Trainer

    settings = TrainSettings(
        optimizer="adagrad", learning_rate=0.1, dense_learning_rate=0.01, initial_accumulator=0.1, batch_rows=8, seed=1
    )
    options: dict[str, Any] = {"hidden": (64,)}
    options |= {"attention": tuple(attention)} if attention else {"units": DIM, "layers": LAYERS}
    trainer, random = (
        Trainer(manifest(network, length), settings, NetworkConfig(options)),
        np.random.default_rng(length),
    )
    tables = {
        "user": (np.arange(USERS), random.normal(size=(USERS, 16)).astype(np.float32)),
        "item": (np.arange(ITEMS), random.normal(size=(ITEMS, DIM)).astype(np.float32) * 0.3),
    }
    graph = trainer.dense.published()
    publish_version(folder, replace(trainer.manifest, version=1), tables, graph, buckets=tuple(buckets))
    users, items = tables["user"][1], tables["item"][1]
    item, met = random.integers(0, ITEMS, CANDIDATES), random.integers(0, ITEMS, length)
    times = np.sort(random.integers(0, 10**6, length))
    columns: dict[str, Column] = {"user": np.array([3]), "item": item, "history.item": Ragged.of([met.tolist()])}
    if network == "hstu":
        columns["history.time"] = Ragged.of([times.tolist()])
    x = np.concatenate([np.repeat(users[3:4], CANDIDATES, 0), items[item]], 1)
    rows = {"x": x, "target": items[item], "events": items[met], "seconds": (times[-1] - times).astype(np.float32)}
    found = parts(graph, trainer.manifest.features, (1, CANDIDATES), trainer.manifest.sequences)
    # Without its rules DIN has no part of the user's that saves enough.
    whole = flops(Graph.of_dense(graph)) * CANDIDATES if found.user_split is None else 0
    _, candidate, user = found.user_split.flops if found.user_split is not None else (0, 0, whole)
    return SequenceRequest(folder, columns, rows, trainer.dense.weights(), graph, user + CANDIDATES * candidate)


def expanded_run(request: SequenceRequest, length: int) -> Callable[[], np.ndarray]:
    """Return a run of the whole graph in ONNX Runtime, with the history in every row."""
    import onnxruntime

    from freshet_serving.compiler.backends.onnxruntime import to_onnx, with_values

    model, _ = to_onnx(request.graph)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        with_values(model, request.graph.weights), options, providers=["CPUExecutionProvider"]
    )
    rows = request.rows
    history = [rows["events"].reshape(1, -1), np.ones((1, length), np.float32)]
    if "history.time" in request.columns:
        history.append(rows["seconds"][None])
    given = {"x": rows["x"], "history": np.repeat(np.concatenate(history, 1), CANDIDATES, 0)}
    return lambda: session.run(["score"], given)[0]


@contextmanager
def torch_side(python: str, network: str, request: SequenceRequest, folder: Path) -> Iterator[Callable[[int], Any]]:
    """Start the PyTorch side; yields a function that makes so many runs and returns seconds and scores."""
    path = folder / "torch.npz"
    named = {f"input/{name}": array for name, array in request.rows.items()}
    arrays: dict[str, Any] = {"layers": LAYERS, "units": DIM, **named, **request.weights}
    np.savez(path, **arrays)
    command = [python, str(PEER), network, str(path), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, answers = process.stdin, process.stdout

        def run(times: int) -> Any:
            given.write(f"{times}\n")
            given.flush()
            return json.loads(answers.readline())

        try:
            yield run
        finally:
            given.close()


def spent_s(run: Callable[[], object], times: int) -> float:
    """Return seconds of the processor a run."""
    started_s = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - started_s) / times


def gemm_rate() -> float:
    """Return FLOPs a second of one product of matrices in ONNX Runtime, in one thread: the best of ten."""
    import onnx
    import onnxruntime

    node = onnx.helper.make_node("MatMul", ["a", "b"], ["c"])
    a, b, c = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [PRODUCT] * 2) for name in "abc")
    graph = onnx.helper.make_graph([node], "product", [a, b], [c])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    matrices = np.random.default_rng(0).random((2, PRODUCT, PRODUCT), np.float32)
    given = dict(zip("ab", matrices))

    def run() -> None:
        session.run(None, given)

    return float(2 * PRODUCT**3 / min(spent_s(run, 1) for _ in range(10)))


def ratios(peer: list[float], engine: list[float]) -> list[float]:
    """Return the lower quartile and the median of the peer's times over the engine's, by round."""
    found = [theirs / ours for theirs, ours in zip(peer, engine)]
    return [statistics.quantiles(found, n=4)[0], statistics.median(found)]


def measure(network: str, length: int, python: str, rounds: int, rate: float) -> SequenceFigures:
    with tempfile.TemporaryDirectory(prefix="freshet-sequences-") as place:
        folder = Path(place)
        (folder / "models").mkdir()
        request = published(folder / "models", network, length)
        config = ProcessorConfig(str(request.repository), sessions=1, compute="inline")
        with Processor.initialize(config) as processor:
            asked = PredictRequest(network, request.columns)
            engine = lambda: processor.process(asked)  # noqa: E731
            scores = processor.process(asked).outputs["score"][:, 0]
            times = max(1, round(TURN_S / spent_s(engine, 3)))
            ours: list[float] = []
            theirs: list[float] = []
            copied: list[float] = []
            expanded = expanded_run(request, length) if length == EXPANDED else None
            if expanded is not None:
                np.testing.assert_allclose(expanded()[:, 0], scores, atol=1e-4)

            def turns(torch: Callable[[int], Any] | None) -> None:
                if torch is not None:
                    np.testing.assert_allclose(torch(1)["scores"], scores, atol=1e-4)
                    torch(times)
                for _ in range(rounds):
                    ours.append(spent_s(engine, times))
                    if torch is not None:
                        theirs.append(torch(times)["cpu_s"] / times)
                    if expanded is not None:
                        copied.append(spent_s(expanded, 1))

            if python:
                with torch_side(python, network, request, folder) as torch:
                    turns(torch)
            else:
                turns(None)

    def median_us(values: list[float]) -> float:
        return statistics.median(values) * 1e6 if values else 0.0

    return SequenceFigures(
        network,
        length,
        median_us(ours),
        request.flops / statistics.median(ours) / rate,
        median_us(theirs),
        ratios(theirs, ours) if theirs else [],
        median_us(copied),
        ratios(copied, ours) if copied else [],
    )


@contextmanager
def without_rules() -> Iterator[None]:
    """Compile without the rules for pairs."""
    from freshet_serving.compiler.passes.optimise import PASSES

    kept = dict(PASSES)
    for name in RULES:
        del PASSES[name]
    try:
        yield
    finally:
        PASSES.clear()
        PASSES.update(kept)


def measure_din(attention: str, length: int, rounds: int) -> DinFigures:
    units = [int(n) for n in attention.split(",")]
    with tempfile.TemporaryDirectory(prefix="freshet-sequences-") as place, ExitStack() as open_:
        runs: list[Callable[[], PredictReply]] = []
        for name, rules in (("ruled", nullcontext()), ("plain", without_rules())):
            (folder := Path(place) / name).mkdir()
            with rules:
                request = published(folder, "din", length, units)
            config = ProcessorConfig(str(folder), sessions=1, compute="inline")
            processor = open_.enter_context(Processor.initialize(config))
            runs.append(partial(processor.process, PredictRequest("din", request.columns)))
        ruled, plain = runs
        np.testing.assert_allclose(ruled().outputs["score"], plain().outputs["score"], atol=1e-4)
        times = max(1, round(TURN_S / spent_s(ruled, 3)))
        ours, theirs = zip(*((spent_s(ruled, times), spent_s(plain, times)) for _ in range(rounds)))
    ruled_us, plain_us = (statistics.median(each) * 1e6 for each in (ours, theirs))
    return DinFigures(attention, length, ruled_us, plain_us, ratios(list(theirs), list(ours)))


def page(results: Mapping[str, Any]) -> str:
    """sequences.md."""
    lines, rows = opening("Histories", __doc__ or "", results), []
    for f in (SequenceFigures(**figures) for figures in results["figures"]):
        peers = [
            [f"{us:,.0f}", f"**{ratio[1]:.2f}** ({ratio[0]:.2f})"] if ratio else ["", ""]
            for us, ratio in ((f.torch_us, f.torch), (f.expanded_us, f.expanded))
        ]
        rows.append([f.network, f"{f.length:,}", f"{f.engine_us:,.0f}", f"{f.gemm:.0%}", *peers[0], *peers[1]])
    heads = ["network", "events", "Freshet, us", "GEMM", "PyTorch, us", "ratio", "expanded, us", "ratio"]
    lines += [f"Aims: {AIM_TORCH} of PyTorch in the lower quartile at each length, {AIM_EXPANDED} of expanded.", ""]
    if results["torch"]:
        lines += [results["torch"], ""]
    lines += [table(heads, rows), ""]
    if results.get("din"):
        measured = [DinFigures(**figures) for figures in results["din"]]
        aims = ", ".join(f"{aim} (attention {units}, 256 events)" for units, aim in ATTENTIONS.items())
        heads = ["DIN's attention", "events", "with the rules, us", "without, us", "ratio"]
        rows = []
        for din in measured:
            shown = f"**{din.ratio[1]:.2f}** ({din.ratio[0]:.2f})"
            rows.append([din.attention, f"{din.length:,}", f"{din.ruled_us:,.0f}", f"{din.plain_us:,.0f}", shown])
        lines += [f"Aims for DIN: {aims}.", "", table(heads, rows), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest bench-sequences", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=15)
    add("--lengths", type=int, nargs="+", default=list(LENGTHS))
    add("--networks", nargs="+", default=[*NETWORKS, "din"], choices=[*NETWORKS, "din"])
    add("--torch", default=os.environ.get("FRESHET_TORCH_PYTHON", ""), help="a Python that has torch and numpy")
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    made = origin("-C loadtest bench-sequences", "ARGS", sys.argv[1:])
    missing = "PyTorch was not measured: FRESHET_TORCH_PYTHON is to name a Python that has torch and numpy."
    kept = options.out / "sequences.json"
    # Networks and lengths that are not measured now keep their figures.
    results: dict[str, Any] = json.loads(kept.read_bytes()) if kept.exists() else {"figures": []}
    results |= {"machine": machine(), "origin": made}
    if options.networks != ["din"]:
        results["torch"] = "" if options.torch else missing
    rate = gemm_rate()
    console.print(f"one product of matrices: {rate / 1e9:.0f} GFLOP a second")

    def keep() -> None:
        kept.write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "sequences.md").write_text(page(results))

    for attention in ATTENTIONS if "din" in options.networks else ():
        din = measure_din(attention, EXPANDED, options.rounds)
        console.print(f"din, attention {attention}: {din.ruled_us:,.0f} us, {din.ratio}")
        others = [f for f in results.get("din", []) if f["attention"] != attention]
        results["din"] = [*others, asdict(din)]
        keep()
    for network in [name for name in options.networks if name != "din"]:
        for length in options.lengths:
            figures = measure(network, length, options.torch, options.rounds, rate)
            console.print(
                f"{network}, {length} events: {figures.engine_us:,.0f} us, {figures.torch} {figures.expanded}"
            )
            found = {(f["network"], f["length"]): f for f in [*results["figures"], asdict(figures)]}
            results["figures"] = [found[key] for key in sorted(found, key=lambda key: (NETWORKS.index(key[0]), key[1]))]
            keep()


if __name__ == "__main__":
    main()
