"""The plan of a checked run: a few fixed requests, and the scores that each generation must give them.

Whether a reply mixes generations can be told from outside only when every delta moves the scores. So part of
the ids of every request are ids that some delta changes, each delta having its share of them, and build()
refuses a plan in which a delta moves nothing: there the check could not fail.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from loadtest.live.questions import draw
from loadtest.live.reference import Reference, delta_keys
from loadtest.load.encoding import InputTensor, Signature

TOLERANCE = 1e-4
CLEAR = 10 * TOLERANCE


class WrongReply(Exception):
    """A reply of status 200 that is not an answer to its request."""


class MixedGenerations(WrongReply):
    """Scores that are not those of the generation that the reply names."""


@dataclass(frozen=True, slots=True, eq=False)
class ScorePlan:
    """inputs: name -> [requests, rows] or [requests, rows, columns].
    expected: float32 [generations, requests, rows], of version.0, version.1, ..."""

    model: str
    version: int
    inputs: dict[str, NDArray[Any]]
    expected: NDArray[np.float32]

    @property
    def requests(self) -> int:
        return int(self.expected.shape[1])

    def check(self, request: int, generation: str | None, scores: NDArray[np.float32]) -> None:
        """Raises WrongReply unless the scores are those that the named generation gives to the request."""
        version, _, step = (generation or "").partition(".")
        known = version == str(self.version) and step.isdigit()
        at = int(step) if known else -1
        if not 0 <= at < len(self.expected):
            raise WrongReply(f"generation {(generation or 'none')[:40]!r} is none that the test made")
        wanted = self.expected[at, request]
        if scores.shape != wanted.shape:
            raise WrongReply(f"{len(wanted)} scores wanted, got {len(scores)}")
        # Written so that a NaN fails too.
        if not (np.abs(scores - wanted) <= TOLERANCE).all():
            raise MixedGenerations("the scores are not those of the generation that the reply names")

    def columns(self, request: int) -> dict[str, NDArray[Any]]:
        return {name: values[request] for name, values in self.inputs.items()}

    def one_row(self) -> ScorePlan:
        """The plan of one request with one row, one that the most deltas move."""
        moves = np.abs(np.diff(self.expected, axis=0)) > CLEAR
        request, row = np.unravel_index(moves.sum(axis=0).argmax(), moves.shape[1:])
        inputs = {name: v[request : request + 1, row : row + 1] for name, v in self.inputs.items()}
        return replace(self, inputs=inputs, expected=self.expected[:, request : request + 1, row : row + 1])

    def save(self, path: Path) -> None:
        tensors = {f"inputs/{name}": np.ascontiguousarray(values) for name, values in self.inputs.items()}
        about = {"model": self.model, "version": self.version}
        save_file({**tensors, "expected": np.ascontiguousarray(self.expected)}, path, {"plan": json.dumps(about)})

    @classmethod
    def load(cls, path: Path) -> ScorePlan:
        with safe_open(path, "numpy") as file:
            about = json.loads(file.metadata()["plan"])
            inputs = {
                n.removeprefix("inputs/"): file.get_tensor(n)
                for n in file.keys()  # noqa: SIM118
                if n.startswith("inputs/")
            }
            return cls(inputs=inputs, expected=file.get_tensor("expected"), **about)


def signature_of(manifest: dict[str, Any]) -> Signature:
    """A package's model.json as its clients will see the model."""
    datatypes = {"int64": "INT64", "float32": "FP32", "string": "BYTES"}
    inputs = tuple(InputTensor(i["name"], datatypes[i["dtype"]], i["columns"], i["ragged"]) for i in manifest["inputs"])
    return Signature(manifest["model"], inputs, tuple(o["name"] for o in manifest["outputs"]))


def build(folder: Path, deltas: Sequence[Path], requests: int, rows: int, seed: int = 0) -> ScorePlan:
    """The plan for a version's folder and the chain of deltas that will be applied to it.

    Raises ValueError for a package that loadtest.live.reference does not know, and when some delta moves no score
    clearly, by ten times the tolerance.
    """
    manifest = json.loads((folder / "model.json").read_bytes())
    ids = min(t["rows"] for t in manifest["tables"])
    drawn = draw(signature_of(manifest), requests * rows, ids, np.random.default_rng(seed))
    inputs = {name: np.asarray(values) for name, values in drawn.items()}
    _aim(inputs, manifest["features"], [delta_keys(path) for path in deltas], requests, rows, seed)
    reference = Reference(folder, inputs)
    expected = [reference.scores]
    for path in deltas:
        reference.apply(path)
        expected.append(reference.scores)
    plan = ScorePlan(
        model=manifest["model"],
        version=reference.version,
        inputs={name: v.reshape(requests, rows, *v.shape[1:]) for name, v in inputs.items()},
        expected=np.stack(expected).reshape(-1, requests, rows),
    )
    still = [step for step, share in enumerate(moved(plan), 1) if not share]
    if still:
        raise ValueError(f"deltas: every one must move the scores clearly, number {still[0]} does not")
    return plan


def moved(plan: ScorePlan) -> NDArray[np.float64]:
    """Per delta, the share of requests of which it moves some score clearly."""
    moves: NDArray[np.float32] = np.abs(np.diff(plan.expected, axis=0)).max(axis=2, initial=0.0)
    shares: NDArray[np.float64] = (moves > CLEAR).mean(axis=1)
    return shares


def _aim(
    inputs: dict[str, NDArray[Any]],
    features: list[dict[str, Any]],
    changed: Sequence[dict[str, NDArray[np.int64]]],
    requests: int,
    rows: int,
    seed: int,
) -> None:
    """Points up to half of each request's ids, chosen at random, at ids that the deltas change, in turn."""
    random = np.random.default_rng(seed + 1)
    embedded = [f for f in features if f["table"]]
    cells = rows * len(embedded)
    share = max(1, min(cells // 2 // max(1, len(changed)), len(embedded)))
    turn = 0
    for request in range(requests):
        free = random.permutation(cells).tolist()
        for _ in range(min(len(changed), max(1, cells // 2))):
            keys, turn = changed[turn % len(changed)], turn + 1
            fitting = (cell for cell in free if len(keys.get(embedded[cell % len(embedded)]["table"], ())))
            taken = set(islice(fitting, share))
            free = [cell for cell in free if cell not in taken]
            for cell in taken:
                row, feature = request * rows + cell // len(embedded), embedded[cell % len(embedded)]
                at = (row, feature["column"]) if feature["column"] >= 0 else row
                inputs[feature["input"]][at] = random.choice(keys[feature["table"]])
