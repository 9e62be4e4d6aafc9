"""Run every pass over a dense graph, in turn, until none of them finds anything more to do.

No pass adds work per row: a pass whose result takes more FLOPs is not applied, and that is reported. Whether more work
takes less time depends on the backend, and the passes run before one is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.passes import batchnorm, cleanup, constant_folding, interactions, linear, pairs
from freshet_serving.compiler.passes.flops import PassEffect, counted, flops, node_count
from freshet_serving.compiler.passes.graph import Graph

Pass = Callable[[Graph], tuple[Graph, int]]

PASSES: dict[str, Pass] = {
    "constants": constant_folding.fold,
    "cleanup": cleanup.clean,
    "dense layers": linear.fuse,
    "batch norm": batchnorm.fold,
    "factorisation machines": interactions.factorise,
    "cross layers": interactions.cross,
    "pairs": pairs.factorise,
    "pair products": pairs.scale_weights,
}
MAX_ROUNDS = 64


@dataclass(frozen=True, slots=True, eq=False)
class OptimisedGraph:
    """A dense graph after all passes, with each pass's effect, dense layers of one kernel, and FLOPs of a row."""

    graph: DenseGraph
    effects: list[PassEffect]
    layers: int
    flops: int


def optimise(dense: DenseGraph) -> OptimisedGraph:
    """Return the same function of the same weights, cheaper to run."""
    graph, effects = improve(Graph.of_dense(dense))
    return OptimisedGraph(graph.to_dense(dense.weights), effects, linear.layers(graph), flops(graph))


def improve(graph: Graph) -> tuple[Graph, list[PassEffect]]:
    """Return a graph after all passes, and the effects of those that had any, or would have had."""
    done = {name: PassEffect(name, 0, 0, 0) for name in PASSES}
    refused: dict[str, PassEffect] = {}
    for _ in range(MAX_ROUNDS):
        before = graph
        refused.clear()
        for name, run in PASSES.items():
            after, effect = apply(name, run, graph)
            if effect.flops < 0 and counted(graph):
                refused[name] = replace(effect, applied=False)
                continue
            graph, done[name] = after, _sum(done[name], effect)
        if graph.to_bytes() == before.to_bytes():
            break
    return graph, [*(effect for effect in done.values() if effect.found), *refused.values()]


def apply(name: str, run: Pass, graph: Graph) -> tuple[Graph, PassEffect]:
    """Return the graph after one pass, and the effect."""
    after, changes = run(graph)
    if not changes:
        return graph, PassEffect(name, 0, 0, 0)
    return after, PassEffect(name, changes, node_count(graph) - node_count(after), flops(graph) - flops(after))


def _sum(a: PassEffect, b: PassEffect) -> PassEffect:
    return PassEffect(a.name, a.found + b.found, a.nodes + b.nodes, a.flops + b.flops)
