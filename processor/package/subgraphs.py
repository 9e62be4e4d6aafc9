"""Subgraphs of a version's dense graph: their named inputs and outputs, and what fills each input.

    score   [rows]      the scores of candidates; every version has it
    user    [requests]  what depends on the user alone, computed once a request; its outputs are inputs of `score`
    whole   [rows]      the same scores as `user` and `score` give, in one graph, for batches of several small requests

A version with sequences may have `user-length<n>` and `score-length<n>` too, for requests whose histories have at most
n events: a place of a history costs as much without an event as with one.

A dimension is a number or a symbol: ROWS, one for each candidate, or REQUESTS, one for each request. A run of `score`
has the candidates of one request, so there its REQUESTS is 1.

The user's features are those that a request sends once, for all of its candidates. A feature counts as the user's if
its side is "user" and so is that of every feature that reads the same input: an input that holds columns of both sides
has a row for each candidate anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from freshet_serving.processor.package.entities import EntityEntry
from freshet_serving.processor.package.input_fillers import InputFiller
from freshet_serving.processor.package.manifest_entries import (
    SCORE,
    USER,
    WHOLE,
    ExecutableEntry,
    Feature,
    Input,
    Output,
    StageEntry,
    TableEntry,
)
from freshet_serving.processor.package.sequences import SEQUENCE, SequenceEntry
from freshet_serving.processor.package.transforms import Transform

ROWS, REQUESTS = "rows", "requests"
_SHORTER = re.compile(rf"({SCORE}|{USER})-length([1-9][0-9]{{0,8}})")
FLOPS = "flops"
"""Key of a manifest's notes: the FLOPs of one row of each subgraph (compiler.passes.flops)."""
USER_STATE = "user_state"
"""Key of a manifest's notes: the class of what the subgraph `user` computes (compiler.passes.state_classes)."""
FEATURES, USER_TENSOR = "features", "user"
"""Sources of inputs: features; outputs of the subgraph `user`. processor.running.fillers has all."""
MATRIX = "x"
"""Name of the input that holds the features of each row, float32 [rows, width]."""


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One input of a subgraph: dims are numbers or symbols; from FEATURES it has `features` side by side, in order."""

    name: str
    dims: list[Any]
    source: str = FEATURES
    features: list[str] = field(default_factory=list)
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """One output of a subgraph, as GraphInput."""

    name: str
    dims: list[Any]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Inputs and outputs of a subgraph, in the order of its executables' arguments and results."""

    inputs: list[GraphInput]
    outputs: list[GraphOutput]

    def features(self) -> list[str]:
        """Return the names of all features that it reads, in the order of its inputs."""
        return [name for i in self.inputs if i.source == FEATURES for name in i.features]


class Described(Protocol):
    """A manifest (processor.package.manifest.Manifest) as far as its graphs and entities go."""

    @property
    def inputs(self) -> Sequence[Input]: ...
    @property
    def sources(self) -> Sequence[Input]: ...
    @property
    def features(self) -> Sequence[Feature]: ...
    @property
    def tables(self) -> Sequence[TableEntry]: ...
    @property
    def outputs(self) -> Sequence[Output]: ...
    @property
    def width(self) -> int: ...
    @property
    def graphs(self) -> Mapping[str, Subgraph]: ...
    @property
    def sequences(self) -> Sequence[SequenceEntry]: ...
    @property
    def transforms(self) -> Sequence[Transform]: ...
    @property
    def stage(self) -> StageEntry | None: ...
    @property
    def entities(self) -> Sequence[EntityEntry]: ...
    @property
    def filled(self) -> Mapping[str, InputFiller]: ...
    @property
    def copies(self) -> Mapping[str, str]: ...
    @property
    def executables(self) -> Sequence[ExecutableEntry]: ...
    @property
    def format(self) -> str: ...


def subgraphs(manifest: Described) -> dict[str, Subgraph]:
    return dict(manifest.graphs) or {SCORE: undivided(manifest)}


def shorter(name: str, length: int) -> str:
    """Return the name of SCORE or USER for histories of at most so many events."""
    return f"{name}-length{length}"


