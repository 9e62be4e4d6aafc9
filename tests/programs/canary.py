"""`make -C loadtest canary`: a canary at 5 % on live servers, asked by every protocol. loadtest/results/canary.md.

The split: 100,000 requests without a key, and as many keys that ask once. Sticky keys: some of those keys again and
again, by other protocols, after weights have changed and come back, after a worker was killed, after a restart. A good
canary under attack, by numbers that no network bears: it has to stay. Bad canaries: one whose scores are not numbers,
one whose scores lie elsewhere, one that fails on some requests; each has to be taken out by itself, under the bounds
that a model has by default.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import onnx

from tests.e2e.asking import INFER, PREDICT, http_bodies, rpc_messages
from tests.e2e.servers import LiveServer
from tests.processor.backends.artefacts import make_artefact
from tests.support.packages import make_weights, write_package
from tests.support.waiting import until

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
WORKERS, CONNECTIONS, IN_FLIGHT = 2, 16, 32
SHARE, ROOM = 0.05, 0.003
STABLE, CANARY = 1, 2
USERS, ROWS = 50, 4
WAIT_S, ROUNDS = 60, 20
POLICY = """
[model.small]
labels = { stable = 1, canary = 2 }
split = { stable = 95, canary = 5 }
"""


def bodies(number, floats=None):
    """So many different requests, as http_bodies() and rpc_messages() make them."""
    random = np.random.default_rng(7)
    requests = []
    for _ in range(number):
        values = random.standard_normal((ROWS, 4)).astype(np.float32) if floats is None else floats
        requests.append((random.integers(0, USERS, ROWS), [["a"], [], ["b", "c"], ["c"]], values))
    return requests


class Http:
    """Keep-alive connections with one request in flight each."""

    def __init__(self, server, requests, label=""):
        """label: that is asked for, by TensorFlow Serving's path."""
        self._port = server.http_port
        self._messages = {
            protocol: [_head(*http_bodies(*request)[protocol]) for request in requests]
            for protocol in ("kserve", "tfs")
        }
        if label:
            path, named = b"/models/small:", b"/models/small/labels/%b:" % label.encode()
            self._messages = {"tfs": [(start.replace(path, named), rest) for start, rest in self._messages["tfs"]]}
        self._sockets = [self._connect() for _ in range(CONNECTIONS)]

    def ask(self, protocol, keys):
        """(status, version or 0) of a request for each key; None for one without."""
        messages = itertools.cycle(self._messages[protocol])
        keys = iter(keys)
        while chunk := list(itertools.islice(keys, CONNECTIONS)):
            for connection, key in zip(self._sockets, chunk):
                start, rest = next(messages)
                named = b"" if key is None else b"x-sticky-key: %b\r\n" % key.encode()
                connection.sendall(start + named + rest)
            for connection, _ in zip(self._sockets, chunk):
                yield _reply(connection)

    def again(self):
        """New connections: a worker has died, or the server is another one."""
        self.close()
        self._sockets = [self._connect() for _ in range(CONNECTIONS)]

    def close(self):
        for connection in self._sockets:
            connection.close()

    def _connect(self):
        return socket.create_connection(("127.0.0.1", self._port), timeout=WAIT_S)


def _head(path, headers, body):
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n", b"\r\n" + body


def _reply(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    left = int(headers[b"content-length"]) - len(rest)
    while left > 0:
        left -= len(_more(connection))
    return int(first.split()[1]), int(headers.get(b"x-model-version", 0))


def _more(connection):
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionError("the server has ended a connection")
    return data


class Rpc:
    def __init__(self, server, requests):
        every = [rpc_messages(*request) for request in requests]
        self._messages = {method: [messages[method] for messages in every] for method in (INFER, PREDICT)}
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
        self._channels = [grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) for _ in range(8)]

    def ask(self, method, keys):
        """See Http.ask: a status is 200 or 500."""
        messages, channels = itertools.cycle(self._messages[method]), itertools.cycle(self._channels)
        keys = iter(keys)
        while chunk := list(itertools.islice(keys, IN_FLIGHT)):
            calls = [
                next(channels)
                .unary_unary(method)
                .future(
                    next(messages),
                    metadata=[] if key is None else [("x-sticky-key", key)],
                    timeout=WAIT_S,
                    wait_for_ready=True,
                )
                for key in chunk
            ]
            for call in calls:
                good = call.code() is grpc.StatusCode.OK
                yield 200 if good else 500, int(dict(call.trailing_metadata()).get("x-model-version", 0))

    def close(self):
        for channel in self._channels:
            channel.close()


