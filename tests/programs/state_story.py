"""`make -C loadtest state-story`: kept users while everything changes; loadtest/results/state-story.md.

Live servers of both layouts serve HSTU and STCA over histories of up to 320 events, with memory for a part of their
users. In turn they use exact user states alone, and states of up to 20 steps before (bounded). Four clients, each with
users of its own and in its own way (Triton's client, ours over HTTP and gRPC, TensorFlow Serving's REST API), prepare,
append (also late and twice), replace, remove, score, score with events, release and erase without a pause, and send
other requests whole. Meanwhile deltas change and remove rows and bring new dense weights, much is rolled back, also
further than the undo log reaches, and workers are killed. Users and states live for 5 seconds in place of half an hour,
so many expire (tests/programs/short_lived.py); others make room.

Each client has a plain list of what the history of each of its users must be. Scores are computed again from it by a
checker of its own (tests/programs/user_checker.py), which knows what was published and shares no code with the product,
under the generation that the reply names, within 1e-5. Where a reply names an older generation of the user's part too,
they are computed under both; the older one has to be within the bound, and one that the other continues. A request that
is sent after a change was acknowledged has to be answered by that change's generation or a later one. A user may be
gone (410) at any time, and has to be after its time. One that was gone, released or erased has to stay gone until it is
prepared anew. A version of a user has to ascend with a change, and to stay without one; a change that expects another
version has to be refused. Requests that a killed worker loses are sent again.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.reports.report import machine, opening, origin, store, table
from tests.e2e.servers import ALONE, LiveServer
from tests.programs.live_changes import BEYOND, KILLS, ROLLBACKS, UNDO_DEPTH, LiveChanges, one_of
from tests.programs.short_lived import TTL_S
from tests.programs.user_checker import (
    ACTIONS,
    ITEMS,
    LENGTH,
    NETWORKS,
    USERS,
    Change,
    Copy,
    changed,
    differ,
    first_contents,
    scores,
    shapes,
)
from tests.programs.user_clients import ATTEMPTS, CLIENTS, CONFLICT, GONE, Asked, Transient
from tests.support.user_story import CANDIDATES, MODEL, user_delta, write_users

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
LAYOUTS = {"alone": ALONE, "two workers": ("--workers", "2")}
EXACT, BOUNDED = MODES = ("exact", "bounded")
BOUND_STEPS = 20
MEGABYTES = 32
CHANGES = {"rows": 85, "removals": 6, "dense weights": 3, "everything": 1}
MISSED = "missed: "
CALLS = {
    "score": 60, "score with events": 12, "append": 12, "append late": 6, "append twice": 5, "replace": 6, "remove": 6,
    "prepare anew": 3, "prepare what is kept": 4, "append with an outdated version": 2, "release": 2, "erase": 3,
    "whole": 8,
}  # fmt: skip
PREPARE, GONE_ASKED = "prepare", "score of a user that is gone"
PAUSE_S, THINKING_S, SWITCH_S = 0.02, 0.04, 0.0005
"""Most between changes, most between requests of a client, and between threads of this process: deltas wait for none
of them long."""
LATE_S = 0.1
"""Seconds that users may live beyond their time: clocks tick."""
RECONNECTS, KEPT_STEPS, SHOWN = 0.1, 400, 5
FIRST_TIME, MOST_BETWEEN_S = 1_700_000_000, 60
# A version that is built anew counts anew, so figures are read before.
MISSES = re.compile(r'^freshet_model_user_state_misses_total\{.*cause="(\w+)".*\} (\S+)$', re.M)
COUNTED = re.compile(r"^freshet_model_user_state_(hits|older_hits|kept|not_kept|unasked)_total\{.*\} (\S+)$", re.M)


class Changes(LiveChanges):
    """Changes of one server. bound_steps: by how many steps a user's part may be older."""

    def __init__(self, live, folder, contents, seed, bound_steps):
        super().__init__(live, MODEL, folder, np.random.default_rng(seed), CHANGES | {ROLLBACKS: 6, KILLS: 1})
        self._contents, self._network = {0: contents}, contents.network
        self._parents, self._bound_steps, self.states, self._read = {}, bound_steps, Counter(), {}

    def before_a_loss(self):
        self.read_states()

    def read_states(self):
        """Add what the server has counted of users' parts since the last time."""
        text, before = self.live.get("/metrics")[2].decode(), self._read
        self._read = {f"{MISSED}{cause}": int(float(count)) for cause, count in MISSES.findall(text)}
        self._read |= {name: int(float(count)) for name, count in COUNTED.findall(text)}
        for name, count in self._read.items():
            self.states[name] += count - (before.get(name, 0) if count >= before.get(name, 0) else 0)

    @property
    def deltas(self):
        return sum(self.done[name] for name in CHANGES)

    def of(self, step):
        """Return what a step holds; None if nobody has published it, or long ago."""
        with self.lock:
            return self._contents.get(step)

    def may_be_older(self, step, state_step):
        """Report whether a user's part of a step may be used under a later one."""
        with self.lock:
            if not step - self._bound_steps <= state_step < step:
                return False
            while step > state_step:
                step = self._parents.get(step, -1)
            return step == state_step

    def delta(self, kind, step):
        parent = self.line[-1]
        change = self._change(kind)
        after = changed(self._contents[parent], change, self.random)
        with self.lock:
            self._contents[step], self._parents[step] = after, parent
            for old in self.forgotten(KEPT_STEPS):
                self._contents.pop(old, None)
        return user_delta(after, change, step, parent)

    def _change(self, name):
        random, sizes = self.random, {"item": ITEMS, "user": USERS, "action": ACTIONS}

        def some(table, most):
            return random.choice(sizes[table], random.integers(1, most + 1), replace=False).tolist()

        dense = ()
        if name in ("dense weights", "everything"):
            names = list(shapes(self._network))
            dense = tuple(names if random.random() < 0.2 else random.choice(names, 3, replace=False).tolist())
        rows = {} if name == "dense weights" else {"item": some("item", 4)}
        if name in ("rows", "everything") and random.random() < 0.3:
            rows["user"] = some("user", 2)
        if name == "everything":
            rows["action"] = some("action", 1)
        gone = [key for key in some("item", 6) if key not in rows["item"]] if name == "removals" else []
        return Change(rows, {"item": gone} if gone else {}, dense)


