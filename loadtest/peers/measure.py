"""Measures one peer against Freshet: both up, the same client and inputs, turn by turn."""

from __future__ import annotations

import http.client
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.load import wrk
from loadtest.load.launch import MODEL, CommandFailed, RunningServer, run_freshet
from loadtest.load.payload import Payload
from loadtest.load.sides import Ratio, Side, Turns, compare, ratio, values
from loadtest.peers import bodies
from loadtest.peers.process import ask, install, running
from loadtest.peers.roster import Peer

CANDIDATES = (1, 64, 512)
LIGHT = (1, 64)
TOLERANCE = 1e-5
CHECKED = 4
GOALS = {1: 1.5, 64: 1.15, 512: 1.15}


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """connections: of wrk when it saturates. seconds: of a turn. serve: options of `freshet serve`."""

    rounds: int = 3
    seconds: float = 3.0
    connections: int = 32
    table_rows: int = 100_000
    serve: tuple[str, ...] = ()
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """Freshet over the peer (throughput), or the peer over Freshet (latencies): above 1 Freshet is better. what:
    throughput | p99 | light."""

    what: str
    candidates: int
    ratio: Ratio
    freshet: float
    peer: float


@dataclass(frozen=True, slots=True)
class PeerVariant:
    """A peer tuned, or untuned. options: by the number of candidates."""

    name: str
    options: dict[str, str]
    figures: list[Figure]


class Arena:
    """Freshet, up for the whole run, and the payloads."""

    def __init__(
        self, work: Path, repository: Path, server: RunningServer, settings: PeerSettings, say: Callable[[str], Any]
    ) -> None:
        self._work, self._server, self._settings, self.say = work, server, settings, say
        self.version = repository / MODEL / "1"

    def payload(self, kind: str, path: str, candidates: int) -> tuple[Payload, Path]:
        """A payload and the folder that it is saved in."""
        made = bodies.payload(kind, path, candidates, self._settings.table_rows)
        return made, made.save(self._work / f"{kind}-{path.strip('/').replace('/', '-')}-{candidates}")

    def measure(self, peer: Peer, venvs: Path, interpreter: str) -> list[PeerVariant]:
        """The peer tuned and untuned; raises CommandFailed when it cannot be run, or answers something else."""
        self.say(f"{peer.name}: environment")
        python = install(peer, venvs, interpreter)
        rounds = self._settings.rounds
        return [
            self._variant(peer, python, "tuned", self._tune(peer, python), rounds),
            self._variant(peer, python, "untuned", dict.fromkeys(CANDIDATES, peer.untuned), min(2, rounds)),
        ]

    def _tune(self, peer: Peer, python: Path) -> dict[int, tuple[str, ...]]:
        """For each size of request the options of the most throughput: a peer is at its best in every comparison."""
        if len(peer.tuned) == 1:
            return dict.fromkeys(CANDIDATES, peer.tuned[0])
        found = {(options, n): 0.0 for options in peer.tuned for n in CANDIDATES}
        # Twice over on a machine that changes its speed, each setting with a server of its own.
        for options in peer.tuned * min(2, self._settings.rounds):
            with running(peer, python, options, self.version, self.payload(peer.body, peer.path, 1)[0]) as port:
                for n in CANDIDATES:
                    rate = self._rate(port, self.payload(peer.body, peer.path, n)[1]).per_s
                    found[options, n] += rate
                    self.say(f"{peer.name} {shlex.join(options)}: {n} candidates, {rate:.0f} requests/s")
        return {n: max(peer.tuned, key=lambda options: found[options, n]) for n in CANDIDATES}

    def _variant(
        self, peer: Peer, python: Path, name: str, chosen: dict[int, tuple[str, ...]], rounds: int
    ) -> PeerVariant:
        """chosen: options by candidates; one server for those that share them."""
        figures: list[Figure] = []
        for options in dict.fromkeys(chosen.values()):
            sizes = [n for n in CANDIDATES if chosen[n] == options]
            with running(peer, python, options, self.version, self.payload(peer.body, peer.path, 1)[0]) as port:
                self._check(peer, port)
                for candidates in sizes:
                    turns = self._compare(peer, port, candidates, rounds, self._settings.connections)
                    ours, theirs = (values(turns, side, "requests/s") for side in ("freshet", peer.name))
                    figures.append(_figure("throughput", candidates, ours, theirs, ours, theirs))
                    ours, theirs = (values(turns, side, "p99 ms") for side in ("freshet", peer.name))
                    figures.append(_figure("p99", candidates, theirs, ours, ours, theirs))
                for candidates in (n for n in sizes if n in LIGHT):
                    turns = self._compare(peer, port, candidates, rounds, 1)
                    ours, theirs = (values(turns, side, "p50 ms") for side in ("freshet", peer.name))
                    figures.append(_figure("light", candidates, theirs, ours, ours, theirs))
        figures.sort(key=lambda f: (f.what == "light", f.candidates))
        return PeerVariant(name, {str(n): shlex.join(options) for n, options in chosen.items()}, figures)

    def _compare(self, peer: Peer, port: int, candidates: int, rounds: int, connections: int) -> Turns:
        def side(name: str, port: int, payload: Path) -> Side:
            def turn() -> dict[str, float]:
                run = self._rate(port, payload, connections)
                return {"requests/s": run.per_s, "p50 ms": run.latency_ms["p50"], "p99 ms": run.latency_ms["p99"]}

            return Side(name, turn)

        theirs = self.payload(peer.body, peer.path, candidates)[1]
        ours = self.payload("kserve", "", candidates)[1]
        sides = [side("freshet", self._server.http_port, ours), side(peer.name, port, theirs)]
        self.say(f"{peer.name}: {candidates} candidates, {connections} connections")
        return compare(sides, rounds, self.say)

    def _rate(self, port: int, payload: Path, connections: int = 0) -> wrk.WrkRun:
        return wrk.saturate(port, payload, self._settings.seconds, connections or self._settings.connections)

    def _check(self, peer: Peer, port: int) -> None:
        """Raises CommandFailed unless the peer's scores are ours."""
        for candidates in CANDIDATES:
            theirs, ours = (
                self.payload(kind, path, candidates)[0] for kind, path in ((peer.body, peer.path), ("kserve", ""))
            )
            for number in range(CHECKED):
                try:
                    replies = ask(port, theirs, number), ask(self._server.http_port, ours, number)
                    kinds = (peer.body, "kserve")
                    got, wanted = (bodies.scores(k, r.body, r.headers) for k, r in zip(kinds, replies))
                except (ValueError, OSError, http.client.HTTPException) as error:
                    raise CommandFailed(f"its reply to {candidates} candidates: {error}") from None
                if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=0, atol=TOLERANCE):
                    raise CommandFailed(f"its scores of {candidates} candidates are not ours within {TOLERANCE:g}")


def write_model(repository: Path, table_rows: int) -> None:
    """Version 1 of the benchmark's model."""
    run_freshet("bench", "model", "--rows", str(table_rows), "--repository", str(repository))


def _figure(
    what: str,
    candidates: int,
    above: Sequence[float],
    below: Sequence[float],
    ours: Sequence[float],
    theirs: Sequence[float],
) -> Figure:
    return Figure(what, candidates, ratio(above, below), float(np.median(ours)), float(np.median(theirs)))


def document(variant: PeerVariant) -> dict[str, Any]:
    """A variant as JSON holds it."""
    return asdict(variant)
