"""Write loadtest/results/figures.md, all figures of the reports: `python -m loadtest.reports.figures_page`.

A line of the page is a figure of a report under its name there, so that no line can say what no report does; a report
that does not exist yet is listed as missing. Only what tests and other programs print is written down here by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.reports.figure_sources import (
    Run,
    bench_runs,
    judged_runs,
    load_runs,
    peer_runs,
    table_runs,
    training_runs,
)
from loadtest.reports.learning_figures import learning_runs
from loadtest.reports.report import WAYS, table
from loadtest.reports.store_figures import store_runs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "loadtest" / "results" / "figures.md"
INTRODUCTION = """\
# All figures

Every figure that is claimed of Freshet, missed aims included, with the command that measures it again. A ratio is the
median over rounds in which both sides ran in turn on one machine, clients on the same cores; "from, to" are its
quartiles. Absolute figures are those of that machine. [benchmarks.md](../../docs/how-to/benchmarks.md) and
[loadtest.md](../../docs/how-to/loadtest.md) describe how they are measured; the reports lie beside this page.
[docs/reference/figures.md](../../docs/reference/figures.md) shows the ten that matter most.

Generated from the reports by `python -m loadtest.reports.figures_page`.
"""
CANDIDATES = {1: "1 candidate", 64: "64 candidates", 512: "512 candidates"}


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page. lines: what a line says -> the figure's name, or how it begins. source: the runs of the
    report that has them. command: what makes it where there is none yet."""

    title: str
    source: Callable[[], Mapping[str, Run]]
    key: str
    command: str
    lines: dict[str, str]


def _peer(title: str, name: str, compiled: bool = False) -> Section:
    lines = {f"throughput, {said}": f"throughput, {n}" for n, said in CANDIDATES.items()}
    lines |= {f"its median latency at light load over Freshet's, {CANDIDATES[n]}": f"light, {n}" for n in (1, 64)}
    command = f"make -C loadtest peers PEERS={name}"
    if compiled:
        lines |= {f"compiled: {said}": f"compiled, {what}" for said, what in lines.items()}
        command += " ARGS=--compiled"
    return Section(title, peer_runs, name, command, lines)


def _bench(title: str, name: str, lines: dict[str, str]) -> Section:
    return Section(title, bench_runs, name, f'make bench BENCH_ARGS="--only {name}"', lines)


