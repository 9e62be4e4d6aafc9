"""`make -C loadtest siege`, the part about what is read: files, an object store, Redis and gRPC peers, all hostile.

loadtest/results/siege-sources.md.

Clients of a served model ask at a steady rate, alone and while a source is hostile (tests.faults.hostile_sources). What
is seen: their p99, memory of the server and of the program that reads beside it, workers lost, and what became of the
hostile thing: each case says by itself whether that ended at its bound.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.extensions.remote_rows.push import push
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.tables.row_store import open_store
from loadtest.load.processes import tree
from tests.e2e.servers import LiveServer
from tests.e2e.test_join_live import Join
from tests.faults.hostile_sources import FILES, Files, Turncoat, repeated_string
from tests.faults.siege import CLIENTS, MAX_NBYTES, MAX_RATIO, PAUSE_S, RESULTS, Client, latencies_of, memory_nbytes
from tests.models.streams.recordings import BEGAN_S, outcomes, put, recorded_as, recording
from tests.processor.extensions.remote_rows.fakes import RedisServer
from tests.support.object_server import ObjectServer
from tests.support.object_stage import PublishingProcess, upload_package
from tests.support.packages import write_package

SECONDS, WARM_S, FILE_S = 5.0, 1.0, 0.1
MAX_S = 60.0
"""Within which the hostile thing has to end at its bound once it goes on no more."""
STORE_BOUND_S, REMOTE_TIMEOUT_S, REMOTE_BOUND_S, RPC_BOUND_S = 30.0, 0.25, 1.0, 10.0
REMOTE = "remote"


@dataclass
class Stage:
    """A server and what is beside it.

    begin: makes the source hostile. end: ends that; returns what became of it, and "" or what of that was beyond its
    bound. reader: process that reads beside the server; 0 for none.
    """

    server: LiveServer
    begin: object
    end: object
    reader: int = 0


@dataclass
class Watch:
    """Most memory of some trees of processes, looked at in a thread until it is stopped."""

    pids: list
    most: list = field(default_factory=list)

    def __enter__(self):
        self.before = [memory_nbytes(pid) for pid in self.pids]
        self.most, self._stopped = list(self.before), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self):
        while not self._stopped.wait(0.1):
            self.most = [max(most, memory_nbytes(pid)) for most, pid in zip(self.most, self.pids)]

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()

    def more(self):
        return [most - before for most, before in zip(self.most, self.before)]


class Repeat(threading.Thread):
    """Does something again and again until it is stopped, at most every so many seconds."""

    def __init__(self, act, every_s):
        super().__init__(daemon=True)
        self._what, self._every_s, self._stopped = act, every_s, threading.Event()
        self.start()

    def run(self):
        while not self._stopped.wait(self._every_s):
            self._what()

    def stop(self):
        self._stopped.set()
        self.join()


def within(seconds, done):
    """Seconds until done() is true, or None where it is not within so many."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + seconds:
        if done():
            return time.monotonic() - began_s
        time.sleep(0.05)
    return None


@contextlib.contextmanager
def joined(root, hostile):
    """`freshet join --follow` beside a server that records. hostile: the folder into which hostile files come."""
    write_package(root / "repository", users=range(60))
    for name in ("recordings", "outcomes"):
        (root / name).mkdir()
    recorded = ("--record", str(root / "recordings"), "--record-share", "1", "--record-max-bytes", str(1 << 28))
    join = Join(root, "--wait", "1", "--late", "5", "--lag", "0.2", "--every", "0.2")
    bomb = repeated_string()
    rows = [(f"b{n}", 0, 0.0, 0.5) for n in range(len(bomb))]
    if hostile == "recordings":
        table = recording(rows, **{"freshet.request": bomb})
        name = lambda n: f"{recorded_as(n + 1, time.time() - BEGAN_S, recorder='w9')}.parquet"  # noqa: E731
    else:
        table = outcomes([(row[0], 0, 0.0) for row in rows]).set_column(0, "request", bomb)
        name = "{:06}.parquet".format
    files = Files(root / hostile, root / "aside", name, table)
    sent = [0]

    def good():
        now_s, number = time.time() - BEGAN_S, sent[0] + 1
        sent[0] = number
        rows = [(f"r{number}-{row}", 0, now_s, 0.25) for row in range(20)]
        put(root / "recordings", recorded_as(number, now_s, recorder="w0"), recording(rows))
        put(root / "outcomes", f"good-{number:06}", outcomes([(rows[0][0], 0, now_s + 0.1)]))

    good()
    join.start()
    with LiveServer(root / "repository", *recorded, log=root / "serve.log") as server:
        feed = Repeat(good, 0.5)
        assert within(MAX_S, lambda: join.metrics().get("freshet_join_rows_total", 0) > 0) is not None
        drop = []

        def end():
            drop[0].stop()
            bombs = sum(n % (len(FILES) + 1) == len(FILES) for n in range(files.count))
            counted = lambda: (  # noqa: E731
                join.metrics().get("freshet_join_unreadable_files_total", 0),
                join.metrics().get("freshet_join_rejected_rows_total", 0) // len(bomb),
            )
            waited_s = within(MAX_S, lambda: sum(counted()) >= files.count)
            aside, rejected = counted()
            went = (
                f"of {files.count} files {aside:.0f} set aside, {rejected:.0f} of {bombs} that decode to 2 GB rejected"
            )
            rows = join.metrics()["freshet_join_rows_total"]
            goes_on_s = within(MAX_S, lambda: join.metrics()["freshet_join_rows_total"] > rows)
            if goes_on_s is None:
                return f"{went}, no good row after them", "join stands still"
            late = "" if waited_s is not None else "not all set aside"
            return f"{went}, good rows {(waited_s or MAX_S) + goes_on_s:.1f} s after the last", late

        def begin():
            drop.append(Repeat(files.put, FILE_S))

        try:
            yield Stage(server, begin, end, join.process.pid)
        finally:
            feed.stop()
            join.kill()


