"""Split a dense graph into the parts to compile.

These are the whole after all passes, and both parts of the user/candidate split.

Every part is a DenseGraph with its weights under their names, so a backend compiles each like any other and a delta's
weights fit all of them.
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

# Numbers of requests for which a user's part is computed at once.
USER_BUCKETS = (1, 4, 16)
# With fewer candidates a request shares its batch with others, which saves more than computing its user's part once.
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
    """The parts of a model's dense graph.

    Attributes:
        by_role: Parts to compile, by role.
        effects: Effects of the passes.
        user_split: The user/candidate split, or None.
        notes: What was not done, each with the reason.
    """

    by_role: dict[str, DensePart]
    effects: list[PassEffect]
    user_split: UserCandidateSplit | None
    notes: list[str]

    @property
    def user_width(self) -> int:
        """The manifest's user_width: length of the user vector, 0 without a split."""
        return self.user_split.user_width if self.user_split else 0

    def lines(self) -> list[str]:
        """Return the passes' effects, the split and the notes, as lines for people."""
        return [*map(str, self.effects), *([str(self.user_split)] if self.user_split else []), *self.notes]


def parts(dense: DenseGraph, features: Sequence[Feature], buckets: Sequence[int]) -> GraphParts:
    """Derive the parts of a model's dense graph.

    The optimised graph is verified on its examples, or on random rows; if it computes something else, the original
    graph is used.

    Args:
        dense: The dense graph.
        features: The model's features.
        buckets: Batch sizes.
    """
    notes: list[str] = []
    dense = decompose(dense)
    found = optimise(dense)
    graph, effects = replace(found.graph, examples=dense.examples), found.effects
    if not _same(dense, graph):
        graph, effects = dense, []
        notes.append("passes: the optimised graph computes something else; compiling the original graph")
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
        notes.append(f"user-once: expected batch sizes of {MIN_CANDIDATES} or more")
    elif user:
        notes.append("user-once: too little of the graph depends on the user alone")
    return GraphParts(by_role, effects, user_split, notes)


def _same(a: DenseGraph, b: DenseGraph) -> bool:
    x = a.sample(PROOF_ROWS)
    wanted, got = a.run(x), b.run(x)
    return all(np.allclose(got[n], wanted[n], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True) for n in wanted)