@dataclass
class Person:
    """A user of a client.

    key: of the user's input. copy: what its history must be; None while it has to be gone. version: of the last reply.
    now: time of its newest event so far. dies_s: monotonic seconds from which on it has to be gone. before: its events
    when they were last told.
    """

    key: int
    copy: Copy | None = None
    version: int = 0
    now: int = FIRST_TIME
    dies_s: float = 0.0
    before: tuple = ()


class Caller:
    """One client, and what it knows of its users. One thread uses it.

    counts: replies and what was found in them. calls: requests by kind. problems: what is wrong.
    """

    def __init__(self, changes, client, keys, random):
        self._changes, self._client, self._random = changes, client, random
        self._people = [Person(key) for key in keys]
        self.counts, self.calls, self.problems, self.steps = Counter(), Counter(), [], set()

    def turn(self):
        """Send one request about a user, popular ones more often, and check the reply."""
        random = self._random
        if random.random() < RECONNECTS:
            # By either worker.
            self._reconnect()
        person = self._people[int(len(self._people) * random.random() ** 2)]
        if person.copy is None:
            kind = GONE_ASKED if random.random() < 0.2 else PREPARE
        else:
            kind = one_of(CALLS, random)
        self.calls[kind] += 1
        if kind == "erase":
            self._erase(person)
        elif kind == "append with an outdated version":
            self._append_outdated(person)
        else:
            self._change_or_score(kind, person)

    def _change_or_score(self, kind, person):
        random = self._random
        name, beside = str(person.key), self._candidates(random.random() < 0.4)
        copy = Copy(person.key, person.copy.events) if person.copy else Copy(person.key)
        asked = Asked(name, **self._candidates(True))
        if kind == "whole":
            asked = Asked(None, "score", person.key, copy.events, **self._candidates(True))
        elif kind in (PREPARE, "prepare anew"):
            again = kind == PREPARE and random.random() < 0.7
            copy = Copy(person.key, person.before if again else self._history(person))
            asked = Asked(name, "prepare", person.key, copy.events, **beside)
        elif kind == "prepare what is kept":
            asked = Asked(name, "prepare", **beside)
        elif kind == "release":
            asked = Asked(name, releases=True, **beside)
        elif kind == "remove":
            events = self._some(copy.events, 3) + self._events(person, 1)[: random.random() < 0.2]
            copy.remove(events)
            asked = Asked(name, "remove", events=events, **beside)
        elif kind == "replace":
            others = [(at, int(random.integers(0, ITEMS)), action) for at, _, action in self._some(copy.events, 2)]
            copy.replace(others)
            asked = Asked(name, "replace", events=others, **beside)
        elif kind in ("append", "append late", "append twice", "score with events"):
            events = (
                self._late(copy, person) if kind == "append late" else self._events(person, int(random.integers(1, 4)))
            )
            if kind == "append twice":
                events = [*self._some(copy.events, 2), *events[:1]]
            copy.append(events)
            candidates = self._candidates(True) if kind == "score with events" else beside
            asked = Asked(name, "append" if kind != "score with events" else "score", events=events, **candidates)
        elif kind == GONE_ASKED:
            copy = None
        replied, acknowledged = self._ask(asked)
        self._check(kind, person, asked, copy, replied, acknowledged)

    def _check(self, kind, person, asked, copy, replied, acknowledged):
        too_old = person.copy is not None and self._sent_s > person.dies_s
        if replied.error == CONFLICT:
            self._wrong("a change without a version was a conflict", kind, asked)
        elif replied.error == GONE:
            self.counts["gone"] += person.copy is not None
            self.counts["too old"] += too_old
            self.counts["gone as they have to be"] += person.copy is None
            if (asked.change == "prepare" and asked.events is not None) or asked.user is None:
                self._wrong("a request with the whole user was answered by 410", kind, asked)
            person.copy = None
        elif copy is None:
            self._wrong("a user was served that has to be gone", kind, asked)
        else:
            self._check_scores(kind, asked, copy, replied, acknowledged)
            prepares = asked.change == "prepare" and asked.events is not None
            if too_old and asked.user is not None and not prepares and not (asked.releases and not asked.items):
                self._wrong("a user was served after its time", kind, asked)
            if asked.user is not None and not asked.releases:
                same = asked.change != "prepare" and person.copy is not None and copy.events == person.copy.events
                same = same or (asked.change == "prepare" and asked.events is None)
                if replied.version != person.version if same else replied.version <= person.version:
                    text = f"version {replied.version} after {person.version}, {'no' if same else 'a'} change"
                    self._wrong(text, kind, asked)
                person.copy, person.version, person.before = copy, replied.version, tuple(copy.events)
                person.dies_s = person.dies_s if same else time.monotonic() + TTL_S + LATE_S
            elif asked.releases:
                person.copy = None

    def _check_scores(self, kind, asked, copy, replied, acknowledged):
        self.steps.add(replied.step)
        contents = self._changes.of(replied.step)
        if contents is None:
            self._wrong(
                f"a reply names step {replied.step}, which nobody has published or which is long gone", kind, asked
            )
            return
        self.counts["stale"] += (stale := self._changes.is_stale(replied.step, acknowledged))
        if stale:
            self._wrong(f"a reply is of step {replied.step}, older than a change that was acknowledged", kind, asked)
        if not asked.items:
            self.counts["replies without scores"] += 1
            if len(replied.scores):
                self._wrong("a reply has scores without candidates", kind, asked)
            return
        self.counts["replies"] += 1
        self.counts["scores"] += len(asked.items)
        self.counts["events"] += len(copy.events)
        older = None
        if replied.state_step is not None:
            self.counts["of two generations"] += 1
            older = self._changes.of(replied.state_step)
            if older is None or not self._changes.may_be_older(replied.step, replied.state_step):
                self._wrong(f"the user's part is of step {replied.state_step} under {replied.step}", kind, asked)
                return
        expected = scores(contents, copy, list(asked.items), list(asked.prices), older)
        if differ(expected, replied.scores):
            off = np.abs(expected - replied.scores).max() if len(expected) == len(replied.scores) else "other lengths"
            self._wrong(f"scores of step {replied.step} are off by {off}", kind, asked)

    def _append_outdated(self, person):
        events = self._events(person, 1)
        asked = Asked(str(person.key), "append", events=events, version=max(0, person.version - 1))
        replied, _ = self._ask(asked)
        self.counts["conflicts"] += replied.error == CONFLICT
        if replied.error == GONE:
            self.counts["gone"] += 1
            person.copy = None
        elif replied.error != CONFLICT:
            self._wrong("a change that expects an older version was made", "append", asked)

    def _erase(self, person):
        for _ in range(ATTEMPTS):
            status, reply = self._changes.live.post_json(f"/admin/models/{MODEL}/erase", {"key": person.key})
            if status == 200 and not any("worker " in place or "failed" in place for place in reply["not_reached"]):
                break
            time.sleep(0.1)
        else:
            raise RuntimeError(f"an erasure was answered by {status}: {reply}")
        person.copy = None
        asked = Asked(str(person.key), **self._candidates(True))
        self._check(GONE_ASKED, person, asked, None, *self._ask(asked))

    def _ask(self, asked):
        """The reply, and how many changes had been acknowledged before the request was sent."""
        acknowledged, self._sent_s = self._changes.acknowledged, time.monotonic()
        for attempt in range(ATTEMPTS):
            try:
                return self._client.ask(asked), acknowledged
            except Transient as error:
                self.counts["sent again"] += 1
                last = error
            self._reconnect()
            time.sleep(0.05 * attempt)
        raise RuntimeError(f"{ATTEMPTS} times without an answer: {last}")

    def close(self):
        self._client.close()

    def _reconnect(self):
        self._client.close()
        self._client.connect()

    def _wrong(self, text, kind, asked):
        self.counts["wrong"] += 1
        self.problems.append(f"{kind} of user {asked.user or asked.key} by {type(self._client).__name__}: {text}")

    # Random parts of requests.

    def _candidates(self, chosen):
        if not chosen:
            return {}
        count, random = int(self._random.integers(2, CANDIDATES + 1)), self._random
        prices = random.normal(size=count).astype(np.float32)
        return {"items": tuple(random.integers(0, ITEMS, count).tolist()), "prices": tuple(prices.tolist())}

    def _event(self, at):
        return int(at), int(self._random.integers(0, ITEMS)), int(self._random.integers(0, ACTIONS))

    def _events(self, person, count):
        """New events of a user."""
        times = person.now + np.cumsum(self._random.integers(1, MOST_BETWEEN_S, count))
        person.now = int(times[-1])
        return [self._event(at) for at in times.tolist()]

    def _history(self, person):
        count = int(self._random.choice([0, 1, LENGTH, LENGTH + 9, *self._random.integers(80, LENGTH, 12)]))
        return self._events(person, count) if count else []

    def _late(self, copy, person):
        times = [event[0] for event in copy.events] or [person.now]
        return [self._event(self._random.integers(times[0], times[-1] + 1)) for _ in range(2)]

    def _some(self, events, most):
        places = self._random.permutation(len(events))[: self._random.integers(1, most + 1)]
        return [events[place] for place in places.tolist()]


