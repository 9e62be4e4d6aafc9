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
    untuned: str
    tuned: tuple[str, ...]
    other_ports: bool = False

    @property
    def tried(self) -> tuple[str, ...]:
        """All settings of which each line takes the best, the untuned ones among them."""
        return tuple(dict.fromkeys((*self.tuned, self.untuned)))

    @property
    def server(self) -> Path:
        return HERE / self.name / "server.py"

    @property
    def requirements(self) -> Path:
        return HERE / self.name / "requirements.txt"


_ONE, _ALL = "--workers 1", f"--workers {CORES}"
_BATCHES, _NO_WAIT = f"{_ALL} --batch 4 --wait-ms 1", f"{_ALL} --batch 4 --wait-ms 0"
_FAST = "--fast-queue --front-ends 1"

PEERS = (
    Peer("mosec", "/inference", "raw", _ONE, (_ALL, _BATCHES, f"{_ALL} --batch 16 --wait-ms 1")),
    Peer(
        "fastapi_tf",
        "/predict",
        "raw",
        f"{_ONE} --threads 0",
        (f"{_ALL} --threads 1", f"{_ALL} --threads 0", f"{_ONE} --threads 1"),
    ),
    Peer(
        "litserve",
        "/predict",
        "raw",
        _ONE,
        (f"{_ALL} --fast-queue", *(f"{each} {_FAST}" for each in (_ALL, _BATCHES, _NO_WAIT, _ONE))),
    ),
    Peer("bentoml", "/predict", "raw", f"{_ONE} --access-log", (_ALL, _ONE)),
    Peer("mlserver", "/v2/models/bench/infer", "json", _ONE, (_ALL, "--workers 0", _BATCHES), other_ports=True),
    Peer("ray", "/predict", "raw", _ONE, tuple(f"{each} --ongoing 64" for each in (_ALL, _BATCHES, _NO_WAIT, _ONE))),
    Peer(
        "pytriton",
        "/v2/models/bench/infer",
        "kserve",
        _ONE,
        (_ALL, f"{_ALL} --wait-ms 0.2", "--workers 4 --wait-ms 0.1"),
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
