"""`make -C loadtest shortage`: deltas, rollbacks and a memory limit that comes and goes; loadtest/results/shortage.md.

The process that changes models (the only one, or the supervisor of two workers) may take no more memory than it has and
a little (RLIMIT_DATA; from none to a few MiB), for a second at a time, while deltas of up to 20,000 rows are uploaded
and rolled back. Clients ask all the while; each reply is recomputed by plain numpy for the generation that it
names. What was refused must never be served: the next delta of the same step is another one. In between, without the
limit, the server has to be well again within a minute (libraries in C++ end a process that lacks memory: then it is
started anew, as an orchestrator does); at the end what it serves equals the repository opened anew, and
SIGTERM ends it while it is short of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from freshet_serving.processor.package.delta import write_delta
from loadtest.reports.report import machine, origin
from tests.e2e.servers import ALONE, LiveServer
from tests.faults.load import Asker, Excuses, HttpSide, RpcSide, Tally
from tests.faults.truth import Change, Truth, full_state, weights_of
from tests.processor.versions.models import open_model
from tests.support.packages import write_package

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"
MODEL, VERSION, UNDO_DEPTH = "small", 1, 16
LAYOUTS = {"one process": ALONE, "two workers": ("--workers", "2")}
WIDE = range(1000, 21_000)
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
"""What the C library has freed it gives back at once, else it has more than the limit says. The supervisor's alone: a
process that answers runs libraries in C++ (gRPC, executables), and those end it when they cannot have a few bytes."""
WELL_WITHIN_S, ENDS_WITHIN_S = 60.0, 40.0
SHORT_SHARE = 0.6
"""Of the changes, those that begin under the limit."""
AFTERWARDS_S = 0.5
"""What was begun under the limit may end after it."""


@dataclass(frozen=True)
class Try(Change):
    """One content for a step, of many: another try of it must not be the same."""

    attempt: int = 0

    def draw(self):
        users, removed, number, dense = Change(VERSION, self.step * 100 + self.attempt).draw()
        draw = random.Random(f"{self.step}/{self.attempt}")
        wide = WIDE[: draw.choice([0, 500, 3_000, 20_000])]
        return [*users, *wide], removed, number, dense

    def bytes(self, folder, parent):
        path = folder / ".tried"
        write_delta(path, self.delta(parent))
        return path.read_bytes()


class StrictTruth(Truth):
    """A truth that can be taken back: what was refused is met by nobody."""

    def forget(self, generation):
        with self._lock:
            self._states.pop(generation, None)
            for key in [key for key in self._scores if key[0] == generation]:
                del self._scores[key]


class Squeeze(threading.Thread):
    """Limits a process's memory again and again; `free` waits until it is not, and keeps it so for a block."""

    def __init__(self, server, excuses, seed):
        """server: () -> the one that runs."""
        super().__init__(daemon=True)
        self._server, self._excuses, self._draw = server, excuses, random.Random(seed)
        self._turn, self.ended, self.times = threading.Lock(), threading.Event(), 0
        self.short = threading.Event()

    @property
    def _pid(self):
        return self._server().process.pid

    def limit(self, spare):
        status = Path(f"/proc/{self._pid}/status").read_text()
        used = int(re.search(r"VmData:\s+(\d+)", status)[1]) << 10
        _, hard = resource.prlimit(self._pid, resource.RLIMIT_DATA)
        resource.prlimit(self._pid, resource.RLIMIT_DATA, (used + spare, hard))

    def lift(self):
        _, hard = resource.prlimit(self._pid, resource.RLIMIT_DATA)
        resource.prlimit(self._pid, resource.RLIMIT_DATA, (hard, hard))

    @contextlib.contextmanager
    def free(self):
        with self._turn:
            yield

    def run(self):
        while not self.ended.wait(self._draw.uniform(0.1, 0.6)):
            with self._turn, self._excuses.span("short of memory"):
                # It may have ended for want of memory.
                with contextlib.suppress(ProcessLookupError, FileNotFoundError, TypeError, AttributeError):
                    self.limit(int(self._draw.choice([0, 0, 0.1, 0.5, 1, 2]) * self._draw.random() * (1 << 20)))
                    self.times += 1
                    self.short.set()
                    self.ended.wait(self._draw.uniform(0.3, 1.5))
                    self.lift()
                self.short.clear()
                self.ended.wait(AFTERWARDS_S)