@dataclass
class Clients:
    """Everything that asks a server. asked: answers by protocol, all of them 200."""

    http: Http
    rpc: Rpc
    asked: Counter = field(default_factory=Counter)

    @classmethod
    @contextlib.contextmanager
    def of(cls, server):
        requests = bodies(32)
        clients = cls(Http(server, requests), Rpc(server, requests))
        try:
            yield clients
        finally:
            clients.http.close()
            clients.rpc.close()

    def ask(self, protocol, keys):
        """Which version answered, for each key."""
        side = self.rpc if protocol in (INFER, PREDICT) else self.http
        for status, version in side.ask(protocol, keys):
            if status != 200:
                raise RuntimeError(f"{protocol}: answered {status}")
            self.asked[protocol] += 1
            yield version


# Of 100 requests, how many by each protocol.
MIX = {"kserve": 40, "tfs": 40, INFER: 10, PREDICT: 10}
NAMES = {"kserve": "KServe v2, HTTP", "tfs": "TensorFlow Serving, HTTP", INFER: "KServe v2, gRPC",
         PREDICT: "TensorFlow Serving, gRPC"}  # fmt: skip


def model(server):
    return json.loads(server.get("/admin/models", admin=True)[2])["models"]["small"]


class Report:
    """What must hold, and whether it did."""

    def __init__(self):
        self.rows, self.failed = [], 0

    def note(self, claim, held, seen):
        self.rows.append((claim, "yes" if held else "NO", seen))
        self.failed += not held
        print(f"{'' if held else 'FAILED '}{claim}: {seen}", flush=True)


