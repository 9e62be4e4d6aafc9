"""Figures of training and of lookups, out of the documents of their reports: by name, a value for each round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Aim = tuple[str, float]
Figures = dict[str, tuple[list[float], Aim]]

PEERS: Mapping[str, float] = {"PyTorch": 1.5, "Keras": 2.0}
LEAST_AUC = -0.001


def steps(document: Mapping[str, Any]) -> Figures:
    """train.json: a peer's step over Freshet's by batch and ids; a step over processor seconds by the cores."""
    found, cores = _peers(document, PEERS), document["machine"]["cores"]
    for shape, race in document["races"].items():
        found[f"overlap, {shape}"] = [wall / (cpu / cores) for wall, cpu in race["turns"]["Freshet"]], ("<=", 1.25)
    return found


def quality(document: Mapping[str, Any]) -> Figures:
    """train-quality.json: the AUC of Freshet less a peer's, by seed, of the labels of each network."""
    found: Figures = {}
    for arch, sides in document["archs"].items():
        done = {name: _seeds(ways) for name, ways in sides.items()}
        for name, runs in done.items():
            for label, theirs in enumerate(zip(*runs)) if name in ("Keras", "FuxiCTR") else ():
                mine = [aucs[label] for aucs in done["Freshet"]]
                found[f"{arch}, {name}, label {label}"] = [a - b for a, b in zip(mine, theirs)], (">=", LEAST_AUC)
    return found


LOOKUP_PAIRS = {"FBGEMM, by row number": "Freshet", "FBGEMM, by its hash": "Freshet, by its hash"}
LEAST_BY_NUMBER = {"float32": 0.9, "float16": 0.9, "int8": 0.8}


def lookups(document: Mapping[str, Any]) -> Figures:
    """verdict-lookup.json: FBGEMM's time over Freshet's, by row type and by how both find rows."""
    found: Figures = {}
    for kind, race in document["races"].items():
        for peer, ours in LOOKUP_PAIRS.items():
            turns = zip(race["turns"][peer], race["turns"][ours])
            aim = 1.0 if ours != "Freshet" else LEAST_BY_NUMBER[kind]
            found[f"{peer}, {kind}"] = [theirs[0] / mine[0] for theirs, mine in turns], (">=", aim)
    return found


def _peers(document: Mapping[str, Any], aims: Mapping[str, float]) -> Figures:
    """Of each race a peer's time over Freshet's; the aim of those that have none of their own is 1."""
    found: Figures = {}
    for what, race in document["races"].items():
        ours = race["turns"]["Freshet"]
        for name, turns in race["turns"].items():
            if name != "Freshet":
                ratios = [theirs[0] / mine[0] for theirs, mine in zip(turns, ours)]
                found[f"{name}, {what}"] = ratios, (">=", aims.get(name, 1.0))
    return found


def _seeds(ways: Mapping[str, Mapping[str, Any]]) -> list[list[float]]:
    """The AUCs by seed of the settings that all seeds were run with."""
    most = max(ways.values(), key=len)
    return [run["auc"] for _, run in sorted(most.items())]
