"""Fill the named inputs of a subgraph: one filler for each input, found by the input's source.

    features   columns of the sparse graph: lookups, pooling, scaled numbers (processor.features.plan)
    sequence   a user's events, lookups side by side (processor.running.sequence_filler)
    user       outputs of the subgraph `user`: copied by the runner, once a request

Another source is one entry of FILLERS: a function of the input and the sparse plan that returns a Fill. A Fill writes
the rows of several requests at once and reads only its arguments, so a batch stays under one state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import FEATURES, SEQUENCE, USER_TENSOR, GraphInput, Subgraph


class Fill(Protocol):
    """Writes rows of requests into one input."""

    def __call__(self, view: BatchView, out: NDArray[np.float32]) -> None:
        """Write the view's rows, one after another, to float32 [rows, ...]; raise NonFiniteInput for such a float."""


def fill_features(graph_input: GraphInput, plan: SparsePlan) -> Fill:
    return plan.fill if plan.in_order(graph_input.features) else plan.pooling(graph_input.features).fill


def fill_sequences(graph_input: GraphInput, plan: SparsePlan) -> Fill:
    # Loaded with the first version that has such an input.
    from freshet_serving.processor.running.sequence_filler import SequenceFill

    return SequenceFill(graph_input, plan)


FILLERS: dict[str, Callable[[GraphInput, SparsePlan], Fill]] = {FEATURES: fill_features, SEQUENCE: fill_sequences}


def fillers(graph: Subgraph, plan: SparsePlan) -> list[tuple[str, Fill]]:
    """Return name and filler of every input of a subgraph but the user's tensors; raise BadInput if one has none."""
    by_name = []
    for graph_input in graph.inputs:
        if graph_input.source == USER_TENSOR:
            continue
        if graph_input.source not in FILLERS:
            where, sources = f"manifest.graphs: input {graph_input.name!r}", ", ".join(sorted(FILLERS))
            raise BadInput(f"{where}: expected source {sources}, got {graph_input.source[:40]!r}")
        by_name.append((graph_input.name, FILLERS[graph_input.source](graph_input, plan)))
    return by_name
