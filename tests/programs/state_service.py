"""`make -C loadtest state-service`: memory for users in a live service; loadtest/results/state-service.md.

Real servers over loopback, and one client that sends one request at a time where times are compared. Parts that the
last run left out keep the figures of earlier runs.

- **latency**: HSTU over 1,024 events, 256 candidates, one process. In turn: a kept user by candidates alone, a whole
  request whose user's part is found, and a whole request of a new user. Ratios are of the new user's time over the
  other's, by turn: the median, and in brackets the lower quartile.
- **prepare**: the same server. A client sends a new user's prepare, spends some milliseconds as retrieval would, and
  scores when these have passed and the prepare is answered. Time counts from the end of the retrieval. The share of the
  user's part that is hidden is 1 - (that time - time of a hit) / (time of a new user's whole request - time of a hit),
  of the medians of times that were measured in turn.
- **users**: one process keeps users of 20 events with an item and a time each, and nothing computed: at 20 events a
  user's part takes too little. Afterwards some of all users, by chance, are scored by a candidate alone. A prepare is
  compared by its processor time in the server with a whole request of one candidate.
- **triton**: Triton's clients over HTTP, gRPC and a gRPC stream, with sequence_id, sequence_start and sequence_end, two
  workers. They prepare, append, score and release without a pause; scores are computed again from plain lists
  (tests/programs/user_checker.py) within 1e-5. A released user has to be gone.
- **erase**: two workers, users prepared and scored. One is erased, and the memory of all processes' users is read as
  the system has it: words of it that came with the user must be nowhere. Then a second key guesses the ids of users
  that the first has prepared, over HTTP and gRPC.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving import Client, Ragged, UserGone
from loadtest.load.processes import cpu_s, tree
from loadtest.reports.report import machine, opening, origin, table
from tests.e2e.servers import ALONE, LiveServer
from tests.programs.history_model import CANDIDATES, HSTU, ITEMS, USERS, published
from tests.programs.user_checker import ACTIONS, LENGTH, Copy, differ, first_contents, scores
from tests.programs.user_checker import ITEMS as STORY_ITEMS
from tests.programs.user_clients import GONE, Asked, TritonGrpc, TritonHttp, TritonStream
from tests.serving.access.keyed import Keyed
from tests.support.user_story import MODEL, write_users

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
PARTS = ("latency", "prepare", "users", "triton", "erase")
EVENTS, SHORT = 1024, 20
BUCKETS = (1, 16, CANDIDATES)
RETRIEVALS_MS = (20, 50, 200)
HIDDEN_AIM = 0.9
STATES_MB, STORY_MB, TRITON_MB = 1024, 64, 2048
"""Of Triton's clients as much as all that is computed takes: kept users are never evicted for it."""
WARM_ROUNDS, PREPARERS, COMPARED = 5, 4, 2000
CLIENTS = {"HTTP": TritonHttp, "gRPC": TritonGrpc, "gRPC stream": TritonStream}
TRITON_CALLS = {"score": 8, "append": 4, "append and score": 4, "score and release": 1, "release": 1}
GUESSED, VICTIM, OTHERS = 200, 7, 30
LEAST_WORD = 1 << 24
"""Smaller words are counts and places in the memory of users, and may be there by chance."""
FIRST_TIME = 1_700_000_000
Inputs = dict[str, Any]


class Users:
    """New users of the benchmark's model over histories, and candidates for them."""

    def __init__(self, events: int) -> None:
        self._events, self._random = events, np.random.default_rng(1)

    def next(self) -> Inputs:
        """Return the inputs of a user that nobody has seen."""
        random = self._random
        times = FIRST_TIME + np.sort(random.integers(0, 10**6, self._events))
        items = random.integers(0, ITEMS, self._events)
        lists = {"history.item": Ragged.of([items.tolist()]), "history.time": Ragged.of([times.tolist()])}
        return {"user": int(random.integers(0, USERS)), **lists}

    def candidates(self, count: int = CANDIDATES) -> Inputs:
        return {"item": self._random.integers(0, ITEMS, count)}


@contextmanager
def serving_hstu(folder: Path, events: int, *options: str) -> Iterator[LiveServer]:
    repository = folder / "repository"
    repository.mkdir(parents=True)
    published(repository, events, BUCKETS)
    with LiveServer(repository, *options, log=folder / "serve.log") as live:
        yield live