class Campaign:
    def __init__(self, folder, layout, seed):
        self.folder, self.layout, self.draw = folder, layout, random.Random(seed)
        self.root, self.log = folder / "repository", folder / "server.log"
        self.truth, self.excuses, self.tally = StrictTruth(), Excuses(), Tally()
        self.outcomes, self.attempts = Counter(), Counter()
        self.slowest_well_s = 0.0

    def run(self, seconds, changes):
        write_package(self.root, VERSION, users=range(20), seed=VERSION, weights=weights_of)
        self.truth.know("1.0", full_state(VERSION))
        options = (*LAYOUTS[self.layout], "--undo-depth", str(UNDO_DEPTH), "--drain-s", "0.5")
        options = (*options, "--shutdown-timeout-s", "5")
        env = {**os.environ, **(GIVING_BACK if self.layout == "two workers" else {})}
        self.start = lambda: LiveServer(self.root, *options, log=self.log, env=env)
        self.server = server = self.start()
        askers = [
            Asker(side, lambda: self.server, self.truth, self.excuses, self.tally, seed)
            for seed, side in enumerate([HttpSide("kserve"), HttpSide("tfs"), RpcSide()])
        ]
        squeeze = Squeeze(lambda: self.server, self.excuses, self.draw.random())
        try:
            server.wait_ready()
            for thread in (*askers, squeeze):
                thread.start()
            end_s, done = time.monotonic() + seconds, 0
            while time.monotonic() < end_s and done < changes:
                self.change(squeeze)
                done += 1
            with squeeze.free():
                self.compare()
                squeeze.ended.set()
            for asker in askers:
                asker.stopped.set()
            for thread in (*askers, squeeze):
                thread.join()
            self.end(squeeze)
        finally:
            squeeze.ended.set()
            if self.server is not None and self.server.process.poll() is None:
                self.server.process.kill()
                self.server.process.wait()
        return squeeze.times, done

    def change(self, squeeze):
        """One delta or rollback, whatever comes of it; what that was is found out without the limit."""
        with squeeze.free():
            generation, top = self.well()
        if self.draw.random() < SHORT_SHARE:
            squeeze.short.wait(2.0)
        step = int(generation.partition(".")[2])
        if step and self.draw.random() < 0.2:
            target = f"{VERSION}.{self.draw.randrange(max(0, step - UNDO_DEPTH - 2), step)}"
            status = self.ask(lambda: self.server.post_json(f"/admin/models/{MODEL}/rollback", {"generation": target}))
            self.outcomes[f"rollback {status}"] += 1
            return
        self.attempts[top] += 1
        tried, named = Try(VERSION, top, self.attempts[top]), f"{VERSION}.{top}"
        self.truth.know(named, tried.after(self.truth.state(generation)))
        status = self.ask(lambda: self.server.upload(MODEL, tried.bytes(self.folder, step)))
        self.outcomes[f"delta {status}"] += 1
        if status != 200:
            with squeeze.free():
                if self.well()[1] == top:
                    self.truth.forget(named)

    def ask(self, request):
        try:
            return request()[0]
        except (OSError, ValueError, KeyError) as error:
            return type(error).__name__

    def well(self):
        """(generation, next step) once the server says that it is well; without the limit."""
        begun_s = time.monotonic()
        why = "?"
        while time.monotonic() - begun_s < WELL_WITHIN_S:
            if self.server.process.poll() is not None:
                self.outcomes[f"ended by {-self.server.process.returncode}"] += 1
                self.server, dead = None, self.server
                dead.process.wait()
                coming = self.start()
                coming.wait_ready()
                self.server = coming
            server = self.server
            try:
                served = json.loads(server.get("/admin/models", admin=True)[2])["models"][MODEL]["served"]
                version = served[str(VERSION)]
                why = f"{version['chain']}"
                if version["chain"]["state"] == "HELD":
                    server.post_json(f"/admin/models/{MODEL}/rollback", {"generation": version["generation"]})
                elif version["chain"]["state"] == "CURRENT" and server.get("/v2/health/ready")[0] == 200:
                    self.slowest_well_s = max(self.slowest_well_s, time.monotonic() - begun_s)
                    return version["generation"], version["chain"]["next_step"]
            except Exception as error:
                why = repr(error)
            time.sleep(0.05)
        print(self.log.read_text(errors="replace")[-8000:], flush=True)
        raise AssertionError(f"stuck: not well within {WELL_WITHIN_S:g} s: {why}")

    def compare(self):
        """What is served against the repository opened anew."""
        generation, _ = self.well()
        version = open_model(self.root, UNDO_DEPTH).pick()
        state = self.truth.state(generation)
        if str(version.generation) != generation:
            self.tally.fault("differs", f"{generation} is served, opened anew {version.generation}")
        keys, _ = version.export()[0]["user"]
        if sorted(state.users) != keys.tolist():
            self.tally.fault("differs", f"{generation} has other ids than its deltas")
        if not np.isfinite(version.export()[0]["user"][1]).all():
            self.tally.fault("differs", "rows that are not finite")

    def end(self, squeeze):
        """SIGTERM, with next to no memory."""
        server = self.server
        begun_s = time.monotonic()
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            squeeze.limit(1 << 18)
            server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(ENDS_WITHIN_S)
        except Exception:
            self.tally.fault("no end", f"SIGTERM did not end it within {ENDS_WITHIN_S:g} s")
        self.ended_s = time.monotonic() - begun_s