class Callers:
    """All clients of one server, each by a thread of its own."""

    def __init__(self, changes, seed):
        each = USERS // len(CLIENTS)
        self.callers = {
            name: Caller(changes, make(changes.live), range(n * each, (n + 1) * each), np.random.default_rng((seed, n)))
            for n, (name, make) in enumerate(CLIENTS.items())
        }
        self._stop, self.waiting = threading.Event(), 0

    def __enter__(self):
        self._threads = [threading.Thread(target=self._go, args=(c,), daemon=True) for c in self.callers.values()]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            self.waiting += thread.is_alive()

    def _go(self, caller):
        pauses = np.random.default_rng(len(self.callers))
        while not self._stop.is_set():
            try:
                caller.turn()
                time.sleep(pauses.random() * THINKING_S)
            except Exception as error:
                caller.problems.append(f"{type(error).__name__}: {error}")
        caller.close()

    @property
    def problems(self):
        waiting = ["a client waits for a reply without end"] * self.waiting
        return waiting + [f"{name}: {text}" for name, caller in self.callers.items() for text in caller.problems]

    def total(self, name):
        """Counts or calls of all clients."""
        return dict(sum((Counter(getattr(caller, name)) for caller in self.callers.values()), Counter()))


def story(folder, network, mode, options, seconds, deltas, seed):
    """One server, for so many seconds or until there were so many deltas; returns its figures."""
    folder.mkdir(parents=True)
    contents = first_contents(np.random.default_rng(seed), network)
    write_users(folder / "repository", contents)
    if mode == BOUNDED:
        (folder / "serve.toml").write_text(f"[model.{MODEL}.user_state]\nsteps = {BOUND_STEPS}\n")
        options = (*options, "--config", str(folder / "serve.toml"))
    arguments = (*options, "--user-state-mb", str(MEGABYTES), "--delta-guard", "off", "--undo-depth", str(UNDO_DEPTH))
    module = "tests.programs.short_lived"
    with LiveServer(folder / "repository", *arguments, log=folder / "serve.log", module=module) as live:
        changes, pauses = (
            Changes(live, folder, contents, seed, BOUND_STEPS * (mode == BOUNDED)),
            np.random.default_rng((seed, 9)),
        )
        began_s, failed = time.monotonic(), []
        with Callers(changes, seed) as callers:
            while time.monotonic() < began_s + seconds and changes.deltas < deltas and len(callers.problems) < SHOWN:
                try:
                    changes.act()
                except (RuntimeError, OSError, KeyError) as error:
                    failed.append(f"{type(error).__name__}: {error}")
                    break
                time.sleep(pauses.random() * PAUSE_S)
            lasted_s = time.monotonic() - began_s
        changes.read_states()
    problems = failed + callers.problems
    return {
        "seconds": round(lasted_s),
        "deltas": changes.deltas,
        "changes": dict(changes.done),
        "generations": len(set().union(*(caller.steps for caller in callers.callers.values()))),
        "replies": {name: caller.counts["replies"] for name, caller in callers.callers.items()},
        "counts": callers.total("counts"),
        "calls": callers.total("calls"),
        "states": dict(changes.states),
        "problems": problems[:SHOWN],
    }


