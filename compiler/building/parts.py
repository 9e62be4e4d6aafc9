"""Split a dense graph into the parts to compile.

These are the whole after all passes, and both parts of the user/candidate split; of a graph with sequences, both parts
for some shorter histories, too. Every part is a DenseGraph with its weights under their names, so a backend compiles
each like any other and a delta's weights fit all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from freshet_serving.compiler.building.compile import AnyDenseGraph
from freshet_serving.compiler.dense.dense_graph import DenseGraph, Tensors
from freshet_serving.compiler.dense.onnx_dense_graph import OnnxDenseGraph
from freshet_serving.compiler.passes.decompose import decompose
from freshet_serving.compiler.passes.flops import PassEffect, dense_flops, proof_rows
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.compiler.passes.shorter_histories import kept_columns, shortened, shortened_rows
from freshet_serving.compiler.passes.state_classes import StateClass, state_class
from freshet_serving.compiler.passes.user_candidate_split import UserCandidateSplit, split_user_candidate
from freshet_serving.processor.backends import MATRIX, Dims
from freshet_serving.processor.package import (
    FLOPS,
    FORMAT_2,
    ROWS,
    SCORE,
    SEQUENCE,
    USER,
    USER_STATE,
    WHOLE,
    ExecutableEntry,
    Feature,
    GraphInput,
    Manifest,
    SequenceEntry,
    Subgraph,
    columns,
    divided,
    shorter,
    undivided,
    user_features,
)

# Numbers of requests for which a user's part is computed at once.
USER_BUCKETS = (1, 4, 16)
# With fewer candidates a request shares its batch with others, which saves more than computing its user's part once.
MIN_CANDIDATES = 64
# Halves of max_length to compile for, down to a length that costs little: a place too many costs a third on average.
LENGTHS, LEAST_LENGTH = 4, 32
# A run of more work would delay other requests for longer than its size saves: about 20 ms of a core.
MOST_FLOPS = 2_000_000_000
PROOF_ROWS = 64
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class DensePart:
    graph: AnyDenseGraph
    buckets: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class GraphParts:
    """The parts of a model's dense graph.

    Attributes:
        by_subgraph: Parts to compile, by subgraph; the undivided one is called WHOLE until it is listed.
        user_split: The user/candidate split, or None.
        notes: What was not done, each with the reason.
        shorter: By most events of a history, the splits of the graph for such requests.
        row_flops: FLOPs of one row of the undivided graph; None if they are not counted.
        state: The class of what is computed of a user's history; None without histories or a split.
    """

    by_subgraph: dict[str, DensePart]
    effects: list[PassEffect]
    user_split: UserCandidateSplit | None
    notes: list[str]
    shorter: dict[int, UserCandidateSplit] = field(default_factory=dict)
    sequences: Sequence[SequenceEntry] = ()
    row_flops: int | None = None
    state: StateClass | None = None

    def given(self, rows: Tensors, features: Sequence[Feature]) -> dict[str, Tensors]:
        """Return inputs of all parts but the undivided one, by subgraph, from inputs of the whole graph."""
        user, inputs = columns(user_features(features)), dict[str, Tensors]()
        if self.user_split is not None:
            inputs[USER], inputs[SCORE] = self.user_split.inputs(rows, user)
        for length, split in self.shorter.items():
            columns_of = {s.name: kept_columns(s, length) for s in self.sequences}
            parts = split.inputs(shortened_rows(rows, columns_of), user)
            inputs[shorter(USER, length)], inputs[shorter(SCORE, length)] = parts
        return inputs

    def listed(self, name: str) -> str:
        """Return the name that a part's executables are listed under: the only part of a graph is `score`."""
        return SCORE if self.user_split is None else name

    def described(self, manifest: Manifest, executables: Sequence[ExecutableEntry]) -> Manifest:
        """Return a manifest with executables, of all parts or of the undivided one alone, and their subgraphs."""
        compiled = {e.subgraph for e in executables}
        if self.user_split is not None and USER in compiled:
            more = more_inputs(manifest, self.by_subgraph[WHOLE].graph.inputs)
            shorter_ones = {n: split.tensors for n, split in self.shorter.items() if shorter(USER, n) in compiled}
            graphs = divided(manifest, self.user_split.tensors, more, shorter_ones)
        else:
            graphs = undivided_graphs(manifest, self.by_subgraph[WHOLE].graph.inputs)
            executables = [replace(e, subgraph=SCORE) for e in executables]
        notes = {**manifest.notes, FLOPS: self._flops(graphs)}
        if self.state is not None and USER in graphs:
            notes[USER_STATE] = self.state.note
        return replace(manifest, format=FORMAT_2, graphs=graphs, executables=list(executables), notes=notes)

    def _flops(self, graphs: Collection[str]) -> dict[str, int]:
        undivided_one = WHOLE if USER in graphs else SCORE
        counted = {} if self.row_flops is None else {undivided_one: self.row_flops}
        for length, split in {0: self.user_split, **self.shorter}.items():
            of_user, of_score = (shorter(name, length) if length else name for name in (USER, SCORE))
            if split is not None and of_user in graphs:
                _, counted[of_score], counted[of_user] = split.flops
        return counted

    def lines(self) -> list[str]:
        lengths = [f"histories of at most {n} events: {split}" for n, split in sorted(self.shorter.items())]
        of_user = [str(each) for each in (self.user_split, self.state) if each is not None]
        return [*map(str, self.effects), *of_user, *lengths, *self.notes]


