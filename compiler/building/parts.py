"""Parts of a dense graph to compile: the whole after all passes, and the two parts of the user-once division.

Everything is a DenseGraph with its weights under their names, so that a backend compiles each like any other and a
delta's weights fit all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.passes.decompose import decompose
from freshet_serving.compiler.passes.flops import PassEffect
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.compiler.passes.user_candidate_split import UserCandidateSplit, split_user_candidate
from freshet_serving.processor.package import CANDIDATE, USER, WHOLE, Feature, columns, user_features

# A user's part is computed for so many requests at once.
USER_BUCKETS = (1, 4, 16)
# With fewer candidates a request shares its batch with others, which saves more than its user's part does.
MIN_CANDIDATES = 64
PROOF_ROWS = 64
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class DensePart:
    """A dense graph, and the batch sizes to compile it for."""

    graph: DenseGraph
    buckets: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class GraphParts:
    """Parts to compile, by role; what the passes did; the division, if any. notes: what was not done, and why."""

    by_role: dict[str, DensePart]
    effects: list[PassEffect]
    user_split: UserCandidateSplit | None
    notes: list[str]

    @property
    def user_width(self) -> int:
        """The manifest's user_width: columns of the lane, 0 without a division."""
        return self.user_split.user_width if self.user_split else 0

    def lines(self) -> list[str]:
        """The passes' effects, the division and the notes, in lines for people."""
        return [*map(str, self.effects), *([str(self.user_split)] if self.user_split else []), *self.notes]


def parts(dense: DenseGraph, features: Sequence[Feature], buckets: Sequence[int]) -> GraphParts:
    """The parts of a model's dense graph, for a ladder of batch sizes.

    The graph that the passes leave is proved on its examples, or random rows; were it another function, the graph as it
    came is used.
    """
    notes: list[str] = []
    dense = decompose(dense)
    found = optimise(dense)
    graph, effects = replace(found.graph, examples=dense.examples), found.effects
    if not _same(dense, graph):
        graph, effects = dense, []
        notes.append("passes: what they left computes something else; the graph is compiled as it came")
    by_role = {WHOLE: DensePart(graph, sorted(set(buckets)))}
    many = [bucket for bucket in by_role[WHOLE].buckets if bucket >= MIN_CANDIDATES]
    user = user_features(features)
    user_split = split_user_candidate(graph, columns(user), many[0]) if user and many else None
    if user_split is not None:
        users, candidates = user_split.user, user_split.candidate
        if dense.examples is not None:
            of_user, of_candidates = user_split.inputs(
                graph.sample(max(len(dense.examples), user_split.rows)), columns(user)
            )
            users, candidates = replace(users, examples=of_user), replace(candidates, examples=of_candidates)
        by_role |= {USER: DensePart(users, list(USER_BUCKETS)), CANDIDATE: DensePart(candidates, many)}
    elif user and not many:
        notes.append(f"user-once: batch sizes of {MIN_CANDIDATES} or more wanted")
    elif user:
        notes.append("user-once: too little of the graph depends on the user alone")
    return GraphParts(by_role, effects, user_split, notes)


def _same(a: DenseGraph, b: DenseGraph) -> bool:
    x = a.sample(PROOF_ROWS)
    wanted, got = a.run(x), b.run(x)
    return all(np.allclose(got[n], wanted[n], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True) for n in wanted)