COUNTS = {
    "replies": "replies with scores, computed again",
    "of two generations": "of them with a user's part of an older generation",
    "scores": "scores in them", "events": "events of their users",
    "replies without scores": "replies to changes alone", "gone": "users found gone (410)",
    "too old": "of them too old; the others made room or were lost with a worker",
    "gone as they have to be": "asked for while they had to be gone, and were", "conflicts": "outdated changes refused",
    "sent again": "requests sent again, after a kill or during an erasure", "wrong": "wrong replies",
    "stale": "of them older than a change acknowledged before",
}  # fmt: skip
STATES = {
    "hits": "user's parts used again", "older_hits": "of them of an older generation",
    "kept": "user's parts kept", "not_kept": "computed and not kept",
    "unasked": "requests not looked for",
}  # fmt: skip


def page(results):
    stories = results["stories"]
    causes = sorted({name for figures in stories.values() for name in figures["states"] if name.startswith(MISSED)})
    lines = [("changes", kind, f"of them with {kind}") for kind in CHANGES]
    lines += [("changes", kind, kind) for kind in (ROLLBACKS, BEYOND, KILLS)]
    lines += [("calls", name, f"requests: {name}") for name in (PREPARE, *CALLS, GONE_ASKED)]
    lines += [("counts", name, text) for name, text in COUNTS.items()]
    lines += [("replies", name, f"scored by {name}") for name in CLIENTS]
    lines += [("states", name, text) for name, text in STATES.items()]
    lines += [("states", name, f"user's parts not found: {name.removeprefix(MISSED)}") for name in causes]
    rows = [["minutes", *(f"{figures['seconds'] / 60:.1f}" for figures in stories.values())]]
    rows.append(["deltas", *(f"{figures['deltas']:,}" for figures in stories.values())])
    for part, name, text in lines:
        rows.append([text, *(f"{figures[part].get(name, 0):,}" for figures in stories.values())])
    rows.append(["generations that replies name", *(f"{figures['generations']:,}" for figures in stories.values())])
    problems = [f"- {name}: {problem}" for name, figures in stories.items() for problem in figures["problems"]]
    head = opening("Kept users while everything changes", __doc__ or "", results)
    return "\n".join([*head, table(["", *stories], rows), "", *problems, *([""] if problems else [])])