@contextlib.contextmanager
def stored(root, mode):
    """A repository in an object store that becomes `mode`, and a delta published meanwhile, past it."""
    with ObjectServer() as objects, Turncoat("store", objects.port) as front:
        os.environ.update(objects.env)
        upload_package(objects, objects.address("siege"), root / "package")
        publisher = PublishingProcess(
            objects.address("siege"), {**os.environ, "FRESHET_MIRROR": str(root / "writer")}, root / "publish.log"
        )
        env = {**os.environ, **objects.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{front.read()}"}
        options = ("--mirror", str(root / "mirror"), "--delta-guard", "off")
        try:
            with LiveServer(objects.address("siege"), *options, log=root / "serve.log", env=env) as server:
                publisher.publish(100, 1)
                served = lambda step: server.generation("small") == f"1.{step}"  # noqa: E731
                assert within(MAX_S, lambda: served(1)) is not None
                seen = []

                def begin():
                    front.tell(mode)
                    # After a listing has met it.
                    time.sleep(1.0)
                    publisher.publish(100, 2)
                    seen.append(time.monotonic())

                def end():
                    meanwhile = served(2)
                    front.tell("good")
                    waited_s = within(MAX_S, lambda: served(2))
                    if waited_s is None:
                        return f"a delta is not served within {MAX_S:g} s after", "late"
                    when = "meanwhile" if meanwhile else f"{waited_s:.1f} s after"
                    return f"a delta is served {when}", "late" if waited_s > STORE_BOUND_S else ""

                yield Stage(server, begin, end)
        finally:
            publisher.close()


@contextlib.contextmanager
def remote(root, mode):
    """A model of local tables, and beside it one whose tables are in a Redis that becomes `mode`."""
    write_package(root / "repository", users=range(60))
    folder = write_package(root / "repository", users=range(60), model=REMOTE)
    redis = RedisServer().start()
    try:
        with Turncoat("redis", redis.port) as front:
            port = front.read()
            push(VersionReader(folder), [], open_store(redis.url, 10.0, SystemClock()))
            options = ("--remote-url", f"redis://127.0.0.1:{port}/0", "--remote-tables", f"{REMOTE}/*")
            options += ("--remote-cache-rows", "0", "--remote-timeout-s", str(REMOTE_TIMEOUT_S))
            with LiveServer(root / "repository", *options, log=root / "serve.log") as server:
                slowest_s, failed, asked = [0.0], [], [0]

                def ask():
                    began_s = time.monotonic()
                    inputs = {"user": [1, 2, 3, 4], "tags": [["a"], [], ["b"], ["c"]], "floats": [[0.1] * 4]}
                    try:
                        server.predict(REMOTE, inputs)
                    except (AssertionError, OSError) as error:
                        failed.append(str(error)[:60])
                    asked[0] += 1
                    slowest_s[0] = max(slowest_s[0], time.monotonic() - began_s)

                askers = [Repeat(ask, PAUSE_S) for _ in range(2)]

                def begin():
                    slowest_s[0], asked[0] = 0.0, 0
                    front.tell(mode)

                def end():
                    for asker in askers:
                        asker.stop()
                    front.tell("good")
                    bad = "slow" if slowest_s[0] > REMOTE_BOUND_S else ""
                    said = (
                        f"{asked[0]} requests of the model in Redis, {len(failed)} failed, slowest {slowest_s[0]:.2f} s"
                    )
                    return said, bad or ("failed" if failed else "")

                yield Stage(server, begin, end)
    finally:
        redis.close()


@contextlib.contextmanager
def connected(root, kind):
    """A server whose gRPC port is taken by peers that say nothing, or reset what they ask."""
    import grpc

    write_package(root / "repository", users=range(60))
    with LiveServer(root / "repository", log=root / "serve.log") as server, Turncoat(kind, server.grpc_port) as peers:
        slowest_s, failed = [0.0], []

        def ask():
            began_s = time.monotonic()
            with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
                live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
                try:
                    live(b"", timeout=6 * RPC_BOUND_S, wait_for_ready=True)
                except grpc.RpcError as error:
                    failed.append(error.code().name)
            slowest_s[0] = max(slowest_s[0], time.monotonic() - began_s)

        asker = Repeat(ask, 0.1)

        def begin():
            slowest_s[0] = 0.0
            peers.tell("begin")

        def end():
            peers.tell("end")
            counts = ", ".join(f"{count:,} {event}" for event, count in peers.read().items())
            asker.stop()
            said = f"{counts}; a gRPC client on a new connection: {len(failed)} failed, slowest {slowest_s[0]:.2f} s"
            return said, "failed" if failed else "slow" if slowest_s[0] > RPC_BOUND_S else ""

        yield Stage(server, begin, end)


CASES = {
    "recordings": (joined, "recordings"),
    "followed Parquet": (joined, "outcomes"),
    "store that lists without end": (stored, "endless"),
    "store that is 2 s late": (stored, "slow"),
    "store whose objects have no end": (stored, "overlong"),
    "Redis that drips": (remote, "drips"),
    "Redis that sends without end": (remote, "endless"),
    "Redis that talks nonsense": (remote, "nonsense"),
    "gRPC connections that are silent": (connected, "silent"),
    "gRPC streams that are reset": (connected, "resets"),
}


def besiege(name, seconds):
    """One line of the report."""
    opened, argument = CASES[name]
    with tempfile.TemporaryDirectory(prefix="freshet-siege-") as root, opened(Path(root), argument) as stage:
        processes = set(tree(stage.server.process.pid))
        clients = [Client(stage.server, n) for n in range(CLIENTS)]
        time.sleep(WARM_S)
        spans = {}
        with Watch([stage.server.process.pid, *([stage.reader] if stage.reader else [])]) as watch:
            for where, act in (("quiet", lambda: None), ("under", stage.begin)):
                began_s = time.monotonic()
                act()
                time.sleep(max(0.0, seconds - (time.monotonic() - began_s)))
                spans[where] = began_s, time.monotonic()
            said, beyond = stage.end()
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join()
        lost = len(processes.difference(tree(stage.server.process.pid)))
    p99_ms = {where: float(np.quantile(latencies_of(clients, *span), 0.99)) * 1e3 for where, span in spans.items()}
    return {
        "name": name,
        "said": said,
        "beyond": beyond,
        "p99_ms": p99_ms,
        "more_nbytes": watch.more(),
        "lost": lost,
        "failed": sum(client.failed for client in clients),
    }


def missed(line):
    """What of a line is not as it should be."""
    bad = [line["beyond"]] if line["beyond"] else []
    if line["p99_ms"]["under"] > MAX_RATIO * line["p99_ms"]["quiet"]:
        bad.append("p99")
    if line["more_nbytes"][0] > MAX_NBYTES:
        bad.append("memory")
    return bad + [figure for figure in ("lost", "failed") if line[figure]]


def page(lines, seconds):
    kinds = ", ".join(kind.__name__.replace("_", " ") for kind in FILES)
    text = [
        "# Sources that turn hostile",
        "",
        f"`make -C loadtest siege`: {CLIENTS} clients ask a served model every {PAUSE_S * 1e3:.0f} ms, {seconds:g} s "
        f"alone and {seconds:g} s while what the server, or `freshet join --follow` beside it, reads is hostile, all "
        f"on the same cores. Files come ten a second ({kinds}, 60 kB that decode to 2 GB). Deltas are published past "
        f"the store. A second model needs Redis, with a timeout of {REMOTE_TIMEOUT_S:g} s. Memory: of the server, and "
        "of what is beside it, where a decoding process may take 1 GiB.",
        "",
        "| source | what became of it | p99 alone | hostile | over alone | memory above | beside | workers lost "
        "| clients' requests failed | missed |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for line in lines:
        quiet, under = line["p99_ms"]["quiet"], line["p99_ms"]["under"]
        memory = [f"{nbytes / 1e6:.0f} MB" for nbytes in line["more_nbytes"]]
        text.append(
            f"| {line['name']} | {line['said']} | {quiet:.1f} ms | {under:.1f} ms | {under / quiet:.1f} | {memory[0]} "
            f"| {memory[1] if memory[1:] else ''} | {line['lost']} | {line['failed']} | {', '.join(missed(line))} |"
        )
    return "\n".join([*text, ""])


def main() -> int:
    """0 when every line is as it should be."""
    parser = argparse.ArgumentParser(prog="make -C loadtest siege", description=__doc__)
    parser.add_argument("--only", default="", help="sources with one of these words, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"alone, and hostile [{SECONDS:g}]")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    lines = []
    for name in CASES:
        if not words or any(word in name for word in words):
            lines.append(besiege(name, options.seconds))
            print(lines[-1], missed(lines[-1]), flush=True)
            # After each: a run that is cut off leaves what it has measured.
            (options.out / "siege-sources.md").write_text(page(lines, options.seconds))
    print(page(lines, options.seconds))
    return int(any(map(missed, lines)))


if __name__ == "__main__":
    sys.exit(main())