def main() -> int:
    parser = argparse.ArgumentParser(description="a server that is short of memory again and again")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    lines = ["# Short of memory", "", (__doc__ or "").partition("\n\n")[2].strip(), ""]
    lines += ["| layout | minutes | limited | deltas and rollbacks | not done | replies checked | lost while short |"]
    lines[-1] += " opened anew | ended | slowest to be well | SIGTERM | faults |"
    lines += ["|---|---|---|---|---|---|---|---|---|---|---|---|"]
    rounds, faults = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for layout in LAYOUTS:
            place = Path(folder) / layout.partition(" ")[0]
            place.mkdir()
            campaign = Campaign(place, layout, options.seed)
            times, changes = campaign.run(options.minutes * 60, options.changes)
            done = sum(count for outcome, count in campaign.outcomes.items() if outcome.endswith(" 200"))
            died = sum(count for outcome, count in campaign.outcomes.items() if outcome.startswith("ended"))
            counts, layout_faults = campaign.tally.counts, campaign.tally.faults
            anew = campaign.log.read_text(errors="replace").count("could not be undone")
            lost = sum(counts[kind] for kind in counts if kind.startswith(("excused", "found nobody")))
            lines.append(
                f"| {layout} | {options.minutes:g} | {times} times | {changes} | {changes - done} | "
                f"{counts['checked']:,} | {lost} | {anew} | {died} | {campaign.slowest_well_s:.1f} s | "
                f"{campaign.ended_s:.1f} s | {len(layout_faults)} |"
            )
            print(lines[-1], dict(campaign.outcomes), dict(counts), flush=True)
            faults += [f"{layout}: {fault}" for fault in layout_faults]
            rounds[layout] = {
                "limited": times,
                "changes": changes,
                "outcomes": dict(campaign.outcomes),
                "counts": dict(counts),
                "opened_anew": anew,
                "slowest_well_s": campaign.slowest_well_s,
                "ended_s": campaign.ended_s,
                "faults": layout_faults,
            }
            if layout_faults:
                print(campaign.log.read_text(errors="replace")[-6000:], flush=True)
    lines += ["", "Faults: none." if not faults else "Faults:", *(f"- {fault}" for fault in faults)]
    (options.out / "shortage.md").write_text("\n".join(lines).rstrip() + "\n")
    about = {"machine": machine(), "origin": origin("-C loadtest shortage", "ARGS", sys.argv[1:])}
    (options.out / "shortage.json").write_text(json.dumps({**about, "rounds": rounds}, indent=1) + "\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