def main() -> int:
    """0 when every reply was that of its user, under the generation that it names."""
    parser = argparse.ArgumentParser(prog="make -C loadtest state-story", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="most, of all servers together [60]")
    parser.add_argument("--deltas", type=int, default=10_000, help="of all servers together [10000]")
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)
    about = {"machine": machine(), "origin": origin("-C loadtest state-story", "ARGS", sys.argv[1:])}
    stories = [
        (network, list(MODES)[(n + m) % len(MODES)], layout)
        for m, layout in enumerate(LAYOUTS)
        for n, network in enumerate(NETWORKS)
    ]
    seconds, deltas = options.minutes * 60 / len(stories), options.deltas / len(stories)
    results = about | {"stories": {}}
    with tempfile.TemporaryDirectory(prefix="freshet-users-") as folder:
        for number, (network, mode, layout) in enumerate(stories):
            place, name, seed = Path(folder) / str(number), f"{network}, {mode}, {layout}", options.seed + number
            figures = story(place, network, mode, LAYOUTS[layout], seconds, deltas, seed)
            results["stories"][name] = figures
            print(f"{name}: {figures}", flush=True)
            store(options.out, "state-story", results, page(results))
    return int(any(figures["problems"] for figures in results["stories"].values()))


if __name__ == "__main__":
    sys.exit(main())
