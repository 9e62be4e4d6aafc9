"""Every pass over a dense graph, in turn, until none of them finds anything more to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.dense.dense_graph import DenseGraph
from compiler.passes import batchnorm, cleanup, constants, interactions, linear
from compiler.passes.flops import Effect, flops, node_count
from compiler.passes.graph import Graph

Pass = Callable[[Graph], tuple[Graph, int]]

PASSES: dict[str, Pass] = {
    "constants": constants.fold,
    "cleanup": cleanup.clean,
    "dense layers": linear.fuse,
    "batch norm": batchnorm.fold,
    "factorisation machines": interactions.factorise,
    "cross layers": interactions.cross,
}
MAX_ROUNDS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Optimised:
    """A dense graph after all passes, and what each of them did, summed over their rounds. layers: dense layers that
    a backend can run as one kernel each."""

    graph: DenseGraph
    effects: list[Effect]
    layers: int


def optimise(dense: DenseGraph) -> Optimised:
    """The same function of the same weights, cheaper to run."""
    graph, effects = improve(Graph.of_dense(dense))
    return Optimised(graph.to_dense(dense.weights), effects, linear.layers(graph))


def improve(graph: Graph) -> tuple[Graph, list[Effect]]:
    """A graph after all passes, and the effects of those that had any."""
    done = {name: Effect(name, 0, 0, 0) for name in PASSES}
    for _ in range(MAX_ROUNDS):
        before = graph
        for name, run in PASSES.items():
            graph, effect = apply(name, run, graph)
            done[name] = _sum(done[name], effect)
        if graph.to_bytes() == before.to_bytes():
            break
    return graph, [effect for effect in done.values() if effect.found]


def apply(name: str, run: Pass, graph: Graph) -> tuple[Graph, Effect]:
    """Applies one pass: the graph that it leaves, and its effect."""
    after, found = run(graph)
    if not found:
        return graph, Effect(name, 0, 0, 0)
    return after, Effect(name, found, node_count(graph) - node_count(after), flops(graph) - flops(after))


def _sum(a: Effect, b: Effect) -> Effect:
    return Effect(a.name, a.found + b.found, a.nodes + b.nodes, a.flops + b.flops)
