"""`make -C loadtest gate`: what a request costs with the server's gate and kept requests on; loadtest/results/gate.md.

The benchmark's DeepFM answers requests of one row through the engine in this process. A pair is 20 blocks, ten with the
gate and ten without, in turn and in processor time. With it, each pair gathers a sample of 256 requests anew, which a
server does every five minutes at most; without it none is gathered. The aim is 1.02 in the median of the pairs. Writing
the kept requests to the scratch folder is no request's work: it is measured by itself, and happens once a minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.bench import write_model
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.versions.upkeep import KEEP_INTERVAL_S
from loadtest.bench.bench_guard import RESULTS
from loadtest.reports.report import machine, opening, origin, table

AIM = 1.02
REQUESTS, TURNS = 64, 20


def measure(folder: Path, rows: int, pairs: int, requests: int) -> dict[str, Any]:
    """Return the ratio of processor times, both of them in microseconds a request, and milliseconds of keeping.

    Args:
        folder: Folder to work in.
        rows: Rows of each of the model's tables.
        pairs: Number of pairs.
        requests: Requests of a pair with the gate, and as many without.
    """
    repository, scratch = folder / "repository", folder / "scratch"
    scratch.mkdir()
    write_model(repository, rows)
    random = np.random.default_rng(0)
    asked = [
        PredictRequest(
            "bench",
            {"ids": random.integers(0, rows, (1, 26)), "floats": random.standard_normal((1, 13)).astype(np.float32)},
        )
        for _ in range(REQUESTS)
    ]
    config = ProcessorConfig(str(repository), sessions=1, compute="inline", policies={}, scratch=str(scratch))
    with Processor.initialize(config) as processor:
        model = processor.host.catalogue["bench"]
        version = model.pick()
        sample = processor.predictor.replica("bench").sample

        def block(count: int) -> int:
            """Return the processor time of so many requests, in nanoseconds."""
            began_ns = time.process_time_ns()
            for number in range(count):
                processor.process(asked[number % REQUESTS])
            return time.process_time_ns() - began_ns

        spent: list[tuple[int, int]] = []
        kept_ms: list[float] = []
        for _ in range(1 + pairs):
            # Who reads the sample takes what is gathered, so that gathering begins anew.
            sample.kept()
            gathers, with_ns, without_ns = True, 0, 0
            for turn in range(TURNS):
                if turn % 4 in (0, 3):
                    sample.wanted = gathers
                    with_ns += block(requests // TURNS * 2)
                    gathers = sample.wanted
                else:
                    sample.wanted = False
                    without_ns += block(requests // TURNS * 2)
            spent.append((with_ns, without_ns))
            began_s = time.process_time()
            model.judges.keep(version)
            kept_ms.append((time.process_time() - began_s) * 1e3)
    # The first pair warms up.
    low, median, high = statistics.quantiles((a / b for a, b in spent[1:]), n=4)
    with_us, without_us = (statistics.median(side) / requests / 1e3 for side in zip(*spent[1:]))
    return {
        "ratio": [low, median, high],
        "with_us": with_us,
        "without_us": without_us,
        "keep_ms": statistics.median(kept_ms[1:]),
    }


def page(document: Any) -> str:
    """Write gate.md."""
    low, median, high = document["ratio"]
    heads = ["", "with the gate", "without", "ratio (quartiles)", "aim"]
    shown = f"**{median:.3f}** ({low:.3f} to {high:.3f})"
    row = ["a request, us", f"{document['with_us']:.1f}", f"{document['without_us']:.1f}", shown, f"at most {AIM}"]
    keeping = f"Kept requests are written in {document['keep_ms']:.1f} ms, once in {KEEP_INTERVAL_S:g} s."
    pairs = f"{document['pairs']} pairs of {document['requests']:,} requests."
    return "\n".join(
        [*opening("The server's gate", __doc__ or "", document), pairs, "", table(heads, [row]), "", keeping, ""]
    )


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(prog="make -C loadtest gate", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=10_000)
    add("--pairs", type=int, default=15)
    add("--requests", type=int, default=2000)
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    about = {"machine": machine(), "origin": origin("-C loadtest gate", "ARGS", sys.argv[1:])}
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), options.rows, options.pairs, options.requests)
    document = {**about, "pairs": options.pairs, "requests": options.requests, **measured}
    (options.out / "gate.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.out / "gate.md").write_text(page(document))
    print(page(document))


if __name__ == "__main__":
    main()