def more_inputs(manifest: Manifest, inputs: Mapping[str, Dims]) -> list[GraphInput]:
    """Return a whole graph's inputs beside x: sequences, and others with the filler of their name."""
    sources = {s.name: SEQUENCE for s in manifest.sequences}
    return [
        GraphInput(name, [ROWS, *dims[1:]], sources.get(name, name)) for name, dims in inputs.items() if name != MATRIX
    ]


def undivided_graphs(manifest: Manifest, inputs: Mapping[str, Dims]) -> dict[str, Subgraph]:
    more = more_inputs(manifest, inputs)
    return {SCORE: undivided(manifest, more)} if more else {}


def parts(
    dense: AnyDenseGraph, features: Sequence[Feature], buckets: Sequence[int], sequences: Sequence[SequenceEntry] = ()
) -> GraphParts:
    """Derive the parts of a model's dense graph.

    The optimised graph is verified on its examples, or on random rows; if it computes something else, the original
    graph is used. Sequences are the user's: copying one to each candidate costs more than another run, so such a model
    is divided for any number of candidates.
    """
    if isinstance(dense, OnnxDenseGraph):
        whole = DensePart(dense, sorted(set(buckets)))
        return GraphParts({WHOLE: whole}, [], None, ["passes: none: ONNX Runtime computes the graph as it is"])
    notes: list[str] = []
    dense = decompose(dense)
    optimised = optimise(dense)
    graph, effects, row_flops = replace(optimised.graph, examples=dense.examples), optimised.effects, optimised.flops
    if not _same(dense, graph):
        graph, effects, row_flops = dense, [], dense_flops(dense)
        notes.append("passes: the optimised graph computes something else; compiling the original graph")
    by_subgraph = {WHOLE: DensePart(graph, sorted(set(buckets)))}
    histories = [s.name for s in sequences]
    least = 1 if histories else MIN_CANDIDATES
    many = [bucket for bucket in by_subgraph[WHOLE].buckets if bucket >= least]
    user = user_features(features)
    may_split = many and (user or histories)
    user_split = split_user_candidate(graph, columns(user), histories) if may_split else None
    if user_split is not None:
        users, candidates = _with_examples(user_split, dense.examples, columns(user))
        of_row, _, of_request = user_split.flops
        by_subgraph |= {
            WHOLE: replace(by_subgraph[WHOLE], buckets=_light(by_subgraph[WHOLE].buckets, of_row)),
            USER: DensePart(users, _light(USER_BUCKETS, of_request)),
            SCORE: DensePart(candidates, many),
        }
    elif user and not many:
        notes.append(f"user-once: expected batch sizes of {MIN_CANDIDATES} or more")
    elif histories:
        notes.append(
            "user-once: refused: too little depends on the user alone, as where events attend to the candidate (bst); "
            "each candidate computes the whole history"
        )
    elif user:
        notes.append("user-once: too little of the graph depends on the user alone")
    result = GraphParts(by_subgraph, effects, user_split, notes, sequences=sequences, row_flops=row_flops)
    if user_split is None or not histories:
        return result
    result = _with_shorter(result, graph, many, columns(user))
    # The shortest graph has the same class, at the least cost.
    shortest = min(result.shorter, default=None)
    probed = user_split if shortest is None else result.shorter[shortest]
    return replace(result, state=state_class(probed.user, sequences))


def _with_shorter(result: GraphParts, graph: DenseGraph, buckets: list[int], user: Sequence[int]) -> GraphParts:
    histories = [s.name for s in result.sequences]
    for length in lengths(result.sequences):
        short = shortened(graph, result.sequences, length)
        split = None if short is None else split_user_candidate(short, user, histories)
        if short is None or split is None:
            result.notes.append(f"histories: not shortened to {length} events: places without events may change scores")
            break
        users, candidates = _with_examples(split, short.examples, user)
        result.shorter[length] = split
        result.by_subgraph[shorter(USER, length)] = DensePart(users, _light(USER_BUCKETS, split.flops[2]))
        result.by_subgraph[shorter(SCORE, length)] = DensePart(candidates, buckets)
    return result


def _with_examples(
    split: UserCandidateSplit, examples: Tensors | None, user: Sequence[int]
) -> tuple[DenseGraph, DenseGraph]:
    if examples is None:
        return split.user, split.candidate
    of_user, of_candidates = split.inputs(examples, user)
    return replace(split.user, examples=of_user), replace(split.candidate, examples=of_candidates)


def _light(buckets: Sequence[int], flops: int) -> list[int]:
    """Return the batch sizes of at most MOST_FLOPS, given the work of a row, or the smallest alone."""
    return [bucket for bucket in buckets if bucket * flops <= MOST_FLOPS] or list(buckets[:1])


def lengths(sequences: Sequence[SequenceEntry]) -> list[int]:
    """Return the lengths of histories to compile for beside the longest, descending: its halves."""
    longest = max(s.max_length for s in sequences)
    halves = [-(-longest // 2**n) for n in range(1, LENGTHS + 1)]
    return [length for length in halves if LEAST_LENGTH <= length < longest]


def _same(a: DenseGraph, b: DenseGraph) -> bool:
    rows = a.sample(proof_rows(a, PROOF_ROWS))
    expected, got = a.run(rows), b.run(rows)
    return all(np.allclose(got[n], expected[n], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True) for n in expected)
