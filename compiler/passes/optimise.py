"""Every pass over a dense graph, in turn, until none of them finds anything more to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.dense import DenseGraph
from compiler.passes import batchnorm, cleanup, constants, interactions, linear
from compiler.passes.cost import Effect, flops, node_count
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
    graph = Graph.of_dense(dense)
    done = {name: Effect(name, 0, (0, 0), (0, 0)) for name in PASSES}
    for _ in range(MAX_ROUNDS):
        before = graph
        for name, run in PASSES.items():
            graph, effect = apply(name, run, graph)
            done[name] = _sum(done[name], effect)
        if graph.to_bytes() == before.to_bytes():
            break
    effects = [effect for effect in done.values() if effect.found]
    return Optimised(graph.to_dense(dense.weights), effects, linear.layers(graph))


def apply(name: str, run: Pass, graph: Graph) -> tuple[Graph, Effect]:
    """One pass and its effect."""
    after, found = run(graph)
    if not found:
        after = graph
    nodes, operations = (node_count(graph), node_count(after)), (flops(graph), flops(after))
    return after, Effect(name, found, nodes, operations)


def _sum(a: Effect, b: Effect) -> Effect:
    """Two rounds of one pass: where it began, and what it took off in all."""
    if not a.found:
        return b
    nodes = (a.nodes[0], a.nodes[1] + b.nodes[1] - b.nodes[0])
    return Effect(a.name, a.found + b.found, nodes, (a.flops[0], a.flops[1] + b.flops[1] - b.flops[0]))
