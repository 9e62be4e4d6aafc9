"""A framework's process: it trains one network at a time, publishes, and says what the network itself scores.

One JSON object a line, both ways. Commands, in order for each network:

{"do": "build", "network": NAME, "folder": FOLDER}          builds and exports it; answers where it lies
{"do": "attach", "repository": FOLDER, "model": NAME}       attaches the hook or callback
{"do": "learn", "requests": FILE}                           trains, publishes a delta, writes requests and their scores

An answer has `refused` where the product refused, in its words, and `failed` for all that is no refusal. Standard
library, numpy and the publisher alone: sides run in environments of their own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from freshet_serving import FreshetError
from loadtest.bench.training.loops.rows import Arrays

INPUT, OUTPUT = "input", "output"
Scored = tuple[Arrays, Arrays]
"""Inputs of a request, and what the network makes of them, by name."""


class Side(Protocol):
    """A framework's part of the loop."""

    def build(self, network: str, folder: Path) -> Path:
        """Build and export a network; return the file or folder."""

    def attach(self, repository: str, model: str) -> None:
        """Attach the hook or callback to the network that was built."""

    def learn(self) -> str:
        """Train some batches and publish; return the generation."""

    def scored(self) -> Sequence[Scored]:
        """Return fresh requests and their scores by the network."""


def serve(side: Side) -> None:
    """Answer commands until the other end closes."""
    # Whatever a library prints goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(side, json.loads(line))) + "\n")


def answer(side: Side, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command."""
    try:
        match command["do"]:
            case "build":
                return {"source": str(side.build(command["network"], Path(command["folder"])))}
            case "attach":
                side.attach(command["repository"], command["model"])
                return {}
            case _:
                generation = side.learn()
                write_requests(Path(command["requests"]), side.scored())
                return {"generation": generation}
    except FreshetError as error:
        return {"refused": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def write_requests(path: Path, scored: Sequence[Scored]) -> None:
    """Write requests and scores into one file, each array by the request's number, its part and its name."""
    arrays: Arrays = {}
    for number, parts in enumerate(scored):
        for part, named in zip((INPUT, OUTPUT), parts):
            arrays |= {f"{number}/{part}/{name}": array for name, array in named.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_requests(path: Path) -> list[Scored]:
    """Return what write_requests() has written."""
    scored: list[Scored] = []
    with np.load(path, allow_pickle=False) as kept:
        for key in kept.files:
            number, part, name = key.split("/", 2)
            while len(scored) <= int(number):
                scored.append(({}, {}))
            scored[int(number)][part == OUTPUT][name] = kept[key]
    return scored
