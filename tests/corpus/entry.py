"""One entry of the corpus: read, checked, laid out as of a moment. Needs numpy alone, and nothing of ours.

What is written here is a format of its own, which old and new code have in common: it stays readable, like the entries.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FROZEN = Path(__file__).parent / "frozen"
ENTRY, REQUESTS, SCORES, STORE, KEYS = "entry.json", "requests.json", "scores.json", "store", "keys"
FORMAT = "freshet-corpus/1"
FOLLOWED, OPENED = "followed", "opened"

Scores = dict[str, np.ndarray]
"""float32 arrays by output."""


@dataclass(frozen=True)
class Moment:
    """A state of the repository, and the files that came since the moment before, relative to it, in order."""

    name: str
    generation: str
    arrived: list[str]


@dataclass(frozen=True)
class Request:
    """A recorded request, its inputs as column_document() writes them.

    way: of a graph that is divided into a user's and a candidates' part, "parts" or "whole"; else "".
    """

    name: str
    inputs: dict[str, dict[str, Any]]
    way: str = ""


@dataclass(frozen=True)
class Entry:
    """An entry of the corpus.

    commit: of the code that wrote it. tolerance: how far any score may be off on another machine, absolute. computes:
    backend and precision that gave the scores. needs: modules that scoring takes beyond what serving always needs.
    left_out: executables that are compiled anew. files: SHA-256 by path.
    """

    folder: Path
    holds: str
    commit: str
    model: str
    tolerance: float
    computes: str
    needs: list[str]
    left_out: list[str]
    moments: list[Moment]
    files: dict[str, str]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def keys(self) -> list[Path]:
        """Public keys that the repository is signed by."""
        return sorted((self.folder / KEYS).glob("*.pub"))

    def requests(self) -> list[Request]:
        return [Request(**request) for request in _read(self.folder / REQUESTS)]

    def scores(self) -> dict[str, Scores]:
        """The stored scores by "<moment>/<request>"."""
        stored = _read(self.folder / SCORES)
        return {
            key: {n: np.array(nested, np.float32) for n, nested in outputs.items()} for key, outputs in stored.items()
        }

    def arrive(self, repository: Path, moment: Moment) -> None:
        """Copy what came with a moment into a repository that lies as of the moment before."""
        for name in moment.arrived:
            target = repository / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # Written aside and renamed, as publishers do: no reader ever meets half a file.
            hidden = target.with_name(f".{target.name}.arriving")
            shutil.copyfile(self.folder / STORE / name, hidden)
            hidden.rename(target)

    def lay_out(self, repository: Path, moment: Moment) -> Path:
        """Make a folder the repository as of a moment; return it."""
        for each in self.moments[: self.moments.index(moment) + 1]:
            self.arrive(repository, each)
        return repository


def entries(frozen: Path = FROZEN) -> list[Entry]:
    return [read_entry(path.parent) for path in sorted(frozen.glob(f"*/{ENTRY}"))]


def read_entry(folder: Path) -> Entry:
    raw = _read(folder / ENTRY)
    if raw.pop("format") != FORMAT:
        raise ValueError(f"{folder.name}: expected an entry of format {FORMAT}")
    moments = [Moment(**moment) for moment in raw.pop("moments")]
    names = ("holds", "commit", "model", "tolerance", "computes", "needs", "left_out", "files")
    return Entry(folder, moments=moments, **{name: raw[name] for name in names})


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of an entry but for entry.json, by its path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / ENTRY)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def scores_document(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """What Entry.scores() reads: numbers as JSON has them, which give back the same float32."""
    return {key: {name: array.tolist() for name, array in outputs.items()} for key, outputs in scores.items()}


def column_document(dtype: str, values: Any, shape: list[int], row_splits: list[int] | None = None) -> dict[str, Any]:
    """One input of a request: values row by row, of floats None for NaN.

    shape: of the tensor, or of all values together where row_splits cut them into rows.
    """
    if dtype == "float32":
        values = [None if math.isnan(value) else value for value in values]
    document = {"dtype": dtype, "shape": shape, "values": values}
    return document if row_splits is None else {**document, "row_splits": row_splits}


def write_json(path: Path, document: Any, indent: int | None = None) -> None:
    """Write a document that a person can read and a diff can show: a line for each item of its top level."""
    if indent is not None:
        path.write_text(json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")
        return
    lines = ",\n".join(_lines(document))
    left, right = "{}" if isinstance(document, dict) else "[]"
    path.write_text(f"{left}\n{lines}\n{right}\n")


def _lines(document: Any) -> Iterator[str]:
    dump = lambda value: json.dumps(value, ensure_ascii=False, allow_nan=False)  # noqa: E731
    if isinstance(document, dict):
        yield from (f"{dump(key)}: {dump(value)}" for key, value in document.items())
    else:
        yield from map(dump, document)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
