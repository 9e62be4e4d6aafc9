"""Measures one peer against Freshet: both up, the same client and inputs, turn by turn."""

from __future__ import annotations

import http.client
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.harness import compile_with_practice
from loadtest.load import wrk
from loadtest.load.launch import MODEL, CommandFailed, RunningServer, run_freshet
from loadtest.load.payload import Payload, bench_inputs
from loadtest.load.sides import Turns, compare, over, values
from loadtest.peers import bodies
from loadtest.peers.process import ask, install, running
from loadtest.peers.roster import Peer

CANDIDATES = (1, 64, 512)
LIGHT = (1, 64)
GIVES = {"throughput": ("throughput", "p99"), "light": ("light",)}
"""The figures that each kind of line gives."""
MEASURED = {"throughput": "requests/s", "p99": "p99 ms", "light": "p50 ms"}
TOLERANCE = 1e-5
COMPILED = "in float32, beside Freshet compiled"
"""The variant in which each is as its users would have it."""
COMPILED_TOLERANCE = 0.02
PRACTICE_REQUESTS, PRACTICE_CANDIDATES = 32, 64
CHECKED = 4
Line = tuple[str, int]
"""A line of the report that a peer's best settings are taken for: throughput | light, and the candidates."""
LINES: tuple[Line, ...] = (*(("throughput", n) for n in CANDIDATES), *(("light", n) for n in LIGHT))
GOALS = {1: 1.5, 64: 1.15, 512: 1.15}


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """connections: of wrk when it saturates. seconds: of a turn. serve: options of `freshet serve`. compiled: whether
    Freshet is measured once more as its users have it, on what `freshet compile` chose with rows of practice."""

    rounds: int = 3
    seconds: float = 3.0
    connections: int = 32
    table_rows: int = 100_000
    serve: tuple[str, ...] = ()
    quick: bool = False
    compiled: bool = False


Document = dict[str, Any]
"""A peer tuned, or untuned, or tuned, in float32, beside Freshet on what was compiled for it: its name and figures.

A figure is a ratio, Freshet over the peer (throughput) or the peer over Freshet (latencies): above 1 Freshet is better.
what: throughput | p99 | light. freshet, peer: their own. options: the peer's.
"""


