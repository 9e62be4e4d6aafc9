"""The peers: how each is reached, its settings untuned, and the tuned ones that are tried for each line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer, a folder beside this file. body: raw (peers.plain) | kserve (binary tensors) | json (KServe v2).
    untuned: as its documentation begins. tuned: what it advises for a model on CPU, several to be tried: with batches
    and their wait for throughput, with neither and with fewer processes for latency. other_ports: whether its server.py
    wants two more."""

    name: str
    path: str
    body: str
    untuned: tuple[str, ...]
    tuned: tuple[tuple[str, ...], ...]
    other_ports: bool = False

    @property
    def tried(self) -> tuple[tuple[str, ...], ...]:
        """All settings of which each line takes the best, the untuned ones among them."""
        return tuple(dict.fromkeys((*self.tuned, self.untuned)))

    @property
    def server(self) -> Path:
        return HERE / self.name / "server.py"

    @property
    def requirements(self) -> Path:
        return HERE / self.name / "requirements.txt"


_WORKERS, _ONE = ("--workers", str(CORES)), ("--workers", "1")
_BATCHES, _NO_WAIT = ("--batch", "4", "--wait-ms", "1"), ("--batch", "4", "--wait-ms", "0")
_DEFAULT_THREADS = ("--threads", "0")
_FAST_QUEUE = ("--fast-queue", "--front-ends", "1")
_ONGOING = ("--ongoing", "64")

PEERS = (
    Peer(
        "mosec",
        "/inference",
        "raw",
        untuned=_ONE,
        tuned=(_WORKERS, (*_WORKERS, *_BATCHES), (*_WORKERS, "--batch", "16", "--wait-ms", "1")),
    ),
    Peer(
        "fastapi_tf",
        "/predict",
        "raw",
        untuned=(*_ONE, *_DEFAULT_THREADS),
        tuned=((*_WORKERS, "--threads", "1"), (*_WORKERS, *_DEFAULT_THREADS), (*_ONE, "--threads", "1")),
    ),
    Peer(
        "litserve",
        "/predict",
        "raw",
        untuned=_ONE,
        tuned=(
            (*_WORKERS, *_FAST_QUEUE),
            (*_WORKERS, "--fast-queue"),
            (*_WORKERS, *_BATCHES, *_FAST_QUEUE),
            (*_WORKERS, *_NO_WAIT, *_FAST_QUEUE),
            (*_ONE, *_FAST_QUEUE),
        ),
    ),
    Peer("bentoml", "/predict", "raw", untuned=(*_ONE, "--access-log"), tuned=(_WORKERS, _ONE)),
    Peer(
        "mlserver",
        "/v2/models/bench/infer",
        "json",
        untuned=_ONE,
        tuned=(_WORKERS, ("--workers", "0"), (*_WORKERS, *_BATCHES)),
        other_ports=True,
    ),
    Peer(
        "ray",
        "/predict",
        "raw",
        untuned=_ONE,
        tuned=(
            (*_WORKERS, *_ONGOING),
            (*_WORKERS, *_BATCHES, *_ONGOING),
            (*_WORKERS, *_NO_WAIT, *_ONGOING),
            (*_ONE, *_ONGOING),
        ),
    ),
    Peer(
        "pytriton",
        "/v2/models/bench/infer",
        "kserve",
        untuned=_ONE,
        tuned=(_WORKERS, (*_WORKERS, "--wait-ms", "0.2"), ("--workers", "4", "--wait-ms", "0.1")),
        other_ports=True,
    ),
)


def chosen(names: str) -> list[Peer]:
    """Peers by their names, separated by spaces or commas; all for none. Raises ValueError."""
    wanted = names.replace(",", " ").split()
    known = {peer.name: peer for peer in PEERS}
    for name in wanted:
        if name not in known:
            raise ValueError(f"peer: one of {', '.join(known)} wanted, got {name!r}")
    return [known[name] for name in wanted] or list(PEERS)