def role(name: str) -> tuple[str, int]:
    """Return which of SCORE, USER and WHOLE a name is of, and the most events of a history; 0 for any number."""
    match = _SHORTER.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 0)


def shorter_lengths(manifest: Described) -> list[int]:
    """Return the lengths of histories that a version has subgraphs of their own for, ascending."""
    return sorted(length for name, length in map(role, manifest.graphs) if length and name == USER)


def batch_symbol(name: str) -> str:
    """Return the symbol that a bucket of a subgraph gives a number to."""
    return REQUESTS if role(name)[0] == USER else ROWS


def undivided_name(manifest: Described) -> str:
    """Return the name of the subgraph that scores rows of several requests at once."""
    return WHOLE if USER in manifest.graphs else SCORE


def undivided(manifest: Described, more: Sequence[GraphInput] = ()) -> Subgraph:
    """Return the subgraph of a version's whole dense graph: all features in one matrix, and further inputs."""
    named = [f.name for f in sorted(manifest.features, key=lambda f: f.offset)]
    matrix = GraphInput(MATRIX, [ROWS, manifest.width], FEATURES, named)
    return Subgraph([matrix, *more], scores_of(manifest))


def scores_of(manifest: Described) -> list[GraphOutput]:
    """Return the outputs of the subgraphs that compute scores."""
    return [GraphOutput(o.name, [ROWS, o.columns]) for o in manifest.outputs]


def divided(
    manifest: Described,
    tensors: Sequence[tuple[str, int]],
    more: Sequence[GraphInput] = (),
    shortened: Mapping[int, Sequence[tuple[str, int]]] | None = None,
) -> dict[str, Subgraph]:
    """Return the subgraphs of a version whose dense graph is divided by its user features.

    Args:
        tensors: Name and length of every tensor that `user` computes of a request for `score`.
        more: Further inputs of the whole dense graph; sequences among them are inputs of `user`.
        shortened: By most events of a history, the tensors of subgraphs for such requests.
    """
    score, user = _parts(manifest, tensors, more, 0)
    graphs = {SCORE: score, USER: user, WHOLE: undivided(manifest, more)}
    for length, lent in sorted((shortened or {}).items()):
        graphs[shorter(SCORE, length)], graphs[shorter(USER, length)] = _parts(manifest, lent, more, length)
    return graphs


def _parts(
    manifest: Described, tensors: Sequence[tuple[str, int]], more: Sequence[GraphInput], length: int
) -> tuple[Subgraph, Subgraph]:
    user = user_features(manifest.features)
    user_names = {f.name for f in user}
    others = sorted((f for f in manifest.features if f.name not in user_names), key=lambda f: f.offset)
    computed = [GraphOutput(name, [REQUESTS, size]) for name, size in tensors]
    lent = [GraphInput(name, [REQUESTS, size], USER_TENSOR) for name, size in tensors]
    wide = {s.name: s.columns_of(length or s.max_length) for s in manifest.sequences}
    histories = [replace(i, dims=[REQUESTS, wide[i.name]]) for i in more if i.source == SEQUENCE]
    per_row = [i for i in more if i.source != SEQUENCE]
    return (
        Subgraph([_matrix(ROWS, others), *per_row, *lent], scores_of(manifest)),
        Subgraph([*([_matrix(REQUESTS, user)] if user else []), *histories], computed),
    )


def _matrix(batch: str, features: Sequence[Feature]) -> GraphInput:
    width = sum(f.width for f in features)
    return GraphInput(MATRIX, [batch, width], FEATURES, [f.name for f in features])


def user_features(features: Sequence[Feature]) -> list[Feature]:
    """Return the user's features among these, in the order of their columns."""
    mixed = {f.input for f in features if f.side != "user"}
    return sorted((f for f in features if f.input not in mixed), key=lambda f: f.offset)


def columns(features: Sequence[Feature]) -> list[int]:
    """Return the columns of the whole graph's matrix that these features have, in order."""
    return [column for f in features for column in range(f.offset, f.offset + f.width)]