class PeerBench:
    """Freshet, up for the whole run, and the payloads."""

    def __init__(
        self,
        work: Path,
        repository: Path,
        server: RunningServer,
        settings: PeerSettings,
        say: Callable[[str], Any],
        compiled: RunningServer | None = None,
    ) -> None:
        """compiled: a server of what `freshet compile` chose for the same model, or none."""
        self._work, self._server, self._settings, self.say = work, server, settings, say
        self._compiled = compiled
        self.version = repository / MODEL / "1"

    def payload(self, kind: str, path: str, candidates: int) -> tuple[Payload, Path]:
        made = bodies.payload(kind, path, candidates, self._settings.table_rows)
        return made, made.save(self._work / f"{kind}-{path.strip('/').replace('/', '-')}-{candidates}")

    def measure(self, peer: Peer, venvs: Path, interpreter: str) -> list[Document]:
        """The peer tuned and untuned; raises CommandFailed when it cannot be run, or answers something else."""
        self.say(f"{peer.name}: environment")
        python = install(peer, venvs, interpreter)
        rounds, chosen = self._settings.rounds, self._tune(peer, python)
        variants = [
            self._variant(peer, python, "tuned", chosen, rounds),
            self._variant(peer, python, "untuned", dict.fromkeys(LINES, peer.untuned), min(2, rounds)),
        ]
        if self._compiled is not None:
            variants.append(self._variant(peer, python, COMPILED, chosen, rounds))
        return variants

    def _tune(self, peer: Peer, python: Path) -> dict[Line, str]:
        """For each line the best options: of the most throughput, or of the lowest median with one connection."""
        found = {(options, line): 0.0 for options in peer.tried for line in LINES}
        # Twice over on a machine that changes its speed, each setting with a server of its own.
        for options in peer.tried * min(2, self._settings.rounds):
            with running(peer, python, options, self.version, self.payload(peer.body, peer.path, 1)[0]) as port:
                for line in LINES:
                    what, n = line
                    run = self._run(port, self.payload(peer.body, peer.path, n)[1], what)
                    found[options, line] += run.per_s if what == "throughput" else -run.latency_ms["p50"]
                    self.say(f"{peer.name} {options}: {what}, {n} candidates: {run.per_s:.0f} requests/s")
        return {line: max(peer.tried, key=lambda options: found[options, line]) for line in LINES}

    def _variant(self, peer: Peer, python: Path, name: str, chosen: dict[Line, str], rounds: int) -> Document:
        """chosen: options by line; one server for those that share them."""
        figures: list[Document] = []
        ours = self._server if name != COMPILED or self._compiled is None else self._compiled
        for options in dict.fromkeys(chosen.values()):
            with running(peer, python, options, self.version, self.payload(peer.body, peer.path, 1)[0]) as port:
                self._check(peer, port, ours, COMPILED_TOLERANCE if name == COMPILED else TOLERANCE)
                for what, n in (line for line in LINES if chosen[line] == options):
                    turns = self._compare(peer, port, ours, n, rounds, what)
                    figures += [_figure(each, n, turns, peer.name, options) for each in GIVES[what]]
        figures.sort(key=lambda f: (f["what"] == "light", f["candidates"]))
        return {"name": name, "figures": figures}

    def _compare(self, peer: Peer, port: int, server: RunningServer, candidates: int, rounds: int, what: str) -> Turns:
        def turn(port: int, payload: Path) -> dict[str, float]:
            run = self._run(port, payload, what)
            return {"requests/s": run.per_s, "p50 ms": run.latency_ms["p50"], "p99 ms": run.latency_ms["p99"]}

        ours = partial(turn, server.http_port, self.payload("kserve", "", candidates)[1])
        theirs = partial(turn, port, self.payload(peer.body, peer.path, candidates)[1])
        self.say(f"{peer.name}: {what}, {candidates} candidates")
        return compare({"freshet": ours, peer.name: theirs}, rounds, self.say)

    def _run(self, port: int, payload: Path, what: str) -> wrk.WrkRun:
        connections = self._settings.connections if what == "throughput" else 1
        return wrk.saturate(port, payload, self._settings.seconds, connections)

    def _check(self, peer: Peer, port: int, server: RunningServer, tolerance: float) -> None:
        """Raises CommandFailed unless the peer's scores are ours."""
        for candidates in CANDIDATES:
            theirs, ours = (
                self.payload(kind, path, candidates)[0] for kind, path in ((peer.body, peer.path), ("kserve", ""))
            )
            for number in range(CHECKED):
                try:
                    replies = ask(port, theirs, number), ask(server.http_port, ours, number)
                    kinds = (peer.body, "kserve")
                    got, wanted = (bodies.scores(k, r.body, r.headers) for k, r in zip(kinds, replies))
                except (ValueError, OSError, http.client.HTTPException) as error:
                    raise CommandFailed(f"its reply to {candidates} candidates: {error}") from None
                if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=0, atol=tolerance):
                    raise CommandFailed(f"its scores of {candidates} candidates are not ours within {tolerance:g}")


def write_model(repository: Path, table_rows: int) -> None:
    run_freshet("bench", "model", "--rows", str(table_rows), "--repository", str(repository))


def write_compiled(repository: Path, compiled: Path, table_rows: int) -> str:
    """A copy of the repository as `freshet compile` leaves it, with rows of practice; what it chose, by bucket."""
    shutil.copytree(repository, compiled)
    practice = bench_inputs(PRACTICE_CANDIDATES, PRACTICE_REQUESTS, table_rows)
    return compile_with_practice(compiled / MODEL / "1", practice)


def _figure(what: str, candidates: int, turns: Turns, peer: str, options: str) -> Document:
    ours, theirs = (values(turns, side, MEASURED[what]) for side in ("freshet", peer))
    sides = ("freshet", peer) if what == "throughput" else (peer, "freshet")
    found = over(turns, *sides, MEASURED[what])
    own = {"freshet": float(np.median(ours)), "peer": float(np.median(theirs))}
    return {"what": what, "candidates": candidates, "ratio": asdict(found), **own, "options": options}