def split(server, clients, report, total):
    """Shares over so many requests; the versions of the keys that were asked for."""
    counts, most_s = {}, time.monotonic()
    for protocol, weight in MIX.items():
        counts[protocol] = Counter(clients.ask(protocol, itertools.repeat(None, total * weight // 100)))
    _note_shares(report, "without a key", counts)
    keys = (f"user-{n}" for n in itertools.count())
    sides, keyed = {}, {}
    for protocol, weight in MIX.items():
        batch = list(itertools.islice(keys, total * weight // 100))
        versions = list(clients.ask(protocol, batch))
        sides |= dict(zip(batch, versions))
        keyed[protocol] = Counter(versions)
    _note_shares(report, "with a key each", keyed)
    report.note("a good canary stays", model(server)["out"] == {}, f"{time.monotonic() - most_s:.0f} s under load")
    return sides


def _note_shares(report, how, counts):
    whole = sum(counts.values(), Counter())
    share = whole[CANARY] / whole.total()
    seen = f"{share:.3%}; " + ", ".join(f"{NAMES[p]} {c[CANARY] / c.total():.2%}" for p, c in counts.items())
    report.note(f"{whole.total():,} requests {how}: 5 % within 0.3 points", abs(share - SHARE) <= ROOM, seen)


def sticky(server, clients, report, sides, keys):
    """Keys that were answered by a version are so again, whatever happens. Returns the keys that were looked at."""
    watched = {key: sides[key] for key in [*_of(sides, CANARY)[: keys // 4], *_of(sides, STABLE)[: keys * 3 // 4]]}
    asked, lost = (sum(n) for n in zip(*(_switched(clients, watched) for _ in range(3))))
    report.note(f"{len(watched):,} keys, {asked:,} requests by all protocols: none switches", lost == 0, f"{lost} did")
    pids = [worker["pid"] for worker in json.loads(server.get("/admin/models", admin=True)[2])["workers"]]
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: _up(server, gone=pids[0]))
    clients.http.again()
    _note_switched(report, "a worker is killed", clients, watched)
    before = dict(zip(sides, clients.ask("kserve", sides)))
    _weigh(server, 0.10)
    after = dict(zip(sides, clients.ask("kserve", sides)))
    moved = sum(before[key] == STABLE and after[key] == CANARY for key in sides) / len(sides)
    back = sum(before[key] == CANARY and after[key] == STABLE for key in sides)
    report.note(
        "from 5 to 10 %: 5 % of the keys move, to the canary only", back == 0 and abs(moved - 0.05) <= ROOM,
        f"{moved:.2%} to the canary, {back} from it",
    )  # fmt: skip
    _weigh(server, 0.05)
    _note_switched(report, "back to 5 %", clients, watched)
    return watched


def _switched(clients, watched):
    """How many requests, by every protocol for each of the keys, and how many of them the other version answered."""
    asked = [(key, version) for protocol in MIX for key, version in zip(watched, clients.ask(protocol, watched))]
    return len(asked), sum(watched[key] != version for key, version in asked)


def _note_switched(report, when, clients, watched):
    asked, lost = _switched(clients, watched)
    report.note(f"{when}, {asked:,} requests: every key is where it was", lost == 0, f"{lost} are not")


def _weigh(server, share):
    weights = {"stable": 100 - 100 * share, "canary": 100 * share}
    server.post_json("/admin/models/small/policy", {"split": weights}, method="PUT")
    until(lambda: abs(model(server)["shares"][str(CANARY)] - share) < 1e-6)


def _of(sides, version):
    return [key for key, side in sides.items() if side == version]


def _up(server, gone):
    with contextlib.suppress(OSError, ValueError):
        workers = json.loads(server.get("/admin/models", admin=True)[2])["workers"]
        return all(w["up"] and w["pid"] != gone for w in workers) and len(workers) == WORKERS
    return False


def not_numbers(seed):
    weights = make_weights(seed)
    weights["mlp_out/kernel"][:] = np.nan
    return weights


def shifted(seed):
    weights = make_weights(seed)
    weights["mlp_out/kernel"][:] = np.abs(weights["mlp_out/kernel"]) * 50
    return weights


def failing_artefact():
    """The executable with a look-up beside it that is out of bounds where any input is beyond 20."""
    helper, kinds = onnx.helper, onnx.TensorProto
    model = onnx.load_from_string(make_artefact())
    out = model.graph.node[-1]
    out.output[0] = "sound"
    for name, kind, dims, values in (
        ("bound", kinds.FLOAT, [], [20.0]), ("far", kinds.INT64, [], [9]), ("zero", kinds.FLOAT, [1], [0.0]),
    ):  # fmt: skip
        model.graph.initializer.append(helper.make_tensor(name, kind, dims, values))
    model.graph.node.extend(
        [
            helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            helper.make_node("Greater", ["most", "bound"], ["beyond"]),
            helper.make_node("Cast", ["beyond"], ["flag"], to=kinds.INT64),
            helper.make_node("Mul", ["flag", "far"], ["at"]),
            helper.make_node("Gather", ["zero", "at"], ["found"]),
            helper.make_node("Add", ["sound", "found"], ["score"]),
        ]
    )
    return model.SerializeToString()


BAD = {
    "its scores are NaN": ("nonfinite", {"weights": not_numbers}, None),
    "its scores lie elsewhere": ("shift", {"weights": shifted}, None),
    "it fails on one request in eight": ("errors", {"artefact": failing_artefact}, np.full((ROWS, 4), 1e3, np.float32)),
}


def bad(folder, title, report):
    """A canary that is bad is gone before long, and the server says why."""
    kind, changes, rare = BAD[title]
    start = _repository(folder, **changes)
    with start() as server:
        requests = bodies(7) + bodies(1, rare)
        http = Http(server, requests)
        sent = answered = failed = 0
        began_s = time.monotonic()
        while not model(server)["out"]:
            for status, version in http.ask("kserve", itertools.repeat(None, 200)):
                sent, answered, failed = sent + 1, answered + (version == CANARY), failed + (status != 200)
            if time.monotonic() > began_s + WAIT_S:
                break
        took_s = time.monotonic() - began_s
        out = model(server)["out"].get(str(CANARY), {}).get("reason", "it was not taken out")
        report.note(
            f"a canary is taken out by itself: {title}", out.startswith(f"{kind}: "),
            f"“{out}”, after {took_s:.1f} s and {sent:,} requests, {answered} scored by it, {failed} failed",
        )  # fmt: skip
        # What was on its way when it was taken out is answered.
        later = Counter(http.ask("tfs", itertools.repeat(None, 2000)))
        report.note("then nobody meets it", later == Counter({(200, STABLE): 2000}), "2,000 requests more")
        http.close()
    with start() as server:
        http = Http(server, requests)
        later = Counter(http.ask("kserve", itertools.repeat(None, 400)))
        report.note("after a restart neither", later == Counter({(200, STABLE): 400}), "400 requests")
        http.close()


HOSTILE = (3.3e38, -3.3e38, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e30, 5e4)


def attacked(folder, report):
    """A good canary stays, whoever would be rid of it."""
    with _repository(folder)() as server:
        hostile = [body for value in HOSTILE for body in bodies(2, np.full((ROWS, 4), value, np.float32))]
        usual, strange, named = Http(server, bodies(32)), Http(server, hostile), Http(server, hostile, "canary")
        keys = [f"user-{n}" for n in range(400)]
        keys = [key for key, (_, version) in zip(keys, usual.ask("kserve", keys)) if version == CANARY]
        seen = Counter()
        for _ in range(ROUNDS):
            for status, _ in usual.ask("tfs", itertools.repeat(None, 200)):
                seen["usual", status] += 1
            for status, _ in named.ask("tfs", itertools.repeat(None, 200)):
                seen["to its label", status] += 1
            for status, _ in strange.ask("kserve", itertools.islice(itertools.cycle(keys), 200)):
                seen["by keys of its side", status] += 1
        # The guard looks once a second, at what workers report once a second.
        time.sleep(3)
        good = {("usual", 200), *itertools.product(("to its label", "by keys of its side"), (200, 400))}
        statuses = "; ".join(f"{count} {how}: {status}" for (how, status), count in sorted(seen.items()))
        report.note("a good canary stays under numbers that no network bears", model(server)["out"] == {}, statuses)
        report.note("each of them is answered or refused", set(seen) <= good, f"{seen.total():,} requests")
        for http in (usual, strange, named):
            http.close()


def _repository(folder, **changes):
    """What starts a server on a stable version and its canary."""
    write_package(folder / "repository", users=range(USERS))
    write_package(folder / "repository", CANARY, users=range(USERS), **changes)
    (folder / "serve.toml").write_text(POLICY)

    @contextlib.contextmanager
    def start():
        options = ["--workers", str(WORKERS), "--config", str(folder / "serve.toml")]
        with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
            yield server

    return start


def page(report, asked, seconds):
    lines = [
        "# A canary at 5 %",
        "",
        f"`make -C loadtest canary`: live servers with {WORKERS} workers, {ROWS} candidates a request, default bounds. "
        f"{sum(asked.values()):,} requests on the good canary, {seconds:.0f} s in all.",
        "",
        "| what must hold | held | seen |",
        "|---|---|---|",
        *(f"| {text} | {held} | {seen} |" for text, held, seen in report.rows),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """0 when everything held."""
    parser = argparse.ArgumentParser(prog="make -C loadtest canary", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="without a key, and again with one each [100000]")
    parser.add_argument("--keys", type=int, default=2000, help="that are asked again and again [2000]")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    report, began_s = Report(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="freshet-canary-") as root:
        folders = [Path(root, name) for name in ("good", "attacked", *BAD)]
        for folder in folders:
            folder.mkdir()
        start = _repository(folders[0])
        with start() as server, Clients.of(server) as clients:
            sides = split(server, clients, report, options.requests)
            watched = sticky(server, clients, report, sides, options.keys)
        with start() as server, Clients.of(server) as others:
            _note_switched(report, "the server is restarted", others, watched)
        attacked(folders[1], report)
        for folder, title in zip(folders[2:], BAD):
            bad(folder, title, report)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "canary.md").write_text(page(report, clients.asked + others.asked, time.monotonic() - began_s))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
