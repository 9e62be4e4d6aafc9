"""The user-once division: throughput with it over the same model without it, half of the features being the user's."""

from __future__ import annotations

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.versions.overview import model_stats
from loadtest.bench.bench_useronce import DIMS, payload, repeated, requests
from loadtest.bench.compute import ROOT
from loadtest.bench.harness import CONNECTIONS, Bench, Result, Row
from loadtest.bench.pairs import Pair
from loadtest.bench.pairs import compare as in_turn
from loadtest.load import wrk
from loadtest.load.launch import CommandFailed
from loadtest.load.sides import Ratio, Side, compare, ratio, values

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
        command = [
            sys.executable,
            "-m",
            "loadtest.bench.bench_useronce",
            str(repository),
            "--table-rows",
            str(TABLE_ROWS),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise CommandFailed(f"models could not be written: {done.stderr.strip()[-300:]}")
    _engine(bench, repository, result)
    _http(bench, repository, result)
    return result


def _goal(dim: int) -> tuple[str, float] | None:
    # Over rows of 16 floats, half of the first layer is a fifth of the dense graph: its runs gain 1.25 at the best.
    return (">=", GOAL) if dim == 32 else None


def _engine(bench: Bench, repository: Path, result: Result) -> None:
    layouts = {
        "engine": ProcessorConfig(str(repository), sessions=1, compute="inline"),
        "device stage": ProcessorConfig(str(repository), sessions=1, device_stages=1),
    }
    for layout, config in layouts.items():
        with Processor.initialize(config) as processor:
            _in_turn(bench, processor, layout, result)
            if layout == "engine":
                _counted(processor, result)


def _in_turn(bench: Bench, processor: Processor, layout: str, result: Result) -> None:
    for dim in DIMS:
        for candidates in (CANDIDATES, CANDIDATES // 4):
            inputs = requests(candidates, REQUESTS, TABLE_ROWS)
            whole, once = ([PredictRequest(f"{kind}_{dim}", i) for i in inputs] for kind in ("whole", "once"))
            pair = Pair(
                "",
                partial(processor.batch_process, whole),
                partial(processor.batch_process, once),
                len(inputs),
                "request",
            )
            found = in_turn(pair, bench.micro_rounds)
            name = f"{layout}, rows of {dim}, {candidates} candidates: with the split / without"
            goal = _goal(dim) if candidates == CANDIDATES and layout == "engine" else None
            result.rows.append(Row(name, Ratio(found.median, found.low, found.high, bench.micro_rounds), goal))
            result.facts.append((name, f"{found.b_ns / 1e3:.0f} / {found.a_ns / 1e3:.0f} us a request"))
            bench.say(f"{name}: {found.median:.2f}")


def _counted(processor: Processor, result: Result) -> None:
    """Lookups and bytes of one request, by the way in which it is sent."""
    (inputs,) = requests(CANDIDATES, 1, TABLE_ROWS)
    for how, sent in (("the user once", inputs), ("the user in every row", repeated(inputs))):
        before = _lookups(processor)
        processor.process(PredictRequest("once_32", sent))
        nbytes = len(payload("once_32", [sent]).bodies[0])
        result.facts.append(
            (f"a request of {CANDIDATES} with {how}", f"{_lookups(processor) - before} lookups, {nbytes:,} bytes sent")
        )


def _lookups(processor: Processor) -> int:
    return next(stats.lookups for stats in model_stats(processor.host) if stats.model == "once_32")


def _http(bench: Bench, repository: Path, result: Result) -> None:
    with bench.server(bench.main, repository) as server:
        sides = []
        for dim in DIMS:
            for kind in ("whole", "once"):
                model = f"{kind}_{dim}"
                folder = bench.work / f"payload-{model}"
                payload(model, requests(CANDIDATES, 16, TABLE_ROWS)).save(folder)
                sides.append(Side(model, partial(_turn, bench, server.http_port, folder)))
        turns = compare(sides, bench.rounds, bench.say)
    for dim in DIMS:
        with_it, without = (values(turns, f"{kind}_{dim}", "requests/s") for kind in ("once", "whole"))
        name = f"HTTP, rows of {dim}, {CANDIDATES} candidates: with the split / without"
        result.rows.append(Row(name, ratio(with_it, without), _goal(dim)))
        result.facts.append((name, f"{statistics.median(with_it):.0f} / {statistics.median(without):.0f} requests/s"))


def _turn(bench: Bench, port: int, folder: Path) -> dict[str, float]:
    return {"requests/s": wrk.saturate(port, folder, bench.seconds, CONNECTIONS).per_s}
