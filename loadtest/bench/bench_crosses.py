"""`make -C loadtest crosses`: what crosses over histories cost a request and a delta; loadtest/results/crosses.md.

Each of two made-up logs (loadtest.bench.event_logs) trains three models: the default file, which crosses the newest
eight events of a history with each candidate; the same with a cross of all events, parted by distance; and the same
features and network without crosses over histories. Each publishes a full version and a delta of 2,000 rows of the log.

A request is one user with 500 candidates, drawn as the log draws them, and a history of 20 or of 256 events. The engine
answers it in this process, in one thread, from arrays to scores. Models take turns; times are of a processor. A ratio
is the time of a model over that of the model without crosses over histories, by round: its median and quartiles. What
a cross of all events costs depends on how many of the pairs have a row, which the share of known ids says.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.models.config.sequence_defaults import with_sequence_defaults
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.streams.open_rows import checkpoint_folder, open_rows
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.columns import Column, Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.features.bound_request import BatchView
from loadtest.bench.event_logs import SPARSE_SHOP, TASTES, EventLog, event_log
from loadtest.bench.pairs import Pair, PairRatio, compare
from loadtest.reports.report import machine, opening, origin, store, table

RESULTS = Path(__file__).parents[1] / "results"
WITHOUT, DEFAULT, WHOLE = "without crosses over histories", "default file", "cross of all events"
MODELS = (WITHOUT, DEFAULT, WHOLE)
LOGS = (TASTES, SPARSE_SHOP)
LENGTHS, CANDIDATES, DELTA_ROWS = (20, 256), 500, 2_000
AIMS, DELTA_AIM = {20: 1.3, 256: 2.5}, 3.0
TURN_S, REQUESTS = 0.2, 8
COLUMNS = ("user_id", "item_id", "category", "time", "label")


def sections(name: str, folder: Path, rows: int) -> dict[str, Any]:
    """Return the sections of a model's file.

    Args:
        name: One of MODELS.
        folder: Folder with the log; the model's repository is made in it.
        rows: Rows of the full version.
    """
    columns = {"item": "item_id", "category": "category"}
    raw: dict[str, Any] = {
        "model": {"name": "shop"},
        "data": {"path": str(folder / "log.parquet"), "label": "label", "time": "time"},
        "features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item"},
            "category": {"kind": "id", "side": "item"},
        },
        "sequences": {
            "history": {
                "columns": columns,
                "tables": columns,
                "from_events": "user_id",
                "where": "label",
                "max_length": LENGTHS[-1],
            }
        },
        "train": {"seed": 1},
        "publish": {
            "repository": str(folder / name.replace(" ", "-")),
            "full_rows": rows,
            "delta_rows": DELTA_ROWS,
        },
    }
    whole = with_sequence_defaults(raw, ["label"])
    features = whole["features"]
    of_histories = [key for key, section in features.items() if "history.item" in section.get("cross", ())]
    of_histories += [key for key, section in features.items() if "history.category" in section.get("cross", ())]
    if name == WITHOUT:
        del whole["sequences"]
        whole["features"] = {key: section for key, section in features.items() if key not in of_histories}
    if name == WHOLE:
        first = features[of_histories[0]]
        changed = {key: value for key, value in first.items() if key != "take"}
        whole["features"] = features | {of_histories[0]: changed}
    return whole


def published(name: str, folder: Path, rows: int) -> tuple[Path, int]:
    """Train a model; return its repository and the bytes of its delta.

    Args:
        name: One of MODELS.
        folder: Folder with the log.
        rows: Rows of the full version.
    """
    config = parse_config(sections(name, folder, rows))
    run = TrainingRun(config, open_rows(config, checkpoint_folder(config), False))
    try:
        run.full()
        for _ in run.stream(stop_row=rows + DELTA_ROWS):
            pass
    finally:
        run.stop()
    repository = Path(config.publish.repository)
    return repository, sum(file.stat().st_size for file in repository.glob("shop/1/deltas/*.safetensors"))


def requests(name: str, log: EventLog, length: int) -> list[PredictRequest]:
    """Return requests of one user each, as the log has users and items.

    Args:
        name: One of MODELS.
        log: The log.
        length: Events of the history.
    """
    random = np.random.default_rng(length)
    made = []
    for _ in range(REQUESTS):
        shown, met = (random.integers(0, len(log.columns["label"]), n) for n in (CANDIDATES, length))
        user = log.columns["user_id"][random.integers(0, len(log.columns["label"]))]
        columns: dict[str, Column] = {"user_id": np.array([user])}
        columns |= {key: log.columns[key][shown] for key in ("item_id", "category")}
        if name != WITHOUT:
            for key, column in (("history.item", "item_id"), ("history.category", "category")):
                columns[key] = Ragged.of([log.columns[column][met].tolist()])
        made.append(PredictRequest("shop", columns))
    return made


def measure(log: EventLog, folder: Path, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return ratios of processor time by length and model, and the bytes of deltas.

    Args:
        log: The log.
        folder: Folder to work in.
        rounds: Rounds of turns.
        say: Called with a line about each figure.
    """
    pq.write_table(pa.table({key: log.columns[key] for key in COLUMNS}), folder / "log.parquet")
    rows = len(log.columns["label"]) - DELTA_ROWS
    made = {name: published(name, folder, rows) for name in MODELS}
    nbytes = {name: delta for name, (_, delta) in made.items()}
    say(f"bytes of a delta: {nbytes}")
    with ExitStack() as open_:
        processors = {
            name: open_.enter_context(
                Processor.initialize(ProcessorConfig(str(repository), sessions=1, compute="inline"))
            )
            for name, (repository, _) in made.items()
        }
        ratios = []
        for length in LENGTHS:
            asked = {name: requests(name, log, length) for name in MODELS}

            def turn(name: str, times: int, asked: dict[str, list[PredictRequest]] = asked) -> Callable[[], object]:
                processor, some = processors[name], asked[name]
                return lambda: [processor.process(some[n % REQUESTS]) for n in range(times)]

            began_s = time.process_time()
            turn(WITHOUT, 2 * REQUESTS)()
            times = max(1, round(TURN_S * 2 * REQUESTS / (time.process_time() - began_s)))
            for name in (DEFAULT, WHOLE):
                pair = Pair(f"{length} events, {name}", turn(name, times), turn(WITHOUT, times), times, "request")
                ratio = compare(pair, rounds, time.process_time_ns)
                say(f"{ratio.name}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
                ratios.append(figures(length, name, ratio) | {"known": known_share(processors[name], asked[name])})
    return {"delta_nbytes": nbytes, "ratios": ratios}


def known_share(processor: Processor, asked: list[PredictRequest]) -> float:
    """Return how many of the pairs of requests have a row, as a share.

    Args:
        processor: The processor of a model with crosses.
        asked: The requests.
    """
    plan = processor.predictor.replica("shop").plan
    version = processor.host.catalogue["shop"].pick()
    names = [name for name in version.tables if name.startswith("history")]
    tables = np.array([table.descriptor() for table in version.tables.values()], np.int64)
    pairs = [number for number, name in enumerate(version.tables) if name in names]
    counts = np.zeros((len(tables), 2), np.int64)
    for request in asked:
        spans, out = np.array([[0, CANDIDATES]]), np.empty((CANDIDATES, plan.width), np.float32)
        plan.fill(BatchView(tables, version.change.epoch, [plan.bind_inputs(request.inputs)], spans, counts), out)
    lookups, misses = counts[pairs].sum(0).tolist()
    return float(1 - misses / lookups)


def figures(length: int, name: str, ratio: PairRatio) -> dict[str, Any]:
    """Return what is kept of a ratio."""
    return {
        "events": length,
        "model": name,
        "ratio": [ratio.low, ratio.median, ratio.high],
        "with_us": ratio.a_ns / 1e3,
        "without_us": ratio.b_ns / 1e3,
    }


def page(document: Any) -> str:
    """Write crosses.md."""
    rows, deltas = [], []
    for log, measured in document["logs"].items():
        for each in measured["ratios"]:
            low, median, high = each["ratio"]
            shown = f"**{median:.2f}** ({low:.2f} to {high:.2f})"
            times = [f"{each[key]:,.0f}" for key in ("with_us", "without_us")]
            aim, known = f"at most {AIMS[each['events']]}", f"{each['known']:.0%}"
            rows.append([log, str(each["events"]), each["model"], known, *times, shown, aim])
        nbytes = measured["delta_nbytes"]
        for name in MODELS[1:]:
            ratio = nbytes[name] / nbytes[WITHOUT]
            deltas.append([log, name, f"{nbytes[name]:,}", f"{ratio:.2f}", f"at most {DELTA_AIM:g}"])
    heads = ["log", "events", "model", "known ids", "a request, us", "without, us", "ratio (quartiles)", "aim"]
    delta_heads = ["log", "model", f"bytes of a delta of {DELTA_ROWS:,} rows", "over the model without", "aim"]
    about = f"{document['rounds']} rounds; a log has {document['rows']:,} rows before the delta."
    lines = [*opening("Crosses over histories", __doc__ or "", document), about, "", table(heads, rows), ""]
    return "\n".join([*lines, table(delta_heads, deltas), ""])


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(prog="make -C loadtest crosses", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=100_000, help="rows of the full version")
    add("--rounds", type=int, default=15)
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    about = {"machine": machine(), "origin": origin("-C loadtest crosses", "ARGS", sys.argv[1:])}
    document: dict[str, Any] = about | {"rows": options.rows, "rounds": options.rounds, "logs": {}}
    for kind in LOGS:
        log = event_log(kind, 1, options.rows + DELTA_ROWS)
        with tempfile.TemporaryDirectory(prefix="freshet-crosses-") as folder:
            document["logs"][kind.name] = measure(log, Path(folder), options.rounds, print)
    store(options.out, "crosses", document, page(document))
    print(page(document))


if __name__ == "__main__":
    main()