def http_client(live: LiveServer, **options: Any) -> Client:
    return Client(f"http://127.0.0.1:{live.http_port}", timeout_s=60, **options)


def seconds_of(call: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and the lower quartile."""
    low = statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]
    return {"median": statistics.median(values), "low": low}


def measure_latency(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure hits against misses, and what a prepare hides."""
    users = Users(EVENTS)
    parts: dict[str, dict[str, Any]] = {}
    arguments = (*ALONE, "--user-state-mb", str(STATES_MB))
    with serving_hstu(folder, EVENTS, *arguments) as live, http_client(live) as client, http_client(live) as second:
        same, kept_user = users.next(), client.user(HSTU, "kept")
        kept_user.prepare(same)

        def score_kept() -> float:
            return seconds_of(partial(kept_user.score, users.candidates()))

        def score_whole(inputs: Inputs) -> float:
            return seconds_of(partial(client.rank, HSTU, inputs, users.candidates()))

        if "latency" in options.parts:
            kinds = {
                "kept": score_kept,
                "whole": lambda: score_whole(same),
                "new": lambda: score_whole(users.next()),
            }
            times = in_turn(kinds, options.rounds)
            ratios = {
                kind: spread([new / hit for new, hit in zip(times["new"], times[kind])]) for kind in ("kept", "whole")
            }
            parts["latency"] = {"rounds": options.rounds, "ratios": ratios, "hits": hits(live)}
        if "prepare" in options.parts:
            parts["prepare"] = {}
            with ThreadPoolExecutor(1) as pool:
                for wait_ms in RETRIEVALS_MS:
                    answered: list[bool] = []
                    before = hits(live)

                    def after_prepare(wait_s: float = wait_ms / 1000, answered: list[bool] = answered) -> float:
                        inputs, candidates, began_s = users.next(), users.candidates(), time.perf_counter()
                        sent = pool.submit(second.user(HSTU, "prepared").prepare, inputs)
                        time.sleep(max(0.0, began_s + wait_s - time.perf_counter()))
                        due_s = time.perf_counter()
                        answered.append(sent.done())
                        sent.result()
                        client.user(HSTU, "prepared").score(candidates)
                        return time.perf_counter() - due_s

                    kinds = {"hit": score_kept, "new": lambda: score_whole(users.next()), "prepared": after_prepare}
                    times = in_turn(kinds, options.rounds)
                    hit, new, prepared = (statistics.median(times[kind]) for kind in ("hit", "new", "prepared"))
                    parts["prepare"][str(wait_ms)] = {
                        "hidden": 1 - (prepared - hit) / (new - hit),
                        "answered": statistics.mean(answered[-options.rounds :]),
                        "found": (hits(live) - before) / (2 * len(answered)),
                        "part_over_wait": (new - hit) / (wait_ms / 1000),
                    }
    return parts


def in_turn(kinds: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return times of each kind, measured in turn; the first rounds count for nothing."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for n in range(WARM_ROUNDS + rounds):
        for kind, call in list(kinds.items())[:: 1 if n % 2 else -1]:
            times[kind].append(call())
    return {kind: each[WARM_ROUNDS:] for kind, each in times.items()}


def hits(live: LiveServer) -> int:
    """Return how often a user's part was found."""
    lines = live.get("/metrics")[2].decode().splitlines()
    return round(sum(float(line.split()[-1]) for line in lines if "_user_state_hits_total{" in line))


class RawConnection:
    """One connection that sends requests as prepared bytes, so that the client takes little of the machine."""

    def __init__(self, port: int) -> None:
        self._socket, self._read = socket.create_connection(("127.0.0.1", port)), b""

    def ask(self, parameters: dict[str, Any], inputs: dict[str, np.ndarray]) -> int:
        """Send a request to the model and return the status of its reply."""
        tensors = [
            {"name": n, "datatype": "INT64", "shape": [len(v)], "parameters": {"binary_data_size": v.nbytes}}
            for n, v in inputs.items()
        ]
        header = json.dumps({"parameters": parameters, "inputs": tensors}).encode()
        body = b"".join([header, *(values.tobytes() for values in inputs.values())])
        head = (
            f"POST /v2/models/{HSTU}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            f"Inference-Header-Content-Length: {len(header)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        while b"\r\n\r\n" not in self._read:
            self._receive()
        reply, _, rest = self._read.partition(b"\r\n\r\n")
        at = reply.lower().index(b"content-length:") + len(b"content-length:")
        self._read, length = rest, int(reply[at:].split(b"\r\n", 1)[0])
        while len(self._read) < length:
            self._receive()
        self._read = self._read[length:]
        return int(reply.split(b" ", 2)[1])

    def _receive(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._read += data

    def close(self) -> None:
        self._socket.close()


def short_user(number: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(number)
    times = FIRST_TIME + np.cumsum(random.integers(1, 1000, SHORT))
    items = random.integers(0, ITEMS, SHORT)
    splits = np.array([0, SHORT])
    return {
        "user": np.array([number % USERS]), "history.item": items, "history.time": times, "history.row_splits": splits,
    }  # fmt: skip


def shared_out(live: LiveServer, numbers: np.ndarray, ask: Callable[[RawConnection, int], int]) -> Counter[int]:
    """Ask about users by several connections; return how often each status came."""

    def go(own: np.ndarray) -> Counter[int]:
        connection = RawConnection(live.http_port)
        try:
            return Counter(ask(connection, number) for number in own.tolist())
        finally:
            connection.close()

    with ThreadPoolExecutor(PREPARERS) as pool:
        return sum(pool.map(go, (numbers[n::PREPARERS] for n in range(PREPARERS))), Counter[int]())


def measure_users(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Prepare many users within a budget, and look for some of all."""
    random, count = np.random.default_rng(3), options.users
    candidate = {"item": np.array([5])}
    with serving_hstu(folder, SHORT, *ALONE, "--user-state-mb", str(options.budget_mb)) as live:
        server = tree(live.process.pid)

        def prepare(connection: RawConnection, number: int) -> int:
            return connection.ask({"sequence_id": f"user {number}", "sequence_start": True}, short_user(number))

        def whole(connection: RawConnection, number: int) -> int:
            return connection.ask({}, short_user(number) | candidate)

        def score(connection: RawConnection, number: int) -> int:
            return connection.ask({"sequence_id": f"user {number}"}, candidate)

        def spent_s(numbers: np.ndarray, ask: Callable[[RawConnection, int], int]) -> float:
            began_s = cpu_s(server)
            failed = {status: n for status, n in shared_out(live, numbers, ask).items() if status != 200}
            if failed:
                raise RuntimeError(f"requests failed: {failed}")
            return (cpu_s(server) - began_s) / len(numbers)

        compared = min(COMPARED, count)
        spent_s(np.arange(compared), whole)
        before_nbytes = arena_nbytes(live)
        batches = np.array_split(np.arange(count), 10)
        prepares_s = [spent_s(batch, prepare) for batch in batches]
        whole_s = spent_s(random.integers(0, count, compared), whole)
        nbytes = arena_nbytes(live) - before_nbytes
        asked = random.choice(count, min(options.asked, count), replace=False)
        statuses = shared_out(live, asked, score)
        newest = shared_out(live, np.arange(count - compared, count), score)
    share_found = statuses[200] / len(asked)
    return {
        "users": count, "budget_mb": options.budget_mb, "asked": len(asked), "found": share_found,
        "newest_found": newest[200] / compared, "other_statuses": len(asked) - statuses[200] - statuses[410],
        "evicted": round(count * (1 - share_found)), "nbytes_a_user": nbytes / max(1, count * share_found),
        "sent_nbytes": sum(values.nbytes for values in short_user(0).values()),
        "prepare_over_whole": statistics.median(prepares_s) / whole_s,
        "last_over_first": prepares_s[-1] / prepares_s[0],
    }  # fmt: skip


def arena_files(live: LiveServer) -> list[Path]:
    """Return the memory of users as the server's processes hold it open."""
    files = []
    for pid in tree(live.process.pid):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if "freshet-user-states" in os.readlink(file):
                    files.append(file)
            except OSError:
                continue
    return files


def arena_nbytes(live: LiveServer) -> int:
    """Return how much of the memory of users is taken."""
    return os.stat(arena_files(live)[0]).st_blocks * 512


def arena_words(live: LiveServer) -> np.ndarray:
    """Return what is in the memory of users: int64, each word that is not small once."""
    files = {os.stat(file).st_ino: file for file in arena_files(live)}
    if len(files) != 1:
        raise RuntimeError(f"memory of users: expected one file, got {len(files)}")
    words = np.unique(np.fromfile(next(iter(files.values())), np.int64))
    return words[np.abs(words) >= LEAST_WORD]


class TritonCaller:
    """One of Triton's clients with users of its own, whose histories are plain lists here."""

    def __init__(self, client: Any, contents: Any, keys: range, seed: int) -> None:
        self._client, self._contents, self._random = client, contents, np.random.default_rng(seed)
        self._users: dict[int, Copy | None] = dict.fromkeys(keys)
        self._now = dict.fromkeys(keys, FIRST_TIME)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def turn(self) -> None:
        """Send one request about a user and check its reply."""
        random = self._random
        key = int(random.choice(list(self._users)))
        copy, name = self._users[key], str(key)
        if copy is None:
            if random.random() < 0.3:
                self._check("score of a user that is gone", Asked(name, **self._candidates()), None)
            copy = Copy(key, self._events(key, int(random.choice([1, 20, 100, LENGTH]))))
            beside = self._candidates() if random.random() < 0.5 else {}
            self._check("prepare", Asked(name, "prepare", key, copy.events, **beside), copy)
            self._users[key] = copy
            return
        kind = str(random.choice(list(TRITON_CALLS), p=np.array(list(TRITON_CALLS.values())) / 18))
        events = self._events(key, int(random.integers(1, 4))) if "append" in kind else None
        if events:
            copy.append(events)
        candidates = self._candidates() if "score" in kind else {}
        asked = Asked(name, "append" if events else "score", events=events, releases="release" in kind, **candidates)
        self._check(kind, asked, copy)
        if asked.releases:
            self._users[key] = None

    def _check(self, kind: str, asked: Asked, copy: Copy | None) -> None:
        self.counts[kind] += 1
        reply = self._client.ask(asked)
        if copy is None or reply.error:
            if copy is not None or reply.error != GONE:
                self.problems.append(f"{kind}: {reply.error or 'a released user was served'}")
            return
        self.counts["scores"] += len(asked.items)
        expected = scores(self._contents, copy, list(asked.items), list(asked.prices)) if asked.items else np.empty(0)
        if differ(expected, reply.scores):
            self.problems.append(f"{kind}: scores differ, {len(copy.events)} events")

    def _events(self, key: int, count: int) -> list[tuple[int, int, int]]:
        times = self._now[key] + np.cumsum(self._random.integers(1, 60, count))
        self._now[key] = int(times[-1])
        items, actions = (self._random.integers(0, most, count) for most in (STORY_ITEMS, ACTIONS))
        return list(zip(times.tolist(), items.tolist(), actions.tolist()))

    def _candidates(self) -> dict[str, tuple[Any, ...]]:
        count = int(self._random.integers(1, 17))
        prices = self._random.normal(size=count).astype(np.float32)
        return {"items": tuple(self._random.integers(0, STORY_ITEMS, count).tolist()), "prices": tuple(prices.tolist())}


def measure_triton(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Let Triton's clients work for minutes, and check what they are answered."""
    contents = first_contents(np.random.default_rng(5))
    write_users(folder / "repository", contents)
    arguments = ("--workers", "2", "--user-state-mb", str(TRITON_MB))
    with LiveServer(folder / "repository", *arguments, log=folder / "serve.log") as live:
        end_s = time.monotonic() + options.minutes * 60
        callers = {
            name: TritonCaller(make(live), contents, range(1 + 20 * n, 21 + 20 * n), n)
            for n, (name, make) in enumerate(CLIENTS.items())
        }

        def go(caller: TritonCaller) -> None:
            try:
                while time.monotonic() < end_s and not caller.problems:
                    caller.turn()
            except Exception as error:
                caller.problems.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=go, args=(caller,), daemon=True) for caller in callers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(options.minutes * 60 + 120)
    waiting = [f"{name}: waits without end" for name, thread in zip(callers, threads) if thread.is_alive()]
    return {
        "minutes": options.minutes,
        "clients": {name: dict(caller.counts) for name, caller in callers.items()},
        "problems": waiting + [f"{name}: {text}" for name, c in callers.items() for text in c.problems],
    }


def story_user(random: np.random.Generator, key: int, events: int) -> Inputs:
    """Return the inputs of a user of the story's model, with times that no other user has."""
    times = FIRST_TIME + 10**6 * key + np.sort(random.integers(0, 10**6, events))
    columns = {"item": random.integers(0, STORY_ITEMS, events), "action": random.integers(0, ACTIONS, events)}
    lists = {f"history.{name}": Ragged.of([values.tolist()]) for name, values in (columns | {"time": times}).items()}
    return {"user": key, **lists}


def measure_erase(folder: Path, _: argparse.Namespace) -> dict[str, Any]:
    """Erase a user and scan the memory of users; then let a second key guess ids."""
    random = np.random.default_rng(9)
    write_users(folder / "repository", first_contents(random))
    items = {"item": np.arange(8), "price": np.zeros(8, np.float32)}
    keyed = Keyed(folder)
    for name in ("one", "two"):
        keyed.add(name, ["predict", "admin:write"])
    options = ("--workers", "2", "--user-state-mb", str(STORY_MB), "--api-keys", str(keyed.path))
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as live, ExitStack() as open_:

        def client(key: str, scheme: str = "http") -> Client:
            port = live.http_port if scheme == "http" else live.grpc_port
            return open_.enter_context(Client(f"{scheme}://127.0.0.1:{port}", timeout_s=60, key=keyed.secrets[key]))

        def keep(key: int, sequence_id: str | int) -> None:
            # On connections of their own, so that both workers have kept users.
            inputs = story_user(random, key, LENGTH)
            for _ in range(4):
                user = client("one").user(MODEL, sequence_id)
                user.prepare(inputs)
                user.score(items)

        for key in range(VICTIM + 1, VICTIM + 1 + OTHERS):
            keep(key, key)
        before = arena_words(live)
        for sequence_id in (VICTIM, "a session of the user"):
            keep(VICTIM, sequence_id)
        of_user = np.setdiff1d(arena_words(live), before)
        headers = {"content-type": "application/json"} | keyed.headers("one")
        body = json.dumps({"key": VICTIM}).encode()
        status, _, reply = live.request("POST", f"/admin/models/{MODEL}/erase", body, headers, admin=True)
        if status != 200:
            raise RuntimeError(f"an erasure was answered by {status}: {reply!r}")
        left = np.intersect1d(arena_words(live), of_user)
        gone = sum(is_gone(client("one").user(MODEL, each), items) for each in (VICTIM, "a session of the user"))
        others = range(VICTIM + 1, VICTIM + 1 + OTHERS)
        stay = sum(not is_gone(client("one").user(MODEL, key), items) for key in others)
        first, guesses = client("one"), {scheme: client("two", scheme) for scheme in ("http", "grpc")}
        for guess in range(GUESSED):
            first.user(MODEL, guess + 1000).prepare(story_user(random, 1 + guess % 70, 5))
        guessed = sum(
            not is_gone(two.user(MODEL, guess + 1000), items) for two in guesses.values() for guess in range(GUESSED)
        )
        for guess in range(GUESSED):
            guesses["http"].user(MODEL, guess + 1000).release()
        still = sum(not is_gone(first.user(MODEL, guess + 1000), items) for guess in range(GUESSED))
    return {
        "words_of_user": len(of_user), "words_left": len(left), "gone": gone, "others": OTHERS, "others_found": stay,
        "guesses": GUESSED * len(guesses), "guessed": guessed, "kept": GUESSED, "kept_after_guesses": still,
    }  # fmt: skip


def is_gone(user: Any, items: Inputs) -> bool:
    try:
        user.score(items)
    except UserGone:
        return True
    return False


def rows_of(parts: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, str, str, bool]]:
    """Yield the report's lines: part, what, figure, aim, whether it is met."""
    if latency := parts.get("latency"):
        texts = {"kept": "a kept user by candidates alone", "whole": "a whole request whose user's part is found"}
        for kind, text in texts.items():
            ratio = latency["ratios"][kind]
            yield "latency", f"a new user over {text}", f"{ratio['median']:.2f} ({ratio['low']:.2f})", "", True
    for wait_ms, figures in parts.get("prepare", {}).items():
        shown, met, aim = f"{figures['hidden']:.0%}", figures["hidden"] >= HIDDEN_AIM, f"{HIDDEN_AIM:.0%}"
        yield "prepare", f"hidden by a retrieval of {wait_ms} ms", shown, aim if wait_ms == "20" else "", met
        yield "prepare", "the user's part over that time", f"{figures['part_over_wait']:.2f}", "", True
        yield "prepare", "prepares answered within it", f"{figures['answered']:.0%}", "", True
        yield "prepare", "scores of prepared users that found the user's part", f"{figures['found']:.0%}", "", True
    if users := parts.get("users"):
        text, enough = f"users prepared, {users['budget_mb']:,} MiB", users["users"] >= 10**6
        yield "users", text, f"{users['users']:,}", "1,000,000", enough
        text = f"found afterwards, of {users['asked']:,} by chance"
        yield "users", text, f"{users['found']:.2%}", "", True
        yield "users", "of the newest", f"{users['newest_found']:.2%}", "", True
        yield "users", "made room for others, from that share", f"{users['evicted']:,}", "", True
        yield "users", "memory a user, bytes", f"{users['nbytes_a_user']:,.0f}", "", True
        yield "users", "of them sent", f"{users['sent_nbytes']:,}", "", True
        text = "a prepare's processor time over a whole request's"
        yield "users", text, f"{users['prepare_over_whole']:.2f}", "", True
        yield "users", "the last tenth of the prepares over the first", f"{users['last_over_first']:.2f}", "", True
    if triton := parts.get("triton"):
        yield "triton", "minutes", f"{triton['minutes']:g}", "10", triton["minutes"] >= 10
        for name, counts in triton["clients"].items():
            asked = sum(n for kind, n in counts.items() if kind != "scores")
            yield "triton", f"requests over {name}", f"{asked:,}", "", True
            yield "triton", f"scores computed again, {name}", f"{counts.get('scores', 0):,}", "", True
        yield "triton", "errors", f"{len(triton['problems'])}", "0", not triton["problems"]
    if erase := parts.get("erase"):
        text = f"words that came with a user ({erase['words_of_user']:,}) and are left once it is erased"
        yield "erase", text, f"{erase['words_left']:,}", "0", not erase["words_left"]
        yield "erase", "of its two sequence ids gone", f"{erase['gone']}", "2", erase["gone"] == 2
        others, kept = erase["others"], erase["kept"]
        met = erase["others_found"] == others
        yield "erase", f"of {others} other users still found", f"{erase['others_found']}", f"{others}", met
        text = f"of {erase['guesses']} guesses of another key answered"
        yield "erase", text, f"{erase['guessed']}", "0", not erase["guessed"]
        text, met = "users that it has not released by guessing", erase["kept_after_guesses"] == kept
        yield "erase", text, f"{erase['kept_after_guesses']}", f"{kept}", met


def page(results: dict[str, Any]) -> str:
    lines = opening("User state in a live service", __doc__ or "", results)
    rows = [
        (part, text, figure if met or not aim else f"{figure}, missed", aim)
        for part, text, figure, aim, met in rows_of(results["parts"])
    ]
    problems = [f"- {text}" for text in results["parts"].get("triton", {}).get("problems", [])]
    return "\n".join([*lines, table(["", "", "measured", "aim"], rows), "", *problems, *([""] if problems else [])])


MEASURES = {"users": measure_users, "triton": measure_triton, "erase": measure_erase}


def main() -> int:
    """Return 0 if no client met an error, and nothing was found that has to be gone."""
    parser = argparse.ArgumentParser(prog="make -C loadtest state-service", description=__doc__)
    add = parser.add_argument
    add("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    add("--rounds", type=int, default=100, help="turns of latency and prepare [100]")
    add("--users", type=int, default=1_000_000, help="[1000000]")
    add("--budget-mb", type=int, default=6144, help="memory of these users [6144]")
    add("--asked", type=int, default=20_000, help="users looked for afterwards [20000]")
    add("--minutes", type=float, default=10, help="of Triton's clients [10]")
    add("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    stored = options.out / "state-service.json"
    results: dict[str, Any] = json.loads(stored.read_bytes()) if stored.exists() else {"parts": {}}
    results |= {"machine": machine(), "origin": origin("-C loadtest state-service", "ARGS", sys.argv[1:])}
    chosen = {"latency": measure_latency} if {"latency", "prepare"} & set(options.parts) else {}
    chosen |= {part: measure for part, measure in MEASURES.items() if part in options.parts}
    with tempfile.TemporaryDirectory(prefix="freshet-service-") as folder:
        for name, measure in chosen.items():
            figures = measure(Path(folder) / name, options)
            measured = figures if name == "latency" else {name: figures}
            print(json.dumps(measured), flush=True)
            results["parts"] |= measured
            stored.write_text(json.dumps(results, indent=1) + "\n")
            (options.out / "state-service.md").write_text(page(results))
    must = ("triton", "erase")
    return int(any(aim and not met for part, _, _, aim, met in rows_of(results["parts"]) if part in must))


if __name__ == "__main__":
    sys.exit(main())
