"""The user-once division: throughput with it over the same model without it, half of the features being the user's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.versions.overview import model_stats
from loadtest.bench.bench_useronce import DIMS, payload, repeated, requests
from loadtest.bench.compute import ROOT
from loadtest.bench.harness import CONNECTIONS, Bench, Result
from loadtest.bench.pairs import Pair
from loadtest.load import wrk
from loadtest.load.sides import Turn, medians, over

CANDIDATES = 256
GOAL = 1.2
REQUESTS = 4
TABLE_ROWS = 20_000


def run(bench: Bench) -> Result:
    """User-once in the engine alone, and over HTTP; rows of 32 floats, and of 16 as the benchmark's model has them."""
    result = Result("useronce", f"{CANDIDATES} candidates, half of the features the user's: once a request / a row")
    repository = bench.work / "useronce"
    if not repository.exists():
        bench.say("writing models with and without the split")
        bench.run_python(ROOT, "loadtest.bench.bench_useronce", repository, "--table-rows", TABLE_ROWS)
    layouts = {
        "engine": ProcessorConfig(str(repository), sessions=1, compute="inline"),
        "device stage": ProcessorConfig(str(repository), sessions=1, device_stages=1),
    }
    for layout, config in layouts.items():
        with Processor.initialize(config) as processor:
            _in_turn(bench, processor, layout, result)
            if layout == "engine":
                _counted(processor, result)
    _http(bench, repository, result)
    return result


def _goal(dim: int) -> tuple[str, float] | None:
    # Over rows of 16 floats, half of the first layer is a fifth of the dense graph: its runs gain 1.25 at the best.
    return (">=", GOAL) if dim == 32 else None


def _in_turn(bench: Bench, processor: Processor, layout: str, result: Result) -> None:
    for dim in DIMS:
        for candidates in (CANDIDATES, CANDIDATES // 4):
            inputs = requests(candidates, REQUESTS, TABLE_ROWS)
            whole, once = (
                partial(processor.batch_process, [PredictRequest(f"{kind}_{dim}", i) for i in inputs])
                for kind in ("whole", "once")
            )
            name = f"{layout}, rows of {dim}, {candidates} candidates: with the split / without"
            goal = _goal(dim) if candidates == CANDIDATES and layout == "engine" else None
            bench.pair(result, Pair(name, whole, once, len(inputs), "request"), goal)


def _counted(processor: Processor, result: Result) -> None:
    """Lookups and bytes of one request, by the way in which it is sent."""

    def lookups() -> int:
        return next(stats.lookups for stats in model_stats(processor.host) if stats.model == "once_32")

    (inputs,) = requests(CANDIDATES, 1, TABLE_ROWS)
    for how, sent in (("the user once", inputs), ("the user in every row", repeated(inputs))):
        before = lookups()
        processor.process(PredictRequest("once_32", sent))
        nbytes = len(payload("once_32", [sent]).bodies[0])
        told = f"{lookups() - before} lookups, {nbytes:,} bytes sent"
        result.fact(f"a request of {CANDIDATES} with {how}", told)


def _http(bench: Bench, repository: Path, result: Result) -> None:
    def turn(port: int, folder: Path) -> dict[str, float]:
        return {"requests/s": wrk.saturate(port, folder, bench.seconds, CONNECTIONS).per_s}

    with bench.server(bench.main, repository) as server:
        sides: dict[str, Turn] = {}
        for model in (f"{kind}_{dim}" for dim in DIMS for kind in ("whole", "once")):
            folder = bench.work / f"payload-{model}"
            payload(model, requests(CANDIDATES, 16, TABLE_ROWS)).save(folder)
            sides[model] = partial(turn, server.http_port, folder)
        turns = bench.turns(sides)
    for dim in DIMS:
        name = f"HTTP, rows of {dim}, {CANDIDATES} candidates: with the split / without"
        result.row(name, over(turns, f"once_{dim}", f"whole_{dim}", "requests/s"), _goal(dim))
        with_it, without = (medians(turns, f"{kind}_{dim}", "requests/s")[0] for kind in ("once", "whole"))
        result.fact(name, f"{with_it:.0f} / {without:.0f} requests/s")