SECTIONS: tuple[Section, ...] = (
    _bench(
        "64 candidates a request, saturated, over the bare loop: the same kernels and executables with no server",
        "saturated",
        {
            "as it starts without options": "default / bare loop alone",
            "the same, against the loop on the cores that the client left": "default / bare loop on the cores",
            "one process with threads": "1 process, threads / bare loop alone",
        },
    ),
    _bench(
        "64 candidates a request, saturated, by precision, over the bare loop in float32",
        "precision",
        {
            "as `freshet compile` chooses": "auto / bare float32 loop",
            "int8": "int8 / bare float32 loop",
            "bfloat16": "bfloat16 / bare float32 loop",
            "float32": "float32 / bare float32 loop",
        },
    ),
    _bench(
        "1 candidate a request, over a raw ASGI echo of the same bytes in as many processes; the tail at half load",
        "single",
        {
            "as it starts without options: requests a second": "default / echo",
            "one process, inline: requests a second": "1 process, inline / echo",
            "one process with threads: requests a second": "1 process, threads / echo",
            "as it starts without options: p99 / median": "default at half load: p99 / median",
            "one process, inline: p99 / median": "1 process, inline at half load: p99 / median",
            "one process with threads: p99 / median": "1 process, threads at half load: p99 / median",
        },
    ),
    _bench(
        "The layout without options, over the best of all layouts",
        "layouts",
        {
            "1 candidate, saturated": "1 candidates, saturated: default",
            "64 candidates, saturated": "64 candidates, saturated: default",
            "512 candidates, saturated": "512 candidates, saturated: default",
            "1 candidate, light load": "1 candidates, light load: default",
            "64 candidates, light load": "64 candidates, light load: default",
            "512 candidates, light load": "512 candidates, light load: default",
            "start-up, over one process": "start-up: default",
            "memory, over one process": "memory (proportional set size): default",
            "p99 beside a saturated model, over one process": "p99 beside a saturated model: default",
        },
    ),
    _bench(
        "Twice and three times the saturation load, deadlines of 100 ms",
        "overload",
        {
            "goodput at twice over its peak": "freshet serve: goodput at 2x / peak goodput",
            "goodput at three times over its peak": "freshet serve: goodput at 3x / peak goodput",
            "one process, goodput at twice over its peak": "freshet serve --workers 1: goodput at 2x / peak goodput",
        },
    ),
    _bench(
        "Two sessions over one",
        "group",
        {
            "requests a second, in the engine": "engine: requests/s with 2 sessions",
            "requests a second, in a server": "server: requests/s with 2 sessions",
            "memory of a further session over the model's": "memory of a further session",
        },
    ),
    _bench(
        "Deltas at 70 % load, 64 candidates a request",
        "deltas",
        {
            "p99 with a delta of 100,000 rows every second over without": "p99 with 100000 rows every second / without",
            "failed requests": "no request failed",
            "1,000 rows, from a POST's last byte until served": "1000 rows: last byte of the POST",
            "the same, of 20 ms": "1000 rows served, of",
            "the same, with the guard over without": "1000 rows served, the guard on / off",
            "1,000,000 rows, from a POST's last byte until served": "1000000 rows: last byte of the POST",
            "the same, of 1 s": "1000000 rows served, of",
        },
    ),
    _bench(
        "New full versions at half load, 64 candidates a request",
        "switchover",
        {
            "p99 with two new versions over without": "p99 with 2 versions",
            "failed requests": "no request failed",
            "until a version answers": "a version appears until it answers",
        },
    ),
    _bench(
        "The p99 of a model with a saturated neighbour over alone",
        "neighbour",
        {
            "as it starts without options": "default: p99",
            "sharing cores": "shared cores: p99",
            "with a core of its own": "core 0 is A's own: p99",
        },
    ),
    _bench(
        "Dialects over binary KServe over HTTP, 64 candidates, requests a second",
        "protocols",
        {
            "KServe, JSON": "KServe, JSON, HTTP /",
            "TensorFlow Serving, JSON columns": "TensorFlow Serving, JSON columns",
            "TensorFlow Serving, JSON rows": "TensorFlow Serving, JSON rows",
            "DeepRec": "DeepRec, HTTP /",
            "KServe over gRPC": "KServe, raw, gRPC /",
            "TensorFlow Serving over gRPC": "TensorFlow Serving, tensor_content, gRPC /",
            "JSON rows read and written, over orjson alone on the same bytes": "orjson parses and prints",
        },
    ),
    _bench(
        "What being observed costs: processor time a request, with over without",
        "observe",
        {
            "metrics, 1 candidate, 32 at once": "metrics on / off, 1 candidate, 32",
            "metrics, 1 candidate, 1 at once": "metrics on / off, 1 candidate, 1 ",
            "metrics, 64 candidates, 32 at once": "metrics on / off, 64 candidates, 32",
            "traces of 1 %, 1 candidate, 32 at once": "traces of 1 % / none, 1 candidate, 32",
            "traces of 1 %, 1 candidate, 1 at once": "traces of 1 % / none, 1 candidate, 1 ",
            "traces of 1 %, 64 candidates, 32 at once": "traces of 1 % / none, 64 candidates, 32",
        },
    ),
    _bench(
        "Half of the features the user's, 256 candidates: the user-once division over without",
        "useronce",
        {
            "engine, rows of 32 floats": "engine, rows of 32, 256 candidates",
            "engine, rows of 16 floats": "engine, rows of 16, 256 candidates",
            "HTTP, rows of 32 floats": "HTTP, rows of 32, 256 candidates",
            "HTTP, rows of 16 floats": "HTTP, rows of 16, 256 candidates",
        },
    ),
    _bench(
        "Kernels and engine, ratios of time",
        "micro",
        {
            "row versions by stamped chains over an overlay index, known ids": "lookup: stamped chain / overlay",
            "the same, unseen ids": "lookup of unseen ids: stamped chain / overlay",
            "lookup after a delta over before": "lookup: after a delta / before",
            "strings hashed by the kernel over the library": "hash a column of strings",
        },
    ),
    _bench(
        "A long chain over a short one",
        "chain",
        {
            "start after 5,000 deltas that a snapshot holds, over a fresh version": "start after",
            "processor time of watching 50,000 deltas over 5, one more each second": "watching 5",
        },
    ),
    Section(
        "Ten minutes of load with 600 deltas, loads, unloads and killed workers",
        bench_runs,
        "soak",
        "make -C loadtest soak",
        {
            "memory at the end over once settled": "memory at the end / once settled",
            "p99 of the last minute over the first": "p99 of the last tenth / of the first",
            "failed requests other than those in flight on a killed worker": "every request answered 200",
            "requests": "load",
        },
    ),
    _peer("mosec, the same kernels and executables inside; then in float32 beside Freshet compiled", "mosec", True),
    _peer("PyTriton, the same", "pytriton"),
    _peer("LitServe, the same", "litserve"),
    _peer("BentoML, the same", "bentoml"),
    _peer("MLServer, the same", "mlserver"),
    _peer("Ray Serve, the same", "ray"),
    _peer("FastAPI and TensorFlow", "fastapi_tf"),
    Section(
        "Tables: 20 million rows of dim 16; a tenth of a Zipf-1.05 table in memory; smaller rows on MovieLens",
        table_runs,
        "tables",
        "make -C loadtest tables",
        {
            "20 million rows: resident memory over keys and rows": "resident memory over keys and rows",
            "20 million rows: lookup over `numpy.take`": "lookup over numpy.take",
            "20 million rows: ready from a warm page cache, s": "ready from a warm page cache, s",
            "a tenth in memory over all: throughput": "throughput, a tenth in memory / all",
            "a tenth in memory over all: p99 of a batch": "p99 of a batch, a tenth in memory / all",
            **{
                f"rows as {dtype}: {what}": f"rows as {dtype}: {what}"
                for dtype in ("float16", "bfloat16", "int8")
                for what in ("memory over float32's", "largest score difference", "AUC change")
            },
        },
    ),
    Section(
        "Backends of the dense graph",
        bench_runs,
        "backends",
        "make -C loadtest backends",
        {
            **{
                f"what `freshet compile` chose over the best single backend, {n} rows": (
                    f"chosen / best single backend, {n} rows"
                )
                for n in (1, 4, 16, 64, 256)
            },
            **{
                f"first request after {what} over the steady median, {n} rows": (
                    f"first request after {what} / steady median, {n} rows"
                )
                for what in ("a load", "a flip of dense weights")
                for n in (1, 7, 64, 300)
            },
            **{
                f"all buckets from disk, no TensorFlow: {name}": f"all buckets load in 1 s without TensorFlow: {name}"
                for name in ("onnxruntime", "xla", "openvino")
            },
        },
    ),
    Section(
        "A step of training: a peer's time over ours, 8 ids a row of dim 16, layers 256-128-64",
        training_runs,
        "train",
        "make -C loadtest train",
        {
            f"{said}, {batch:,} rows, {ids:,} ids a feature": f"{name}, {batch} {ids}"
            for batch, ids in ((4096, 20_000), (512, 20_000), (4096, 1_000_000))
            for name, said in (
                ("PyTorch", "PyTorch"),
                ("Keras", "Keras"),
                ("overlap", "ours over all cores at work all the time"),
            )
        },
    ),
    Section(
        "Quality on MovieLens-1M, three seeds: our AUC less a peer's",
        training_runs,
        "train-quality",
        "make -C loadtest quality",
        {
            "`deepfm`, Keras": "deepfm, Keras",
            "`dcn`, Keras": "dcn, Keras",
            "`dcn`, FuxiCTR": "dcn, FuxiCTR",
            "`dlrm`, Keras": "dlrm, Keras",
            **{
                f"`{arch}`, Keras, {said}": f"{arch}, Keras, label {label}"
                for arch in ("mmoe", "esmm")
                for label, said in enumerate(("rated 4 or more", "rated 5"))
            },
        },
    ),
    Section(
        "What a stream teaches at once: AUC served fresh / once a simulated day, MovieLens, the same learner",
        learning_runs,
        "follow",
        "make -C loadtest follow",
        {
            "by a folder of Parquet files": "folder",
            "by a Redis stream": "redis",
            "by Kafka (librdkafka's mock cluster, a smaller full version)": "kafka",
        },
    ),
    Section(
        "From published to served through an S3 server (moto) on the same two cores, deltas of 10,000 rows: p50 / p99",
        store_runs,
        "objects",
        "make -C loadtest objects",
        {
            "by two replicas": "two replicas",
            "by sixteen replicas, a mirror each": "16 replicas, a mirror each",
            "by sixteen replicas of one machine, with one mirror": "16 replicas, one mirror",
        },
    ),
    Section(
        "The S3 server gone for a minute under load: requests that failed, of all; fresh after its return",
        store_runs,
        "outage",
        "make -C loadtest outage",
        {
            "failed, its port refusing": "failed, refuses",
            "failed, never answered": "failed, never answers",
            "fresh after it had refused": "fresh, refuses",
            "fresh after it had never answered": "fresh, never answers",
        },
    ),
    Section(
        "The guard on deltas: six good streams, and poison on each of them",
        learning_runs,
        "guard",
        "make -C loadtest guard",
        {
            "good deltas held or rolled back": "good",
            "of those that were held: not released by itself within 3 deltas": "late",
            **{
                f"held, or rolled back by itself: {poison}": poison
                for poison in (
                    "scores times 1.1",
                    "a table permuted",
                    "a table zeroed",
                    "a batch of nine, rows times -3",
                    "permuted, events 10^12",
                    "drift of 5 % a delta",
                    "500 rows that nobody asks",
                    "2,000 new ids",
                    "the next change a hundred times",
                )
            },
            "processor time of a request, with over without": "request_cpu_us",
            "processor time of a delta of 1,000 rows, with over without": "delta_cpu_ms",
            "the delta itself, with over without": "delta_ms",
        },
    ),
    Section(
        "Labels that come late: AUC of joined rows less that of true labels that come at once",
        learning_runs,
        "join",
        "make -C loadtest join",
        {
            f"{said}, {shape}": f"{pace} {shape}"
            for pace, said in (("0.25", "slowly"), ("2", "the world eight times as fast"))
            for shape in (
                "exponential, 10 minutes",
                "heavy tail (Lomax 1.5, 5 minutes)",
                "half later than the window",
            )
        },
    ),
    Section(
        "Two processes that learn together over one, a core each: rows a second",
        learning_runs,
        "train-processes",
        "make -C loadtest processes",
        {
            "8 features of 20 ids, a small network": "histories",
            "26 single ids, a small network": "single ids",
            "8 features, layers of 256, 128 and 64": "deepfm",
        },
    ),
    Section(
        "Lookups and pooling of rows of 128: the time of FBGEMM's CPU kernel over ours",
        training_runs,
        "verdict-lookup",
        "make -C loadtest verdict-lookup",
        {
            f"{kind}, {said}": f"FBGEMM, {said}, {kind}"
            for kind in ("float32", "float16", "int8")
            for said in ("by its hash", "by row number")
        },
    ),
    Section(
        "Queries of DLRM-DCNv2's shape, judged by MLCommons' LoadGen (no MLPerf result)",
        judged_runs,
        "verdict-loadgen",
        "make -C loadtest verdict-loadgen",
        {
            f"{said}, {scenario}": f"{protocol}-{run}"
            for protocol, said in (("http", "binary KServe over HTTP"), ("grpc", "gRPC"))
            for run, scenario in (
                ("server", "Server; aim 0.9"),
                ("server-deltas", "Server with a delta of 10,000 rows a second; aim 0.93 of the line before"),
                ("offline", "Offline"),
            )
        },
    ),
    Section(
        "A minute of locust at saturation, 64 candidates a request, a delta of 10,000 rows a second",
        load_runs,
        "loadtest",
        "make loadtest",
        {
            "requests": "requests",
            "latency, p50 / p99": "latency",
            "freshness, step finished to first reply that carries it, p50 / p99: upload": WAYS["admin"],
            "the same: file in the folder": WAYS["folder"],
            "start of `freshet serve` to ready, 26 tables of 100,000 rows": "ready",
        },
    ),
    Section(
        "The same at 150 requests a second",
        load_runs,
        "loadtest-150-a-second",
        'make loadtest LOADTEST_ARGS="--rate 150"',
        {
            "requests": "requests",
            "latency, p50 / p99": "latency",
            "freshness, p50 / p99: upload": WAYS["admin"],
            "the same: file in the folder": WAYS["folder"],
        },
    ),
)
# What is said, the figure, the command that prints it.
PRINTED = (
    (
        "a canary at 5 %: its share of 100,000 requests without and with keys; keys of 24,000 requests that switched; "
        "NaN, shifted and failing canaries taken out",
        "4.999 %, 4.972 %; none; all, with the reason",
        "make -C loadtest canary",
    ),
    (
        "broken requests, files and messages through every parser, with seeds 1, 2 and 3",
        "10,200,042, none crashed or hung",
        'make -C loadtest fuzz ARGS="--cases 3400000 --seed 1"',
    ),
    (
        "scores of training and serving, largest difference over 8 generations of each model; pooled embeddings",
        "1.2e-7; equal to the bit",
        'make test TEST_ARGS="-n 0 -s tests/models/training/test_parity.py"',
    ),
    (
        "`kill -9` at random moments of a server, a publisher and its server, a trainer, with rollbacks",
        "nothing committed was lost; served equals the trainer's weights to the bit",
        "make kills",
    ),
    (
        "faults of every kind injected into live servers in an hour, every reply recomputed: injections, replies; "
        "wrong or mixed, acknowledged generations lost; in one process and in the default layout: what nothing excuses",
        "5,601, 426,459; 0, 0; 0",
        "make faults",
    ),
    (
        "SIGTERM under load over HTTP and gRPC, 50 rounds in one process and 50 with two workers: requests lost of "
        "those sent before the server said that it ends",
        "0 of 109,822",
        "make -C loadtest endings",
    ),
    (
        "a rollback asked of one of two servers: until both serve it; until both serve the delta after it",
        "0.01 to 0.08 s; 0.10 s at most",
        'make test-long TEST_ARGS="-n 0 -s tests/e2e/test_publishing_live.py"',
    ),
    (
        "DLRM, DCN-v2, two-tower from PyTorch 1.13 and 2.14, both exporters, over HTTP at 1, 7, 64, 300 rows: largest "
        "difference, absolute and relative",
        "2.3e-7, 5.7e-7",
        'make test TEST_ARGS="-n 0 -s tests/e2e/test_onnx_live.py"',
    ),
    (
        "2, 3 and 4 processes that learn what one learns, every optimizer, ids that wait and leave: largest difference "
        "of a score after 100 batches; of the AUC at the end",
        "8.9e-8; 2.4e-5",
        "make -C loadtest processes-grid",
    ),
    (
        "200 requests each of DeepFM, DLRM, two-tower and MMoE: scores made again of their explanations, by numpy, "
        "beside those that were served: largest difference",
        "1.2e-7",
        'make test-long TEST_ARGS="-n 0 -s tests/e2e/test_explain_live.py"',
    ),
    (
        "MovieLens-1M, AUC served / frozen, 200,019 events",
        "0.7621 / 0.7462",
        "make demo DATA=/path/to/ml-1m",
    ),
)


def page() -> str:
    """Return the page's text."""
    return "\n\n".join([INTRODUCTION.rstrip(), *_sections(), "## Printed by tests and programs", _printed()]) + "\n"


def _sections() -> Iterator[str]:
    for section in SECTIONS:
        run = section.source().get(section.key)
        yield f"## {section.title}"
        if run is None or not run.figures:
            yield f"Not in the reports yet: `{section.command}`."
            continue
        yield run.made
        rows = [(said, run.find(name)) for said, name in section.lines.items()]
        yield table(["what", "figure", "from, to", "aim"], [[s, f.text, f.interval, f.aim] for s, f in rows if f])


def _printed() -> str:
    return table(["what", "figure"], [[f"{said}: `{command}`", figure] for said, figure, command in PRINTED])


if __name__ == "__main__":
    PAGE.write_text(page())
