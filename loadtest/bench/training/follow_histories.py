"""`make -C loadtest follow-histories`: a followed shop log under kills; loadtest/results/follow-histories.md.

A feed writes impressions, clicks that come later, and items that change. `freshet join` labels the impressions,
`freshet train --follow` learns them with their users' histories and the items as they were, and writes the histories to
Redis; a server follows the deltas. At random moments of the log one of them is killed with kill -9 and started again:
trainer, join, feed, Redis and server alike. Redis keeps nothing, so it comes up empty and the trainer writes all
histories anew.

In the end a request of a user's id and five items is answered from what was followed. Its scores are compared with
those of `freshet train --repeat`, a run over the joined rows as stored data that takes the same steps, whose version is
given the history that the joined rows themselves say. And the histories in Redis are compared with these. Aims: scores
within 1e-5, every history the same. The guard is off: a hold would keep the last deltas from being served.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console

from freshet_serving.models.data.broadcast_columns import filled
from freshet_serving.models.training.repeated_run import RepeatedRun
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from loadtest.bench import needs
from loadtest.bench.training.shop_feed import BLOCK_ROWS, ITEMS, MODEL, Feed, Shop
from loadtest.load.launch import free_ports, freshet, port_options
from loadtest.reports.report import machine, opening, origin, store

RESULTS = Path(__file__).parents[2] / "results"
MOST, CANDIDATES, AIM = 20, 5, 1e-5
WAIT_S, LATE_S, LAG_S = 5, 86_400, 1
LOOK_S, PATIENT_S = 0.2, 1800.0
VICTIMS = ("trainer", "join", "feed", "store", "server")
FILE = """
[model]
name = "{model}"
arch = "din"
hidden = [32, 16]
[data]
path = "{joined}"
label = "freshet.label"
weight = "freshet.weight"
time = "freshet.time"
[features.user]
kind = "id"
dim = 8
side = "user"
[features.item]
kind = "id"
dim = 8
side = "item"
[features.price]
kind = "float"
side = "item"
[features.category]
kind = "id"
dim = 4
side = "item"
[sequences.h]
columns = {{ item = "item" }}
tables = {{ item = "item" }}
from_events = "user"
where = "freshet.label"
max_length = {most}
store = "main"
[entities.item]
key = "item"
path = "{items}"
columns = ["price", "category"]
time = "time"
[train]
batch_rows = 512
seed = 1
[guard]
enabled = false
[publish]
repository = "{repository}"
full_rows = {full_rows}
delta_seconds = 5
snapshot_after = 100
"""


class Program:
    """A process that is killed and started again."""

    def __init__(self, name: str, command: list[str], folder: Path, port: int = 0) -> None:
        """Start it.

        Args:
            name: Of its log.
            command: The command.
            folder: Folder of the log.
            port: Where its metrics are; 0 for nowhere.
        """
        self.log, self._command, self._port = folder / f"{name}.log", command, port
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Ask it to end as an operator does."""
        self._process.send_signal(signal.SIGTERM)
        if status := self._process.wait(PATIENT_S):
            raise SystemExit(f"{self.log.name}: ended with {status}: {self.tail()}")

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def started(self) -> bool:
        """Return True once it answers; one without metrics has."""
        return not self._port or self.value("") >= 0

    def ended(self) -> bool:
        return self._process.poll() == 0

    def check(self) -> None:
        """Raise SystemExit if it has failed by itself."""
        if self._process.poll():
            raise SystemExit(f"{self.log.name}: ended with {self._process.poll()}: {self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def value(self, family: str) -> float:
        """Return a metric, or 0 without a name; -1 while nobody answers."""
        self.check()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as reply:
                lines = reply.read().decode().splitlines()
        except OSError:
            return -1.0
        if not family:
            return 0.0
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{family}{{")), -1.0)


class Story:
    """The processes, and the files between them."""

    def __init__(self, folder: Path, events: int, rate: float, full_rows: int, seed: int) -> None:
        self.folder, self.feed, self.events = folder, Feed(folder, events, seed), events
        self.joined, self.repository = folder / "joined", folder / "repository"
        self.config = self._config("train", self.repository, full_rows)
        join_port, train_port, self.store_port, *self.ports = free_ports(6)
        where = ["--online-store", f"main=redis://127.0.0.1:{self.store_port}"]
        feed = [sys.executable, "-m", "loadtest.bench.training.shop_feed", "--folder", str(folder)]
        feed += ["--events", str(events), "--seed", str(seed)]
        join = [*freshet(), "join", "--recordings", str(self.feed.recordings), "--outcomes", str(self.feed.outcomes)]
        join += ["--out", str(self.joined), "--wait", str(WAIT_S), "--late", str(LATE_S), "--lag", str(LAG_S)]
        join += ["--every", "1", "--window", "60", "--follow", "--metrics-port", str(join_port)]
        train = [*freshet(), "train", "--config", str(self.config), "--follow", *where]
        redis = ["redis-server", "--port", str(self.store_port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        serve = [*freshet(), "serve", "--repository", str(self.repository), "--host", "127.0.0.1", "--workers", "1"]
        self.programs = {
            "store": Program("store", [*redis, str(folder)], folder),
            # What the full version learns.
            "feed": Program("feed", [*feed, "--blocks", str(-(-full_rows // BLOCK_ROWS) + 1)], folder),
            "join": Program("join", join, folder, join_port),
        }
        self.until(lambda: any(self.joined.glob("*.parquet")), "the first labels")
        train_metrics = ["--metrics-port", str(train_port)]
        self.programs["trainer"] = Program("trainer", [*train, *train_metrics], folder, train_port)
        self.until(lambda: (self.repository / MODEL / "1" / "model.json").exists(), "the full version")
        self.programs["server"] = Program("server", [*serve, *port_options(self.ports), *where], folder, self.ports[0])
        self.until(self.generation, "the server")
        self.programs["feed"] = Program("feed", [*feed, "--rate", str(rate)], folder)

    def _config(self, name: str, repository: Path, full_rows: int) -> Path:
        file = self.folder / f"{name}.toml"
        places = {"joined": self.joined, "items": self.feed.items, "repository": repository}
        file.write_text(FILE.format(model=MODEL, most=MOST, full_rows=full_rows, **places))
        return file

    def until(self, condition: Callable[[], Any], expected: str) -> None:
        """Wait until a condition holds; raise SystemExit if a program fails, or it takes too long."""
        give_up_s = time.monotonic() + PATIENT_S
        while not condition():
            for program in self.programs.values():
                program.check()
            if time.monotonic() > give_up_s:
                raise SystemExit(f"{expected}: waited for {PATIENT_S:g} s; {self.programs['join'].tail()[-300:]}")
            time.sleep(LOOK_S)

    def kill(self, victim: str, away_s: float) -> bool:
        """Kill one, and start it again after a while; return False if it had ended."""
        program = self.programs[victim]
        if program.ended():
            return False
        program.kill()
        time.sleep(away_s)
        program.start()
        return True

    def finish(self, clicks: int) -> int:
        """Wait until everything has been learned and is served; return the rows.

        Args:
            clicks: How many impressions have a click.
        """
        join, trainer = self.programs["join"], self.programs["trainer"]
        self.until(self.programs["feed"].ended, "the feed's end")
        counts = "freshet_join_positives_total", "freshet_join_late_total"
        self.until(lambda: join.value("freshet_join_rows_total") == self.events, "all rows")
        self.until(lambda: sum(join.value(family) for family in counts) == clicks, "all clicks")
        join.end()
        rows = int(sum(pq.read_metadata(path).num_rows for path in self.joined.glob("*.parquet")))
        self.until(lambda: trainer.value("freshet_train_position") == rows, "the last row to be learned")
        trainer.end()
        return rows

    def generation(self) -> str:
        """Return what the server serves; "" while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[2]}/admin/models", timeout=30) as reply:
                return str(json.load(reply)["models"][MODEL]["generation"])
        except (OSError, KeyError):
            return ""

    def scores(self, user: int, items: list[int]) -> np.ndarray:
        """Return the scores that the server gives a user's id alone."""
        body = json.dumps({"inputs": {"user": [user], "item": items}})
        give_up_s = time.monotonic() + PATIENT_S
        while time.monotonic() < give_up_s:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=60)
            try:
                connection.request("POST", f"/v1/models/{MODEL}:predict", body)
                reply = connection.getresponse()
                text = reply.read()
                # The store may answer late on a machine that is busy.
                if reply.status == 200 and reply.getheader("x-features-missing") is None:
                    return np.array(json.loads(text)["outputs"], np.float32).reshape(-1)
            finally:
                connection.close()
        raise SystemExit(f"user {user}: no scores: {text[:300]!r}")

    def close(self) -> None:
        for program in self.programs.values():
            program.close()


def clicks_of(shop: Shop, feed: Feed) -> int:
    """Return how many impressions have a click."""
    return sum(int((shop.block(n, feed.rows(n))[2] > 0).sum()) for n in range(feed.blocks))


def histories_of(joined: Path) -> dict[int, list[int]]:
    """Return the newest items of each user, as the joined rows say."""
    events: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    first = 0
    for path in sorted(joined.glob("*.parquet")):
        names = ("user", "item", "freshet.time", "freshet.label")
        table = pq.read_table(path, columns=list(names), partitioning=None)
        user, item, at, label = (filled(table, name) for name in names)
        chosen = np.flatnonzero(label.to_numpy() > 0)
        times = at.cast("int64").to_numpy()[chosen]
        whose, items = (column.to_numpy()[chosen].tolist() for column in (user, item))
        for key, *event in zip(whose, times.tolist(), (first + chosen).tolist(), items):
            events[key].append((event[0], event[1], event[2]))
        first += len(table)
    return {user: [item for _, _, item in sorted(own)[-MOST:]] for user, own in events.items()}


def stored_histories(port: int, users: list[int]) -> dict[int, list[int]]:
    import redis

    with redis.Redis(port=port) as client:
        found = {user: client.hget(f"{MODEL}:h:{user}", "item") for user in users}
    return {user: json.loads(text) if text else [] for user, text in found.items()}


def repeat(story: Story, config: Path) -> float:
    """Run the batch run; return its seconds."""
    folder = story.repository / ".checkpoints" / MODEL
    command = [*freshet(), "train", "--config", str(config), "--repeat", str(folder)]
    began_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"--repeat: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return time.monotonic() - began_s


def compare(
    story: Story, repository: Path, histories: dict[int, list[int]], users: list[int], seed: int
) -> list[float]:
    """Return for each user the largest difference of the scores of some items."""
    draw, found = random.Random(f"candidates {seed}"), []
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        for user in users:
            items = draw.sample(range(ITEMS), CANDIDATES)
            served = story.scores(user, items)
            inputs: dict[str, Any] = {"user": np.array([user]), "item": np.array(items)}
            inputs["h.item"] = Ragged.of([histories[user]])
            scores = processor.process(PredictRequest(MODEL, inputs)).outputs["score"].reshape(-1)
            found.append(float(np.abs(served - scores).max()))
    return found


def tell(folder: Path, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run the whole story."""
    draw, began_s = random.Random(f"story {arguments.seed}"), time.monotonic()
    story = Story(folder, arguments.events, arguments.rate, arguments.full_rows, arguments.seed)
    try:
        rounds, killed, late = arguments.rounds, Counter[str](), 0
        victims = [victim for _ in range(rounds) for victim in draw.sample(VICTIMS, len(VICTIMS))][:rounds]
        first, last = story.feed.next, story.feed.blocks
        generations: list[tuple[int, ...]] = []
        for n, victim in enumerate(victims):
            moment = first + (last - first) * (n + draw.random()) / rounds
            story.until(lambda at=moment: story.feed.next >= at, "the next moment")  # type: ignore[misc]
            story.until(story.programs[victim].started, f"the {victim}")
            late += story.feed.next >= last
            killed[victim] += story.kill(victim, draw.random())
            if served := story.generation():
                generations.append(tuple(int(part) for part in served.split(".")))
            console.print(f"  {n + 1}: killed the {victim} at block {story.feed.next}, served {served}")
        if generations != sorted(generations):
            raise SystemExit(f"a server went back: {generations}")
        rows = story.finish(clicks_of(Shop(arguments.seed), story.feed))
        followed_s = time.monotonic() - began_s
        like = RepeatedRun(story.repository / ".checkpoints" / MODEL)
        entries = list(like.entries())
        newest = str([entry.generation for entry in entries if entry.generation][-1])
        story.until(lambda: story.generation() == newest, "the last delta to be served")
        console.print(f"  {rows:,} rows learned in {followed_s:.0f} s, {newest} is served; repeating them")
        again = folder / "again"
        batch_s = repeat(story, story._config("again", again, arguments.full_rows))
        histories = histories_of(story.joined)
        users = draw.sample(sorted(histories), min(arguments.users, len(histories)))
        stored = stored_histories(story.store_port, users)
        console.print(f"  repeated in {batch_s:.0f} s; asking for {len(users):,} users")
        differences = compare(story, again, histories, users, arguments.seed)
    finally:
        story.close()
    steps = [entry for entry in entries if entry.end > entry.first]
    return {
        "events": arguments.events,
        "rows": rows,
        "late": rows - arguments.events,
        "full_rows": arguments.full_rows,
        "kills": dict(killed),
        "kills_after_the_feed": late,
        "steps": len(steps),
        "full_steps": sum(entry.end - entry.first == 512 for entry in steps),
        "deltas": sum(entry.generation is not None for entry in entries) - 1,
        "followed_s": followed_s,
        "batch_s": batch_s,
        "users": len(users),
        "events_of_histories": sum(len(histories[user]) for user in users),
        "other_histories": sum(stored[user] != histories[user] for user in users),
        "largest_difference": max(differences),
        "users_equal": sum(not difference for difference in differences),
        "cpu_s": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]),
    }


def passed(result: dict[str, Any]) -> bool:
    return bool(result["largest_difference"] <= AIM and not result["other_histories"])


def page(result: dict[str, Any]) -> str:
    """The report, as Markdown."""
    kills = ", ".join(f"{name} {count}" for name, count in sorted(result["kills"].items()))
    lines = opening("A followed shop log under kills", __doc__, result)
    lines += [
        "| | |",
        "|---|---:|",
        f"| impressions | {result['events']:,} |",
        f"| rows learned, late clicks as corrections among them | {result['rows']:,}, {result['late']:,} late |",
        f"| of these by the full version | {result['full_rows']:,} |",
        f"| kills | {sum(result['kills'].values())}: {kills} |",
        f"| of these when all had been sent | {result['kills_after_the_feed']:,} |",
        f"| steps behind the full version, of a full batch | {result['steps']:,}, {result['full_steps']:,} |",
        f"| deltas | {result['deltas']:,} |",
        f"| followed, repeated | {result['followed_s']:,.0f} s, {result['batch_s']:,.0f} s |",
        f"| users asked for, events in their histories | {result['users']:,}, {result['events_of_histories']:,} |",
        f"| users whose stored history is not the learned one | {result['other_histories']:,} |",
        f"| largest difference of a score | {result['largest_difference']:.1e} |",
        f"| users with scores equal to the bit | {result['users_equal']:,} |",
        "",
        "The aims are met." if passed(result) else "The aims are not met.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=2500.0, help="events a second")
    parser.add_argument("--full-rows", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    needs.program("redis-server")
    console = Console(stderr=True, highlight=False)
    with tempfile.TemporaryDirectory() as scratch:
        result = {
            "origin": origin("-C loadtest follow-histories", "ARGS", sys.argv[1:]),
            "machine": machine(),
            **tell(Path(scratch), arguments, console),
        }
    text = page(result)
    store(arguments.out, "follow-histories", result, text)
    console.print(text, markup=False)
    sys.exit(not passed(result))


if __name__ == "__main__":
    main()
