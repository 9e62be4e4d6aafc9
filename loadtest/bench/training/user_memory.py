"""`make -C loadtest user-memory`: memory of the events of all users, against its budget; results/user-memory.md.

A process adds an event of every user, round by round, each round in another order: the worst case, as no user is hot.
It reads what each batch of 4,096 rows sees, as training does, takes an increment each 100,000 rows and writes a whole
checkpoint at the end; another process reads that checkpoint. Users are numbers, or texts of 16 letters whose keys are
kept for an online store. Memory is resident memory beyond that of the process with its code loaded and the same done
for 1,000 users, each 5 ms: anonymous, and mapped from files. Budget: `memory_mb` of the sequence.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from loadtest.reports.report import machine, opening, origin

RESULTS = Path(__file__).parents[2] / "results"
SIDE = "loadtest.bench.training.user_memory_side"
EVENTS, MEMORY_MB, LOOK_S = 20, 256, 0.005


class Watch:
    """The resident memory of a process, looked at all the time. peaks: by phase, anonymous and mapped bytes."""

    def __init__(self, pid: int) -> None:
        self.phase, self.peaks = "", defaultdict[str, list[int]](lambda: [0, 0])
        self._status, self._ended = Path(f"/proc/{pid}/status"), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            phase = self.phase
            try:
                lines = dict(line.split(":") for line in self._status.read_text().splitlines())
                sizes = {name: int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssFile", "RssShmem")}
            except (OSError, KeyError):
                return
            now = [sizes["RssAnon"], sizes["RssFile"] + sizes["RssShmem"]]
            self.peaks[phase] = [max(pair) for pair in zip(self.peaks[phase], now)]


def measured(file: Path, users: int, events: int, memory_mb: int, texts: bool, resume: bool) -> dict[str, Any]:
    """Return the figures of one process: peaks by phase beyond its beginning, and its own."""
    command = [sys.executable, "-m", SIDE, f"--users={users}", f"--events={events}", f"--memory-mb={memory_mb}"]
    command += [*(["--texts"] if texts else []), *(["--resume"] if resume else []), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        watch, began_s = Watch(process.pid), time.monotonic()
        figures: dict[str, Any] = {"seconds": {}}
        try:
            for line in process.stdout:
                figures["seconds"][watch.phase] = time.monotonic() - began_s
                watch.phase, began_s = line.strip(), time.monotonic()
                if line.startswith("{"):
                    figures |= json.loads(line)
                    watch.phase = "told"
                if line.startswith("begin"):
                    # The process waits for nobody: what it had before is its beginning.
                    before = list(watch.peaks[""])
        finally:
            watch.close()
    if process.returncode:
        raise SystemExit(f"{SIDE}: ended with {process.returncode}")
    phases = [phase for phase in ("follow", "save", "resume") if phase in watch.peaks]
    peaks = {phase: [max(0, peak - first) for peak, first in zip(watch.peaks[phase], before)] for phase in phases}
    return figures | {"peaks": peaks, "seconds": {p: round(figures["seconds"][p], 1) for p in phases}}


def page(stored: dict[str, Any]) -> str:
    """Return the report."""
    lines = [
        "| users | keys | what it does | anonymous, MiB | mapped, MiB | table, bytes a user | file, MiB | seconds |",
        "|---:|---|---|---:|---:|---:|---:|---:|",
    ]
    over = []
    for run in stored["runs"]:
        for phase, (anonymous, mapped) in run["peaks"].items():
            lines.append(
                f"| {run['users']:,} | {run['keys']} | {phase} | {anonymous / 2**20:.0f} | {mapped / 2**20:.0f} |"
                f" {run['table_nbytes'] / run['users']:.0f} | {run['file_nbytes'] / 2**20:.0f} |"
                f" {run['seconds'][phase]:.0f} |"
            )
            if anonymous > stored["memory_mb"] << 20:
                over.append(f"{phase} of {run['users']:,} users by {run['keys']}")
    verdict = f"exceeded: {'; '.join(over)}" if over else "kept by all"
    lines += ["", f"{stored['events']} events a user. The budget, {stored['memory_mb']} MiB of memory, is {verdict}."]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark, and write the report."""
    parser = argparse.ArgumentParser(prog="make -C loadtest user-memory", description=__doc__)
    add = parser.add_argument
    add("--users", type=int, nargs="+", default=[100_000, 1_000_000])
    add("--events", type=int, default=EVENTS)
    add("--memory-mb", type=int, default=MEMORY_MB)
    add("--keys", nargs="+", default=["ids", "texts"], choices=["ids", "texts"])
    add("--scratch", type=Path, help="a folder on a disk, by default that of temporary files")
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    stored: dict[str, Any] = {
        "machine": machine(),
        "origin": origin("-C loadtest user-memory", "ARGS", sys.argv[1:]),
        "events": options.events,
        "memory_mb": options.memory_mb,
        "runs": [],
    }
    for users in options.users:
        for keys in options.keys:
            with tempfile.TemporaryDirectory(dir=options.scratch) as place:
                for resume in (False, True):
                    file = Path(place) / "events.safetensors"
                    run = measured(file, users, options.events, options.memory_mb, keys == "texts", resume)
                    stored["runs"].append({"keys": keys} | run)
                    print(stored["runs"][-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "user-memory.json").write_text(json.dumps(stored, indent=1) + "\n")
    lines = [*opening("Memory of users' events", __doc__ or "", stored), page(stored), ""]
    (options.out / "user-memory.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
